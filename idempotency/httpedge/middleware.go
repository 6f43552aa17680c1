package httpedge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Guard runs work once per key; *guard.Guard is one.
type Guard interface {
	Do(ctx context.Context, r idempotency.Request, work func(context.Context) (idempotency.Result, error)) (
		idempotency.Result, error)
}

// Tenant says who asks, from what authentication has found out: never from what the client claims of itself. An error
// is answered as 401, a *Problem as itself, and nothing is recorded.
type Tenant func(r *http.Request) (string, error)

// OneTenant is the Tenant of a service that has only one.
func OneTenant(*http.Request) (string, error) { return "", nil }

// Config sets a Middleware. The zero value is safe.
type Config struct {
	// Edge is how it answers.
	Edge Edge
	// Optional lets requests without a key through, unguarded. Default: they are refused with 400. Mount the middleware
	// per route to have both.
	Optional bool
	// Methods are guarded; others pass. Default POST and PATCH: GET, HEAD, PUT and DELETE are idempotent by their
	// shape.
	Methods []string
	// Operation names what is asked, stable over releases, at most 255 bytes of printable ASCII. Default: the request's
	// pattern when the router has set one (net/http, chi), else method and path.
	Operation func(r *http.Request) string
	// Validate sees the request and its body before anything is looked up or recorded. Its error is answered as 400, a
	// *Problem as itself. Default: nothing is validated.
	Validate func(r *http.Request, body []byte) error
	// Fingerprint tells two requests with one key apart. Default: Canonical.
	Fingerprint func(r *http.Request, body []byte) idempotency.Fingerprint
	// Classify says what a status of the handler means; a panic counts as 500. Default: ByStatus. Atomic is for
	// handlers that leave nothing behind when they fail.
	Classify func(status int) idempotency.Class
	// MaxRequest is the largest body of a request, in bytes: it is read whole, for the fingerprint. A larger one is
	// refused with 413, and nothing is recorded. Default 1 MiB; negative: any.
	MaxRequest int64
}

// ByStatus is the default meaning of a handler's status. 2xx and 3xx are kept and replayed, as are the refusals that
// are about the command itself (402, 410, 422). Every other 4xx, 501 and 503 say that nothing was done, and that it may
// be otherwise later (404, 409, 412 and 424 too): nothing is kept, the key is free. After any other 5xx nobody knows:
// the outcome is unknown, and a retry is told so until recovery has decided.
func ByStatus(status int) idempotency.Class {
	switch status {
	case http.StatusPaymentRequired, http.StatusGone, http.StatusUnprocessableEntity:
		return idempotency.ClassTerminal
	case http.StatusNotImplemented, http.StatusServiceUnavailable:
		return idempotency.ClassRetryable
	}
	switch {
	case status >= 500:
		return idempotency.ClassUnknown
	case status >= 400:
		return idempotency.ClassRetryable
	}
	return idempotency.Unclassified
}

// Atomic is ByStatus for a handler whose work is one transaction: a 5xx or a panic of its rolls everything back, so the
// key is free again.
func Atomic(status int) idempotency.Class {
	if c := ByStatus(status); c != idempotency.ClassUnknown {
		return c
	}
	return idempotency.ClassRetryable
}

// Middleware guards handlers that have no transaction to share with the key. Mount it inside of authentication, rate
// limits and compression, around single routes.
//
// What it cannot promise: its record is another transaction than the handler's, so a crash between the two leaves an
// outcome that is unknown (never free, and never run again unless the guard's Rerun says so); it sees bytes before the
// handler validates them, so two spellings of one command may count as two; it cannot see what a 5xx left behind (see
// Classify). A handler that can, calls a store's InTx itself.
//
// A request's body is read whole, and the answer is held back until it is recorded. An answer above Edge.MaxBody, or
// one that the handler flushes, goes out as it comes: its request is done once all the same, but a retry is told
// CodeNotKept in its place. Neither 5xx nor panics are ever kept; a panic goes on to the server, and the log names its
// type and place only. Connections cannot be hijacked through it.
//
// A client that hangs up does not end the handler: the request's context outlives it by the guard's Config.Finish, and
// the retry gets the answer.
func Middleware(guard Guard, tenant Tenant, cfg Config) func(http.Handler) http.Handler {
	m := &middleware{guard: guard, tenant: tenant, cfg: cfg}
	if len(m.cfg.Methods) == 0 {
		m.cfg.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if m.cfg.Operation == nil {
		m.cfg.Operation = operation
	}
	if m.cfg.Fingerprint == nil {
		m.cfg.Fingerprint = Canonical
	}
	if m.cfg.Classify == nil {
		m.cfg.Classify = ByStatus
	}
	if m.cfg.MaxRequest == 0 {
		m.cfg.MaxRequest = 1 << 20
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(next, w, r) })
	}
}

type middleware struct {
	guard  Guard
	tenant Tenant
	cfg    Config
}

func (m *middleware) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	value, err := Key(r)
	if !slices.Contains(m.cfg.Methods, r.Method) || m.cfg.Optional && errors.Is(err, ErrNoKey) {
		next.ServeHTTP(w, r)
		return
	}
	var req idempotency.Request
	var body []byte
	if err == nil {
		req, body, err = m.request(w, r, value)
	}
	if err != nil {
		m.cfg.Edge.Write(w, idempotency.Result{}, err)
		return
	}
	t := &turn{m: m, next: next, r: r, body: body, out: newRecorder(w, m.cfg.Edge.maxBody()), over: make(chan struct{})}
	res, err := m.guard.Do(r.Context(), req, t.work)
	t.finish(w, res, err)
}

