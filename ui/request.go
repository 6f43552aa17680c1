package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// mostForm bounds the body of a request: a payload, and what it was before, both in a form's encoding.
const mostForm = 16 << 20

// request is an authorized request.
type request struct {
	*http.Request
	w   http.ResponseWriter
	h   *Handler
	who Identity
	db  *reads.Database // the database in the path; nil: none

	until time.Time // until when the page waits for databases; zero: not started
}

// refusal is an error with an HTTP status.
type refusal struct {
	status      int
	title, text string
}

func (r *refusal) Error() string { return r.title + ": " + r.text }

func (h *Handler) request(w http.ResponseWriter, r *http.Request) *request {
	who, _ := r.Context().Value(identity{}).(Identity)
	return &request{Request: r, w: w, h: h, who: who}
}

// refuse answers a request with an error.
func (q *request) refuse(err error) {
	no, ok := errors.AsType[*refusal](err)
	if !ok {
		no = &refusal{http.StatusServiceUnavailable, "This cannot be shown now", reads.Away(err)}
	}
	if err := q.render("message", no.status, view{Title: no.title, Body: no.text}); err != nil {
		http.Error(q.w, no.text, no.status)
	}
}

// errForm refuses a form that no page of this Handler sends.
var errForm = &refusal{
	http.StatusBadRequest, "This form cannot be read",
	"Something in it is missing, malformed or there twice. Go back and load the page anew.",
}

func notFound(text string) error { return &refusal{http.StatusNotFound, "There is no such page", text} }

// bounded returns a context with the time that a page may use a database.
func (q *request) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(q.Context(), q.h.cfg.Timeout)
}

// view is the data of a page.
type view struct {
	Title string
	Nav   string // the page's entry in the navigation
	Live  bool   // the page refreshes itself
	Body  any

	Who    Identity
	Now    time.Time
	Badges map[string]int64 // by entry of the navigation
	Denied []string         // what the databases let nobody here read
	Prefix string
	Asset  string // the path of the static files
}

// CanReveal reports whether the viewer may see payloads.
func (v view) CanReveal() bool { return v.Who.Level >= Reveal }

// CanOperate reports whether the viewer gets buttons.
func (v view) CanOperate() bool { return v.Who.Level >= Operate }

// render writes a page, or nothing if its template fails.
func (q *request) render(name string, status int, v view) error {
	v.Who, v.Now, v.Prefix, v.Asset = q.who, time.Now(), q.h.cfg.Prefix, q.h.cfg.Prefix+"/static/"+assetVersion
	if q.who.Scope == nil { // badges count all topics
		v.Badges = q.h.badges(q.Context())
	}
	for _, d := range q.h.databases {
		st, _, _ := d.State.Get(q.Context(), 0)
		for _, text := range st.Denied {
			v.Denied = append(v.Denied, d.Name+", "+text+".")
		}
	}
	var b bytes.Buffer
	if err := q.h.pages[name].ExecuteTemplate(&b, "layout", v); err != nil {
		return fmt.Errorf("ui: page %s: %w", name, err)
	}
	q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	q.w.WriteHeader(status)
	_, _ = io.WriteString(q.w, format.VisiblePage(b.String()))
	return nil
}

// badges counts what waits for an operator, as far as it has been read; -1: not all of it.
func (h *Handler) badges(ctx context.Context) map[string]int64 {
	counts := map[string]int64{}
	counts["archive"] = h.replays.running()
	for _, d := range h.databases {
		st, _, err := d.State.Get(ctx, 0)
		if err != nil {
			counts["overview"] = -1
		}
		if st.Outbox != nil {
			counts["keys"] += st.Outbox.ParkedKeys
			counts["topics"] += st.Outbox.PausedTopics
		}
		if st.Keys != nil {
			counts["idempotency"] += st.Keys.Stuck
		}
		for _, c := range st.Inbox {
			counts["keys"] += c.ParkedKeys
			for _, p := range c.Partitions {
				if p.HaltedAt != nil {
					counts["consumers"]++
				}
			}
		}
	}
	return counts
}

// stateOf returns the state of a database, when it was read, and why there is none.
func (q *request) stateOf(d *reads.Database) (st reads.State, at time.Time, why string) {
	st, at, err := d.State.Get(q.Context(), q.left())
	if err != nil {
		why = reads.Away(err)
	}
	return st, at, why
}

// readsOnly reports whether the role may change nothing. One that is not known gets buttons: Postgres refuses it.
func (q *request) readsOnly() bool {
	st, _, err := q.db.State.Get(q.Context(), q.left())
	return err == nil && !st.MayChange
}

// left returns how long the page may still wait for all databases, never zero. Its first call starts all reads.
func (q *request) left() time.Duration {
	if q.until.IsZero() {
		q.until = time.Now().Add(q.h.cfg.Timeout)
		for _, d := range q.h.databases {
			_, _, _ = d.State.Get(q.Context(), 0)
		}
	}
	return max(time.Until(q.until), 1)
}

// firstPage cuts a list that was read with one extra row.
func firstPage[T any](list []T) (first []T, more bool) {
	return list[:min(len(list), reads.Page)], len(list) > reads.Page
}

// identity is the context key of a request's Identity.
type identity struct{}
