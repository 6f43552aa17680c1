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
	a := &attempt{
		m: m, next: next, r: r, body: body, out: newRecorder(w, m.cfg.Edge.maxBody()), returned: make(chan struct{}),
	}
	res, err := m.guard.Do(r.Context(), req, a.work)
	a.answer(w, res, err)
}

// request checks everything that can be refused without having looked anything up.
func (m *middleware) request(w http.ResponseWriter, r *http.Request, value string) (req idempotency.Request,
	body []byte, err error,
) {
	tenant, err := m.tenant(r)
	if err != nil {
		return req, nil, asProblem(err, CodeUnauthenticated)
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
			return req, nil, asProblem(err, CodeBadRequest)
		}
	}
	return idempotency.Request{Key: key, Fingerprint: m.cfg.Fingerprint(r, body)}, body, nil
}

// asProblem returns an error's problem, or makes one of its text: the user's own function wrote it for the client.
func asProblem(err error, code Code) error {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	return &Problem{Code: code, Detail: err.Error()}
}

// answerError is the error of work whose handler answered without success. Callers that waited for the attempt get the
// same answer. The text has none of it.
type answerError struct {
	status int
	header map[string][]string
	body   []byte
}

func (a *answerError) Error() string { return fmt.Sprintf("the handler ended with %d", a.status) }

// attempt is one request, which the guard may choose to be the one that is done.
type attempt struct {
	m        *middleware
	next     http.Handler
	r        *http.Request
	body     []byte
	out      *recorder
	returned chan struct{} // closed when work returns
	began    bool          // work was called; written before returned is closed, or before Do returns
	class    idempotency.Class
	res      idempotency.Result
	panic    any
}

// work runs the handler.
func (a *attempt) work(ctx context.Context) (idempotency.Result, error) {
	a.began = true
	defer close(a.returned)
	a.handle(ctx)
	status := a.out.status()
	if a.panic != nil {
		status = http.StatusInternalServerError
	}
	a.class = a.m.cfg.Classify(status)
	if status >= 500 && a.class != idempotency.ClassRetryable {
		a.class = idempotency.ClassUnknown // never kept, whatever Classify says
	}
	switch a.class {
	case idempotency.ClassRetryable:
		if a.out.streaming || a.panic != nil {
			return idempotency.Result{}, idempotency.Retryable(fmt.Errorf("the handler ended with %d", status))
		}
		res := a.m.cfg.Edge.recorded(a.out)
		return idempotency.Result{}, idempotency.Retryable(&answerError{status, res.Header, res.Body})
	case idempotency.ClassUnknown:
		return idempotency.Result{}, idempotency.OutcomeUnknown(fmt.Errorf("the handler ended with %d", status))
	}
	a.res = a.m.cfg.Edge.recorded(a.out)
	if a.class == idempotency.ClassTerminal {
		a.res.Failure = fmt.Sprintf("http_%d", status)
		return a.res, idempotency.Terminal(a.res.Failure, &answerError{status: status})
	}
	return a.res, nil
}

// withBody gives a request its body again.
func withBody(r *http.Request, body []byte) *http.Request {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return r
}

// handle calls the handler. A panic is kept for answer: the guard must hear of an unknown outcome, and the server
// must see it.
func (a *attempt) handle(ctx context.Context) {
	defer func() {
		if a.panic = recover(); a.panic != nil && a.panic != http.ErrAbortHandler {
			a.m.cfg.Edge.log().Error("a handler panicked", "panic", fmt.Sprintf("%T", a.panic), "stack",
				string(debug.Stack()))
		}
	}()
	a.next.ServeHTTP(a.out, withBody(a.r.WithContext(ctx), a.body))
}

// answer gives the handler's answer when this request's handler ran, else the guard's.
func (a *attempt) answer(w http.ResponseWriter, res idempotency.Result, err error) {
	var answered *answerError
	if !a.began && errors.As(err, &answered) {
		a.m.cfg.Edge.answer(w, idempotency.Result{
			Code: answered.status, Header: answered.header, Body: answered.body,
		})
		return
	}
	if !a.began {
		a.m.cfg.Edge.Write(w, res, err)
		return
	}
	<-a.returned // the guard may return before the handler does, and w must not be used after that
	kept := a.class != idempotency.ClassRetryable && a.class != idempotency.ClassUnknown
	switch {
	case a.panic != nil:
		panic(a.panic)
	case a.out.streaming:
	case kept && (res.Replayed || errors.Is(err, store.ErrLeaseLost) || errors.Is(err, idempotency.ErrUnknown)):
		// Another attempt has ended, has, or will have the key, and its answer is the one that counts: this one may be
		// a refusal that is not recorded.
		a.m.cfg.Edge.Write(w, res, err)
	default:
		if kept && err != nil && !errors.As(err, &answered) {
			a.m.cfg.Edge.log().Error("a request was done, and whether its answer was recorded is not known", "error",
				err)
		}
		a.out.send(a.m.cfg.Edge, a.res, kept)
	}
}
