package ui

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

// scheduledFilter is the filter of the list.
type scheduledFilter struct{ Topic, Key, Until string }

type scheduledPage struct {
	Filter scheduledFilter
	Lists  []scheduledList
}

// scheduledList is the list of one outbox.
type scheduledList struct {
	DB, Away string
	Count    int64         // -1: not shown to viewers with a Scope
	Late     time.Duration // how long the first event has been due; 0: none is due
	Events   []scheduledEvent
	More     bool
	ReadOnly bool

	CancelAll string // command, where the filter names a topic
}

type scheduledEvent struct {
	operator.ScheduledEvent
	Overdue bool
	Cancel  string // command
}

// DueText returns the due time to the microsecond, for the command and the form of a cancellation.
func (e scheduledEvent) DueText() string { return e.Due.UTC().Format(time.RFC3339Nano) }

func scheduled(q *request) error {
	form := q.URL.Query()
	p := scheduledPage{Filter: scheduledFilter{form.Get("topic"), form.Get("key"), form.Get("until")}}
	f := operator.ScheduledFilter{Topic: p.Filter.Topic, Limit: reads.Page + 1}
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

// scheduledIn lists the scheduled events of a filter, or the shared list of all.
func (q *request) scheduledIn(d *reads.Database, shown scheduledFilter, f operator.ScheduledFilter) scheduledList {
	list := scheduledList{DB: d.Name}
	var found []operator.ScheduledEvent
	var err error
	if shown == (scheduledFilter{}) && q.who.Scope == nil {
		found, _, err = d.Scheduled.Get(q.Context(), q.h.cfg.Timeout)
	} else {
		ctx, cancel := q.bounded()
		defer cancel()
		var o *operator.Operator
		if o, err = d.Outbox(reads.Viewer); err == nil {
			found, err = q.who.Scope.scheduled(ctx, o, f)
		}
	}
	if err != nil {
		list.Away = reads.Away(err)
		return list
	}
	found, list.More = firstPage(found)
	for _, e := range found {
		one := scheduledEvent{ScheduledEvent: e, Overdue: time.Now().After(e.Due)}
		one.Cancel = reads.CommandOf(d, verbs.CancelScheduled{Seq: e.Seq, Due: one.DueText()})
		list.Events = append(list.Events, one)
	}
	if shown.Topic != "" {
		list.CancelAll = reads.CommandOf(d, verbs.CancelAllScheduled{Topic: shown.Topic, Key: f.Key})
	}
	return list
}

// scheduled returns the events in the Scope, of the first ones that a filter selects.
func (s *Scope) scheduled(ctx context.Context, o *operator.Operator, f operator.ScheduledFilter) (
	[]operator.ScheduledEvent, error,
) {
	if s != nil {
		f.Limit = mostAtOnce
	}
	list, err := o.Scheduled(ctx, f)
	return slices.DeleteFunc(list, func(e operator.ScheduledEvent) bool { return !s.sees(e.Tenant, e.Topic) }), err
}
