package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// mostForm bounds the body of a request: a payload, and what it was before, both in a form's encoding.
const mostForm = 16 << 20

// policy limits browsers to this Handler's stylesheet and script, and forbids frames.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// request is an authorized request.
type request struct {
	*http.Request
	w   http.ResponseWriter
	h   *Handler
	who Identity
	db  *database // the database in the path; nil: none

	until time.Time // until when the page waits for databases; zero: not started
}

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
	add("GET", "/chain", View, chain)
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

// identity is the context key of a request's Identity.
type identity struct{}

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

// refusal is an error with an HTTP status.
type refusal struct {
	status      int
	title, text string
}

func (r *refusal) Error() string { return r.title + ": " + r.text }

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

func (h *Handler) request(w http.ResponseWriter, r *http.Request) *request {
	who, _ := r.Context().Value(identity{}).(Identity)
	return &request{Request: r, w: w, h: h, who: who}
}

// readForm reads query and form. It refuses repeated fields and malformed input, of which only a part would count.
func (q *request) readForm() error {
	err := q.ParseForm()
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return &refusal{http.StatusRequestEntityTooLarge, "This form is too large", "Use the relay command."}
	}
	if err != nil || q.Method == http.MethodPost && len(q.PostForm) == 0 {
		return errForm
	}
	for _, values := range q.Form {
		if len(values) > 1 {
			return errForm
		}
	}
	return nil
}

// refuse answers a request with an error.
func (q *request) refuse(err error) {
	no, ok := errors.AsType[*refusal](err)
	if !ok {
		no = &refusal{http.StatusServiceUnavailable, "This cannot be shown now", away(err)}
	}
	if err := q.render("message", no.status, view{Title: no.title, Body: no.text}); err != nil {
		http.Error(q.w, no.text, no.status)
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
	if where := q.PathValue("side"); where != "" && where != inOutbox && where != inInbox {
		return notFound("Events are parked in an outbox or an inbox.")
	}
	return nil
}

// errForm refuses a form that no page of this Handler sends.
var errForm = &refusal{
	http.StatusBadRequest, "This form cannot be read",
	"Something in it is missing, malformed or there twice. Go back and load the page anew.",
}

func notFound(text string) error { return &refusal{http.StatusNotFound, "There is no such page", text} }

// id returns the event's id from the path.
func (q *request) id() (int64, error) {
	id, err := strconv.ParseInt(q.PathValue("id"), 10, 64)
	if err != nil || id <= 0 {
		return 0, notFound("An event's id is a number.")
	}
	return id, nil
}

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
	var b bytes.Buffer
	if err := q.h.pages[name].ExecuteTemplate(&b, "layout", v); err != nil {
		return fmt.Errorf("ui: page %s: %w", name, err)
	}
	q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	q.w.WriteHeader(status)
	_, _ = q.w.Write(b.Bytes())
	return nil
}

// badges counts what waits for an operator, as far as it has been read.
func (h *Handler) badges(ctx context.Context) map[string]int64 {
	counts := map[string]int64{}
	counts["archive"] = h.replays.running()
	for _, d := range h.databases {
		st, _ := d.state.get(ctx, 0)
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
