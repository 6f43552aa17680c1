package ui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/effectonce/effectonce/relay/operator"
)

// scheduledFilter is how people cut the list down.
type scheduledFilter struct{ Topic, Key, Until string }

type scheduledPage struct {
	Filter scheduledFilter
	Lists  []scheduledList
}

// scheduledList is what one outbox publishes later.
type scheduledList struct {
	DB, Away string
	Count    int64         // -1: of all, which the person does not see
	Late     time.Duration // how long the first of them has been due; 0: none is
	Events   []scheduledEvent
	More     bool
	ReadOnly bool
}

type scheduledEvent struct {
	operator.ScheduledEvent
	Overdue bool
	Cancel  string // command
}

// DueText is the due time as the command and the form of a cancellation carry it: to the microsecond.
func (e scheduledEvent) DueText() string { return e.Due.UTC().Format(time.RFC3339Nano) }

func scheduled(q *request) error {
	form := q.URL.Query()
	p := scheduledPage{Filter: scheduledFilter{form.Get("topic"), form.Get("key"), form.Get("until")}}
	f := operator.ScheduledFilter{Topic: p.Filter.Topic, Limit: page + 1}
	if p.Filter.Key != "" {
		f.Key = &p.Filter.Key
	}
	if p.Filter.Until != "" {
		until, err := parseTime(p.Filter.Until)
		if err != nil {
			return err
		}
		f.Until = &until
	}
	for _, d := range q.h.databases {
		st, _, why := q.stateOf(d)
		switch {
		case why != "":
			p.Lists = append(p.Lists, scheduledList{DB: d.Name, Away: why})
		case st.Outbox != nil:
			one := q.scheduledIn(d, p.Filter, f)
			one.Count, one.Late, one.ReadOnly = st.Outbox.Scheduled, st.Outbox.ScheduledLate, !st.MayChange
			if q.who.Scope != nil {
				one.Count, one.Late = -1, 0
			}
			p.Lists = append(p.Lists, one)
		}
	}
	return q.render("scheduled", http.StatusOK, view{Title: "Scheduled", Nav: "scheduled", Live: true, Body: p})
}

// scheduledIn lists all as everybody sees them, or those of a filter.
func (q *request) scheduledIn(d *database, shown scheduledFilter, f operator.ScheduledFilter) scheduledList {
	list := scheduledList{DB: d.Name}
	var found listed[operator.ScheduledEvent]
	if shown == (scheduledFilter{}) && q.who.Scope == nil {
		found, _ = d.scheduled.get(q.Context(), q.h.cfg.Timeout)
	} else {
		ctx, cancel := q.bounded()
		defer cancel()
		o, err := d.outbox(viewer)
		if err == nil {
			found.List, err = q.who.Scope.scheduled(ctx, o, f)
		}
		found.Err = err
	}
	if found.Err != nil {
		list.Away = away(found.Err)
		return list
	}
	found.List, list.More = firstPage(found.List)
	for _, e := range found.List {
		one := scheduledEvent{ScheduledEvent: e, Overdue: time.Now().After(e.Due)}
		one.Cancel = d.withReason("scheduled", "cancel", "--seq", fmt.Sprint(e.Seq), "--due", one.DueText())
		list.Events = append(list.Events, one)
	}
	return list
}

// scheduled are those that are seen of the first ones that a filter chooses.
func (s *Scope) scheduled(ctx context.Context, o *operator.Operator, f operator.ScheduledFilter) (
	[]operator.ScheduledEvent, error,
) {
	if s != nil {
		f.Limit = mostAtOnce
	}
	list, err := o.Scheduled(ctx, f)
	return slices.DeleteFunc(list, func(e operator.ScheduledEvent) bool { return !s.sees(e.Tenant, e.Topic) }), err
}

// readScheduled is the list that everybody sees.
func (d *database) readScheduled(ctx context.Context) ([]operator.ScheduledEvent, error) {
	o, err := d.outbox(viewer)
	if err != nil {
		return nil, err
	}
	return o.Scheduled(ctx, operator.ScheduledFilter{Limit: page + 1})
}

// times are how people write them: in UTC, where they say nothing else.
var times = []string{
	time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly,
}

func parseTime(text string) (time.Time, error) {
	for _, layout := range times {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, &refusal{
		http.StatusBadRequest, "This time cannot be read",
		"Write it as 2026-01-02 15:04 or 2026-01-02T15:04:05Z. It is UTC.",
	}
}

func cancelScheduled(q *request) error {
	if _, err := q.reason(); err != nil {
		return err
	}
	seq, err := strconv.ParseInt(q.PostForm.Get("seq"), 10, 64)
	due, dueErr := time.Parse(time.RFC3339, q.PostForm.Get("due"))
	if err != nil || dueErr != nil || seq <= 0 {
		return errForm
	}
	return q.change(verb{
		name: fmt.Sprintf("Cancel scheduled event %d", seq), back: q.h.path("scheduled"),
		command: []string{"scheduled", "cancel", "--seq", fmt.Sprint(seq), "--due", q.PostForm.Get("due")},
		do: func(ctx context.Context, reason string) (string, error) {
			o, err := q.db.outbox(q.who.Name)
			if err != nil {
				return "", err
			}
			return "It will not be published.", o.CancelScheduled(ctx, seq, due, reason)
		},
	})
}