// request checks everything that can be refused without having looked anything up.
func (m *middleware) request(w http.ResponseWriter, r *http.Request, value string) (req idempotency.Request,
	body []byte, err error,
) {
	tenant, err := m.tenant(r)
	if err != nil {
		return req, nil, as(err, CodeUnauthenticated)
	}
	key := idempotency.Key{Tenant: tenant, Operation: m.cfg.Operation(r), Value: value}
	if err := key.Check(); err != nil {
		return req, nil, err
	}
	if body, err = readBody(w, r, m.cfg.MaxRequest); err != nil {
		return req, nil, err
	}
	if m.cfg.Validate != nil {
		if err := m.cfg.Validate(r, body); err != nil {
			return req, nil, as(err, CodeBadRequest)
		}
	}
	return idempotency.Request{Key: key, Fingerprint: m.cfg.Fingerprint(r, body)}, body, nil
}

// as makes a problem of an error that is none. Its text is for the client: it is the user's own function that wrote it.
func as(err error, code Code) error {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	return &Problem{Code: code, Detail: err.Error()}
}

// answered is the error of a handler's answer that is no success; who waited for it gets the same answer. Its text has
// none of it.
type answered struct {
	status int
	header map[string][]string
	body   []byte
}

func (a *answered) Error() string { return fmt.Sprintf("the handler ended with %d", a.status) }

// turn is one request's turn at being the one that is done.
type turn struct {
	m     *middleware
	next  http.Handler
	r     *http.Request
	body  []byte
	out   *recorder
	over  chan struct{} // closed when work returns
	began bool          // written before over is closed, or before Do returns
	class idempotency.Class
	res   idempotency.Result
	panic any
}

// work runs the handler.
func (t *turn) work(ctx context.Context) (idempotency.Result, error) {
	t.began = true
	defer close(t.over)
	t.handle(ctx)
	status := t.out.status()
	if t.panic != nil {
		status = http.StatusInternalServerError
	}
	t.class = t.m.cfg.Classify(status)
	if status >= 500 && t.class != idempotency.ClassRetryable {
		t.class = idempotency.ClassUnknown // never kept, whatever Classify says
	}
	switch t.class {
	case idempotency.ClassRetryable:
		if t.out.streaming || t.panic != nil {
			return idempotency.Result{}, idempotency.Retryable(fmt.Errorf("the handler ended with %d", status))
		}
		res := t.m.cfg.Edge.recorded(t.out)
		return idempotency.Result{}, idempotency.Retryable(&answered{status, res.Header, res.Body})
	case idempotency.ClassUnknown:
		return idempotency.Result{}, idempotency.OutcomeUnknown(fmt.Errorf("the handler ended with %d", status))
	}
	t.res = t.m.cfg.Edge.recorded(t.out)
	if t.class == idempotency.ClassTerminal {
		t.res.Failure = fmt.Sprintf("http_%d", status)
		return t.res, idempotency.Terminal(t.res.Failure, &answered{status: status})
	}
	return t.res, nil
}

// withBody gives a request its body again.
func withBody(r *http.Request, body []byte) *http.Request {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return r
}

// handle calls the handler. A panic is kept for finish: the guard must know that the outcome is not, and the server
// must see it.
func (t *turn) handle(ctx context.Context) {
	defer func() {
		if t.panic = recover(); t.panic != nil && t.panic != http.ErrAbortHandler {
			t.m.cfg.Edge.log().Error("a handler panicked", "panic", fmt.Sprintf("%T", t.panic), "stack",
				string(debug.Stack()))
		}
	}()
	t.next.ServeHTTP(t.out, withBody(t.r.WithContext(ctx), t.body))
}

// finish answers: what the handler said if it was this request's turn, else what the guard says.
func (t *turn) finish(w http.ResponseWriter, res idempotency.Result, err error) {
	var a *answered
	if !t.began && errors.As(err, &a) {
		t.m.cfg.Edge.answer(w, idempotency.Result{Code: a.status, Header: a.header, Body: a.body})
		return
	}
	if !t.began {
		t.m.cfg.Edge.Write(w, res, err)
		return
	}
	<-t.over // a guard may have left while the handler worked: w must not be used after this request's end
	kept := t.class != idempotency.ClassRetryable && t.class != idempotency.ClassUnknown
	switch {
	case t.panic != nil:
		panic(t.panic)
	case t.out.streaming:
	case kept && (res.Replayed || errors.Is(err, store.ErrLeaseLost) || errors.Is(err, idempotency.ErrUnknown)):
		// Another attempt has ended, has, or will have the key, and its answer is the one that counts: this one may be
		// a refusal that is not recorded.
		t.m.cfg.Edge.Write(w, res, err)
	default:
		if kept && err != nil && !errors.As(err, &a) {
			t.m.cfg.Edge.log().Error("a request was done, and whether its answer was recorded is not known", "error",
				err)
		}
		t.out.send(t.m.cfg.Edge, t.res, kept)
	}
}
