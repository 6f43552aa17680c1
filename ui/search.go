package ui

import (
	"context"
	"net/http"
	"strings"

	"github.com/google/uuid"

	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/ui/internal/reads"
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

func search(q *request) error {
	p := searchPage{Text: strings.TrimSpace(q.URL.Query().Get("text"))}
	if p.Text != "" {
		p.Lists = make([]searchList, len(q.h.databases))
		q.everywhere(func(ctx context.Context, i int, d *reads.Database) {
			p.Lists[i] = searchIn(ctx, d, q.h, q.who.Scope, p.Text)
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

// searchIn asks one database. A viewer with a Scope gets no decided events and no idempotency keys: their topics are
// unknown.
func searchIn(ctx context.Context, d *reads.Database, h *Handler, scope *Scope, text string) searchList {
	l := searchList{DB: d.Name, Command: d.Command("find", "--text="+text)}
	fail := func(err error) bool {
		if err != nil && !pgerr.Absent(err) {
			l.Away = strings.TrimSpace(l.Away + " " + reads.Away(err))
		}
		return err != nil
	}
	if o, err := d.Outbox(reads.Viewer); !fail(err) {
		if found, err := o.Find(ctx, text); !fail(err) {
			for _, e := range found.Events {
				if scope.sees(e.Tenant, e.Topic) {
					l.Outbox = append(l.Outbox, foundEvent{e, h.outboxHref(d, scope, e)})
				}
			}
			l.Unsearched = append(l.Unsearched, found.Unsearched...)
		}
	}
	if o, err := d.Inbox("", reads.Viewer); !fail(err) {
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
	} else if o, err := d.Idempotency(reads.Viewer); !fail(err) {
		if found, err := o.Find(ctx, text); !fail(err) {
			l.Keys = found.Operations
			l.Unsearched = append(l.Unsearched, found.Unsearched...)
		}
	}
	return l
}
