package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/effectonce/effectonce/ui/internal/reads"
)

// policy limits browsers to this Handler's stylesheet and script, and forbids frames.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Route is a page, or a change, below the Prefix of a Handler.
type Route struct {
	Method, Path string // Path is a pattern of http.ServeMux
	Level        Level  // that it requires
}

// Routes lists what a Handler serves, for the rules of a proxy before it.
func Routes() (list []Route) {
	for _, r := range table() {
		list = append(list, r.Route)
	}
	return list
}

type served struct {
	Route
	serve func(*request) error
}

// table lists all pages and verbs.
func table() (list []served) {
	add := func(method, path string, level Level, serve func(*request) error) {
		list = append(list, served{Route{method, path, level}, serve})
	}
	add("GET", "/{$}", View, overview)
	add("GET", "/db/{db}", View, overviewOne)
	add("GET", "/topics", View, topics)
	add("GET", "/keys", View, blockedKeys)
	add("GET", "/failures", View, failures)
	add("GET", "/consumers", View, consumers)
	add("GET", "/relays", View, relays)
	add("GET", "/audit", View, auditLog)
	add("GET", "/idempotency", View, idempotencyKeys)
	add("GET", "/search", View, search)
	add("GET", "/scheduled", View, scheduled)
	add("GET", "/archive", View, archive)
	add("GET", "/db/{db}/replay/plan", Operate, planReplay)
	add("POST", "/db/{db}/replay", Operate, startReplay)
	add("POST", "/db/{db}/replay/stop", Operate, stopReplay)
	add("GET", "/doctor", View, doctorPage)
	add("GET", "/doctor/examine", View, examineNow)
	add("GET", "/static/{version}/{file}", View, static)
	add("GET", "/topic/{db}/{topic}", View, showTopic)
	add("GET", "/db/{db}/{side}/events", View, events)
	add("GET", "/db/{db}/{side}/events/{id}", View, showEvent)
	add("POST", "/db/{db}/{side}/events/{id}/reveal", Reveal, revealEvent)
	add("POST", "/db/{db}/{side}/events/{id}/preview", Operate, previewEdit)
	add("POST", "/db/{db}/{side}/events/{id}/edit", Operate, editEvent)
	add("POST", "/db/{db}/{side}/events/{id}/headers/preview", Operate, previewHeaders)
	add("POST", "/db/{db}/{side}/events/{id}/headers/edit", Operate, editHeaders)
	add("POST", "/db/{db}/{side}/events/{id}/release", Operate, releaseEvent)
	add("POST", "/db/{db}/{side}/events/{id}/discard", Operate, discardEvent)
	add("POST", "/db/{db}/{side}/keys/release", Operate, releaseKey)
	add("POST", "/db/{db}/{side}/keys/discard", Operate, discardKey)
	add("GET", "/db/{db}/{side}/failures", View, showGroup)
	add("POST", "/db/{db}/{side}/failures/release", Operate, releaseGroup)
	add("POST", "/db/{db}/{side}/failures/discard", Operate, discardGroup)
	operate(func(path string, serve func(*request) error) { add("POST", path, Operate, serve) })
	return list
}

func (h *Handler) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for _, of := range table() {
		mux.HandleFunc(of.Method+" "+h.cfg.Prefix+of.Path, func(w http.ResponseWriter, r *http.Request) {
			h.serve(w, r, of.Level, of.serve)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		h.request(w, r).refuse(notFound("The pages begin at " + h.path() + "."))
	})
	return mux
}

// ServeHTTP authorizes a request before it looks at the path.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	who, err := h.cfg.Authorize(r)
	if err == nil && who.Name == "" {
		err = errors.New("you have no name, and the audit wants one")
	}
	if err != nil {
		status := http.StatusForbidden
		if challenge, ok := errors.AsType[Challenge](err); ok {
			status = http.StatusUnauthorized
			header.Set("WWW-Authenticate", string(challenge))
		}
		http.Error(w, err.Error(), status)
		return
	}
	if err := h.cross.Check(r); err != nil {
		http.Error(w, "cross-origin request refused: "+err.Error(), http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, mostForm)
	h.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identity{}, who)))
}

// serve answers an authorized request if its level allows it.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, level Level, serve func(*request) error) {
	q := h.request(w, r)
	err := q.allowed(level)
	if err == nil {
		err = q.readForm()
	}
	if err == nil {
		err = serve(q)
	}
	if err != nil {
		q.refuse(err)
	}
}

// allowed checks the level, and finds the database in the path.
func (q *request) allowed(level Level) error {
	if q.who.Level < level {
		return &refusal{
			http.StatusForbidden, "You may not do this",
			fmt.Sprintf("It wants the level %q, and yours is %q.", level, q.who.Level),
		}
	}
	if err := q.within(); err != nil {
		return err
	}
	if name := q.PathValue("db"); name != "" {
		if q.db = q.h.named(name); q.db == nil {
			return notFound("No database has this name here.")
		}
	}
	if where := q.PathValue("side"); where != "" && where != reads.InOutbox && where != reads.InInbox {
		return notFound("Events are parked in an outbox or an inbox.")
	}
	return nil
}
