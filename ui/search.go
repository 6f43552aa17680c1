package ui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/relay/operator"
)

type searchPage struct {
	Text  string
	Lists []searchList
	Path  []moment // of the events with this message id
	Any   bool
}

// searchList is the result of one database.
type searchList struct {
	DB, Away   string
	Outbox     []foundEvent
	Inbox      []foundInboxEvent
	Keys       []keysoperator.Operation
	Unsearched []string
	Command    string
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

// moment is a step in the history of an event.
type moment struct {
	At     time.Time // zero: now
	What   string
	Where  string // database, and consumer
	Detail string
	Href   string
}

func search(q *request) error {
	p := searchPage{Text: strings.TrimSpace(q.URL.Query().Get("text"))}
	if p.Text != "" {
		p.Lists = make([]searchList, len(q.h.databases))
		q.everywhere(func(ctx context.Context, i int, d *database) {
			p.Lists[i] = d.search(ctx, q.h, q.who.Scope, p.Text)
		})
	}
	id, err := uuid.Parse(p.Text)
	for _, l := range p.Lists {
		p.Any = p.Any || len(l.Outbox)+len(l.Inbox)+len(l.Keys) > 0
		for _, e := range l.Outbox {
			if err == nil && e.MessageID == id {
				p.Path = append(p.Path, outboxMoments(l.DB, e)...)
			}
		}
		for _, e := range l.Inbox {
			if err == nil && e.MessageID == id {
				p.Path = append(p.Path, inboxMoment(l.DB, e))
			}
		}
	}
	p.Path = inOrder(p.Path)
	return q.render("search", http.StatusOK, view{Title: "Search", Nav: "search", Body: p})
}

// everywhere asks all databases, within the limits of all pages together, for as long as a page may take.
func (q *request) everywhere(ask func(ctx context.Context, i int, d *database)) {
	ctx, cancel := q.bounded()
	defer cancel()
	var all sync.WaitGroup
	for i, d := range q.h.databases {
		all.Go(func() {
			select {
			case q.h.most.looks <- struct{}{}:
				defer func() { <-q.h.most.looks }()
			case <-ctx.Done(): // ask reports that this database was not asked in time
			}
			ask(ctx, i, d)
		})
	}
	all.Wait()
}

// search asks one database. A viewer with a Scope gets no decided events and no idempotency keys: their topics are
// unknown.
func (d *database) search(ctx context.Context, h *Handler, scope *Scope, text string) searchList {
	l := searchList{DB: d.Name, Command: d.command("find", "--text", text)}
	fail := func(err error) bool {
		if err != nil && !absent(err) {
			l.Away = away(err)
		}
		return err != nil
	}
	if o, err := d.outbox(viewer); !fail(err) {
		if found, err := o.Find(ctx, text); !fail(err) {
			for _, e := range found.Events {
				if scope.sees(e.Tenant, e.Topic) {
					l.Outbox = append(l.Outbox, foundEvent{e, h.outboxHref(d, scope, e)})
				}
			}
			l.Unsearched = append(l.Unsearched, found.Unsearched...)
		}
	}
	if o, err := d.inbox("", viewer); !fail(err) {
		if found, err := o.Find(ctx, text); !fail(err) {
			for _, e := range found.Events {
				if scope.sees(e.Tenant, e.Topic) {
					l.Inbox = append(l.Inbox, foundInboxEvent{e, h.inboxHref(d, e)})
				}
			}
			l.Unsearched = append(l.Unsearched, found.Unsearched...)
		}
	}
	if scope != nil {
		l.Unsearched = append(l.Unsearched, "What is not of your topics and tenants.")
	} else if o, err := d.idempotency(viewer); !fail(err) {
		if found, err := o.Find(ctx, text); !fail(err) {
			l.Keys = found.Operations
			l.Unsearched = append(l.Unsearched, found.Unsearched...)
		}
	}
	return l
}

func (h *Handler) outboxHref(d *database, scope *Scope, e operator.FoundEvent) string {
	switch {
	case e.Where == "parked":
		return h.path("db", d.Name, inOutbox, "events", e.ID)
	case e.Where == "held" && scope.whole(e.Topic):
		return h.path("topic", d.Name, e.Topic)
	}
	return ""
}

func (h *Handler) inboxHref(d *database, e inboxoperator.FoundEvent) string {
	if e.ID == 0 {
		return ""
	}
	return h.path("db", d.Name, inInbox, "events", e.ID)
}

// pathOf returns the history of a message id in all databases, within the viewer's Scope. It uses only indexed reads.
func (q *request) pathOf(id uuid.UUID) []moment {
	found := make([][]moment, len(q.h.databases))
	q.everywhere(func(ctx context.Context, i int, d *database) { found[i] = d.trace(ctx, q.h, q.who.Scope, id) })
	return inOrder(slices.Concat(found...))
}

func (d *database) trace(ctx context.Context, h *Handler, scope *Scope, id uuid.UUID) (path []moment) {
	unknown := func(err error) {
		if err != nil && !absent(err) {
			path = append(path, moment{What: "Not known", Where: d.Name, Detail: away(err)})
		}
	}
	o, err := d.outbox(viewer)
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
	in, err := d.inbox("", viewer)
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
