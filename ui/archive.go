package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

type archivePage struct {
	Replays []replayView
	Lists   []archiveList
}

// archiveList is the archive of one outbox.
type archiveList struct {
	DB, Away      string
	Days          []operator.ArchiveDay
	More          int // days that are not listed
	Events, Bytes int64
	ReadOnly      bool
	Part          bool // the Viewer sees some topics only; archived events are not counted by topic
}

// mostDays bounds the list of days.
const mostDays = 31

func archive(q *request) error {
	p := archivePage{Replays: q.h.replays.views(q.h.named, q.who.Scope)}
	for _, d := range q.h.databases {
		st, _, why := q.stateOf(d)
		switch {
		case why != "":
			p.Lists = append(p.Lists, archiveList{DB: d.Name, Away: why})
		case st.Outbox != nil:
			if q.who.Scope != nil { // a day counts all topics
				p.Lists = append(p.Lists, archiveList{DB: d.Name, ReadOnly: !st.MayChange, Part: true})
				continue
			}
			found, _, err := d.Archive.Get(q.Context(), q.h.cfg.Timeout)
			one := archiveList{DB: d.Name, ReadOnly: !st.MayChange, Days: found}
			if err != nil {
				one.Away = reads.Away(err)
			}
			for _, day := range found {
				one.Events, one.Bytes = one.Events+max(day.Events, 0), one.Bytes+day.Bytes
			}
			if n := len(one.Days); n > mostDays {
				one.Days, one.More = one.Days[:mostDays], n-mostDays
			}
			p.Lists = append(p.Lists, one)
		}
	}
	return q.render("archive", http.StatusOK, view{Title: "Archive", Nav: "archive", Live: true, Body: p})
}

// errNoReplay refuses a replay of events outside of the viewer's Scope.
var errNoReplay = notFound("You see no topic of this name, or not all of its tenants: name one of yours.")

// asked parses the form of a replay.
func asked(form url.Values) (c replayChoice, err error) {
	if c.From, err = parseTime(form.Get("from")); err != nil {
		return c, err
	}
	c.To = time.Now()
	if text := form.Get("to"); text != "" {
		if c.To, err = parseTime(text); err != nil {
			return c, err
		}
	}
	if c.Topic = form.Get("topic"); !verbs.IsTopic(c.Topic) {
		return c, &refusal{http.StatusBadRequest, "This is no topic's name", "Go back and name one."}
	}
	if !c.From.Before(c.To) {
		return c, &refusal{http.StatusBadRequest, "This is no time", "It ends before it begins."}
	}
	if text := form.Get("rate"); text != "" {
		if c.Rate, err = strconv.Atoi(text); err != nil || c.Rate < 0 {
			return c, &refusal{http.StatusBadRequest, "This rate cannot be read", "Write a number of events a second."}
		}
	}
	c.Type = form.Get("type")
	for name, to := range map[string]**string{"key": &c.Key, "tenant": &c.Tenant} {
		if text := form.Get(name); text != "" {
			*to = &text
		}
	}
	return c, nil
}

// planPage says what a replay would publish.
type planPage struct {
	DB       string
	Choice   replayChoice
	Form     string
	Plan     operator.ReplayPlan
	Twice    int64 // events that repeat another event's id
	ReadOnly bool
	DryRun   string // commands
	Command  string
}

// planReplay counts before anything runs. It may take longer than other pages: the archive has no index of topics.
func planReplay(q *request) error {
	c, err := asked(q.URL.Query())
	if err != nil {
		return err
	}
	if !c.within(q.who.Scope) {
		return errNoReplay
	}
	o, err := q.db.Outbox(reads.Viewer)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(q.Context(), changeTimeout)
	defer cancel()
	plan, err := o.PlanReplay(ctx, c.replay())
	if err != nil {
		if lost(err) {
			return &refusal{
				http.StatusGatewayTimeout, "This takes too long for a page", "Nothing was changed. Count with " +
					q.db.Command(append([]string{"replay", "--dry-run"}, c.flags()...)...) + ", or choose fewer days.",
			}
		}
		return err
	}
	c.Events = plan.Events
	return q.render("replay", http.StatusOK, view{Title: "Plan of a replay", Nav: "archive", Body: planPage{
		DB: q.db.Name, Choice: c, Form: c.form(), Plan: plan, Twice: plan.Events - plan.IDs, ReadOnly: q.readsOnly(),
		DryRun:  q.db.Command(append([]string{"replay", "--dry-run"}, c.flags()...)...),
		Command: q.db.WithReason(append([]string{"replay"}, c.flags()...)...),
	}})
}

func startReplay(q *request) error {
	if _, err := q.reason(); err != nil {
		return err
	}
	c, err := readChoice(q.PostForm.Get("choice"))
	if err != nil || !verbs.IsTopic(c.Topic) {
		return errForm
	}
	if !c.within(q.who.Scope) {
		return errNoReplay
	}
	return q.change(verb{
		name: "Replay of topic " + c.Topic, command: append([]string{"replay"}, c.flags()...),
		back: q.h.path("archive"),
		do:   func(ctx context.Context, reason string) (string, error) { return q.startReplay(ctx, c, reason) },
	})
}

func stopReplay(q *request) error {
	if _, err := q.reason(); err != nil {
		return err
	}
	id, err := strconv.Atoi(q.PostForm.Get("id"))
	if err != nil {
		return errForm
	}
	return q.change(verb{
		name: "Stop a replay", back: q.h.path("archive"),
		do: func(ctx context.Context, reason string) (string, error) {
			r := q.h.replays.of(id, q.db.Name)
			if r == nil || !r.choice.within(q.who.Scope) {
				return "", errNotRunning
			}
			done, err := r.stop(ctx, &operator.StoppedError{Operator: q.who.Name, Reason: reason})
			return fmt.Sprintf("It has stopped after %s. The page of the archive can have it go on.",
				format.Plural(done.Events, "event")), err
		},
	})
}

// startReplay starts a replay that outlives the request, and waits until it is in the audit.
func (q *request) startReplay(ctx context.Context, c replayChoice, reason string) (string, error) {
	o, err := q.db.Outbox(q.who.Name)
	if err != nil {
		return "", err
	}
	lasting, stop := context.WithTimeout(context.WithoutCancel(q.Context()), replayTimeout)
	lasting, cancel := context.WithCancelCause(lasting)
	r := &replay{
		db: q.db.Name, who: q.who.Name, reason: reason, choice: c, began: time.Now(), cancel: cancel,
		begun: make(chan struct{}), over: make(chan struct{}),
	}
	if !q.h.replays.add(r) {
		stop()
		return "", errReplaying
	}
	go func() {
		defer stop()
		r.run(lasting, o)
		q.db.Changed()
	}()
	return r.beginning(ctx)
}
