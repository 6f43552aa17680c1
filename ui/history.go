package ui

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// moment is a step in the history of an event.
type moment struct {
	At     time.Time // zero: now
	What   string
	Where  string // database, and consumer
	Detail string
	Href   string
}

// pathOf returns the history of a message id in all databases, within the viewer's Scope. It uses only indexed reads.
func (q *request) pathOf(id uuid.UUID) []moment {
	found := make([][]moment, len(q.h.databases))
	q.everywhere(func(ctx context.Context, i int, d *reads.Database) {
		found[i] = traceIn(ctx, d, q.h, q.who.Scope, id)
	})
	return inOrder(slices.Concat(found...))
}

func traceIn(ctx context.Context, d *reads.Database, h *Handler, scope *Scope, id uuid.UUID) (path []moment) {
	unknown := func(err error) {
		if err != nil && !pgerr.Absent(err) {
			path = append(path, moment{What: "Not known", Where: d.Name, Detail: reads.Away(err)})
		}
	}
	o, err := d.Outbox(reads.Viewer)
	var events []operator.FoundEvent
	if err == nil {
		events, err = o.Trace(ctx, id)
	}
	unknown(err)
	for _, e := range events {
		if scope.sees(e.Tenant, e.Topic) {
			path = append(path, outboxMoments(d.Name, foundEvent{e, h.outboxHref(d, scope, e)})...)
		}
	}
	in, err := d.Inbox("", reads.Viewer)
	var known []inboxoperator.FoundEvent
	if err == nil {
		known, err = in.Trace(ctx, id)
	}
	unknown(err)
	for _, e := range known {
		if scope.sees(e.Tenant, e.Topic) { // a decided event has no topic
			path = append(path, inboxMoment(d.Name, foundInboxEvent{e, h.inboxHref(d, e)}))
		}
	}
	return path
}

// outboxMoments returns the history of an event in an outbox.
func outboxMoments(db string, e foundEvent) []moment {
	number := ""
	if e.Seq != 0 {
		number = fmt.Sprintf("number %d of lane %d", e.Seq, e.Lane)
		if e.Epoch != "" {
			number += ", epoch " + e.Epoch
		}
	}
	appended := moment{
		At: e.CreatedAt, What: "Appended", Where: db,
		Detail: fmt.Sprintf("id %d, lane %d, topic %s", e.ID, e.Lane, e.Topic),
	}
	now := moment{Where: db, Href: e.Href, Detail: number}
	if e.At != nil {
		now.At = *e.At
	}
	switch e.Where {
	case "waiting":
		now.What = "Waits for a relay"
	case "claimed":
		now.What = "Claimed: a relay publishes it"
	case "held":
		now.What = "Held: its partition or topic does not take it"
	case "scheduled":
		appended.What = "Scheduled"
		appended.Detail = fmt.Sprintf("seq %d, lane %d, topic %s", e.ID, e.Lane, e.Topic)
		now.What = "Due"
	case "parked":
		now.What, now.Detail = "Parked", strings.TrimSpace(e.Code+" "+e.Error)
	case "archived":
		now.What = "Published"
	}
	return []moment{appended, now}
}

// inboxMoment returns the state of an event in an inbox.
func inboxMoment(db string, e foundInboxEvent) moment {
	m := moment{
		At: e.At, Where: db + ", " + e.Consumer, Href: e.Href, Detail: strings.TrimSpace(e.Code + " " + e.Error),
	}
	switch e.Where {
	case "decided":
		m.What = "Applied, or found to need no effect"
	case "discarded":
		m.What = "Discarded"
	case "behind":
		m.What = "Parked behind another one of its key"
	default:
		m.What = "Parked: " + e.Where
	}
	return m
}

// inOrder sorts moments, and removes duplicates: an event that is published again was appended once.
func inOrder(path []moment) []moment {
	slices.SortStableFunc(path, func(a, b moment) int {
		if a.At.IsZero() != b.At.IsZero() {
			if a.At.IsZero() {
				return 1
			}
			return -1
		}
		return a.At.Compare(b.At)
	})
	return slices.Compact(path)
}

type foundEvent struct {
	operator.FoundEvent
	Href string // its page; empty: none
}

// Known reports whether the event has a message id: a scheduled event may get its id when it is due.
func (e foundEvent) Known() bool { return e.MessageID != uuid.Nil }

type foundInboxEvent struct {
	inboxoperator.FoundEvent
	Href string
}

func (h *Handler) outboxHref(d *reads.Database, scope *Scope, e operator.FoundEvent) string {
	switch {
	case e.Where == "parked":
		return h.path("db", d.Name, reads.InOutbox, "events", e.ID)
	case e.Where == "held" && scope.whole(e.Topic):
		return h.path("topic", d.Name, e.Topic)
	}
	return ""
}

func (h *Handler) inboxHref(d *reads.Database, e inboxoperator.FoundEvent) string {
	if e.ID == 0 {
		return ""
	}
	return h.path("db", d.Name, reads.InInbox, "events", e.ID)
}

// everywhere asks all databases, within the limits of all pages together, for as long as a page may take.
func (q *request) everywhere(ask func(ctx context.Context, i int, d *reads.Database)) {
	ctx, cancel := q.bounded()
	defer cancel()
	var all sync.WaitGroup
	for i, d := range q.h.databases {
		all.Go(func() {
			select {
			case q.h.most.Looks <- struct{}{}:
				defer func() { <-q.h.most.Looks }()
			case <-ctx.Done(): // ask reports that this database was not asked in time
			}
			ask(ctx, i, d)
		})
	}
	all.Wait()
}
