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
	"github.com/effectonce/effectonce/idempotency/keys"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// Guard runs work once per key; *guard.Guard is one.
type Guard interface {
	Do(ctx context.Context, r idempotency.Request, work func(context.Context) (idempotency.Result, error)) (
		idempotency.Result, error)
}

// Tenant returns the authenticated tenant of a request, never a name that the client claims. An error is answered with
// 401, a *Problem with itself, and nothing is recorded.
type Tenant func(r *http.Request) (string, error)

// OneTenant is the Tenant of a service with one tenant.
func OneTenant(*http.Request) (string, error) { return "", nil }

// Config sets a Middleware. The zero value is safe.
type Config struct {
	// Edge has the settings of answers.
	Edge Edge
	// Optional passes requests without a key on, unguarded. Default: they are refused with 400. Mount the middleware
	// per route to have both.
	Optional bool
	// Methods are the guarded methods. Default POST and PATCH: GET, HEAD, PUT and DELETE are idempotent by definition.
	Methods []string
	// Operation returns the operation's name, stable across releases, at most 255 bytes of printable ASCII. Default:
	// the request's pattern if the router sets one (net/http, chi), else method and path.
	Operation func(r *http.Request) string
	// Validate validates a request before any lookup. Its error is answered with 400, a *Problem with itself, and one
	// about the key, such as that of a keys.Window, with its own code. Default: none.
	Validate func(r *http.Request, body []byte) error
	// Fingerprint returns the request's fingerprint. Default: Canonical.
	Fingerprint func(r *http.Request, body []byte) idempotency.Fingerprint
	// Older returns the request's fingerprints in versions that records of earlier releases may have: without it, a
	// release that changes Fingerprint refuses the retries of requests from before it. Default: none.
	Older func(r *http.Request, body []byte) []idempotency.Fingerprint
	// Classify classifies the handler's status; a panic counts as 500. Default: ByStatus. Use Atomic for handlers that
	// have no effect if they fail.
	Classify func(status int) outcome.Class
	// MaxRequest is the maximum size of a request's body, in bytes, which is read whole for the fingerprint. A larger
	// one is refused with 413, and nothing is recorded. Default 1 MiB; negative: any.
	MaxRequest int64
}

// ByStatus is the default classification. 2xx and 3xx are stored and replayed, as are refusals of the command itself
// (402, 410, 422). After every other 4xx (such as 404, 409, 412 and 424) and 501 nothing was done, and a retry may
// succeed: nothing is stored, and the key is released. After any other 5xx the outcome is unknown until recovery has
// found it out, also after 503: http.TimeoutHandler answers it while the work goes on, and a proxy when the reply of a
// service was lost. A handler that answers 503 before it does anything has a Classify that says so, or answers 429.
func ByStatus(status int) outcome.Class {
	switch status {
	case http.StatusPaymentRequired, http.StatusGone, http.StatusUnprocessableEntity:
		return outcome.ClassTerminal
	case http.StatusNotImplemented:
		return outcome.ClassRetryable
	}
	switch {
	case status >= 500:
		return outcome.ClassUnknown
	case status >= 400:
		return outcome.ClassRetryable
	}
	return outcome.Unclassified
}

// Atomic is ByStatus for a handler whose work is one transaction: after a 5xx or a panic, which roll it back, the key
// is released.
func Atomic(status int) outcome.Class {
	if c := ByStatus(status); c != outcome.ClassUnknown {
		return c
	}
	return outcome.ClassRetryable
}

// Middleware guards handlers that cannot share a transaction with the key. Mount it inside authentication, rate limits
// and compression, around single routes.
//
// Its limits: its record is in another transaction than the handler's, so after a crash between the two the outcome is
// unknown (and the work is not run again unless it is in the guard's Rerun); it sees the body before the handler
// validates it, so two spellings of one command may be two commands; it cannot see the effects of a 5xx (see Classify).
// If possible, call a store's InTx in the handler instead.
//
// It reads the whole body, and buffers the answer until it is recorded. An answer above Edge.MaxBody, or one that the
// handler flushes, is streamed: its request is done once, but a retry gets CodeNotKept. 5xx and panics are never
// stored; a panic continues to the server, and the log has its type and stack only. Connections cannot be hijacked.
// Trailers reach the first caller, and are not replayed.
//
// A client that hangs up does not end the handler: the request's context ends the guard's Config.Finish later, and a
// retry gets the answer.
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

// request checks everything that can be refused before a lookup.
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
	req = idempotency.Request{Key: key, Fingerprint: m.cfg.Fingerprint(r, body)}
	if m.cfg.Older != nil {
		req.Older = m.cfg.Older(r, body)
	}
	return req, body, nil
}

// asProblem returns an error's problem, or one with its text, which a function of the user wrote for the client. An
// error about the key is returned unchanged: Write has its code, by which a client does not take the request for not
// done.
func asProblem(err error, code Code) error {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	var wrong *keys.WrongRegionError
	if errors.Is(err, keys.ErrOutsideWindow) || errors.Is(err, idempotency.ErrInvalidKey) ||
		errors.Is(err, ErrNoKey) || errors.As(err, &wrong) {
		return err
	}
	return &Problem{Code: code, Detail: err.Error()}
}

// answerError is the error of work whose handler did not succeed. Callers that waited for the attempt get its answer,
// which is not in its text.
type answerError struct {
	status int
	header map[string][]string
	body   []byte
}

func (a *answerError) Error() string { return fmt.Sprintf("the handler ended with %d", a.status) }

// attempt is a request whose handler the guard may run.
type attempt struct {
	m        *middleware
	next     http.Handler
	r        *http.Request
	body     []byte
	out      *recorder
	returned chan struct{} // closed at the end of work
	began    bool          // work was called; set before returned is closed, or before Do returns
	class    outcome.Class
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
	if status >= 500 && a.class != outcome.ClassRetryable {
		a.class = outcome.ClassUnknown // never stored, whatever Classify returns
	}
	switch a.class {
	case outcome.ClassRetryable:
		if a.out.streaming || a.panic != nil {
			return idempotency.Result{}, outcome.Retryable(fmt.Errorf("the handler ended with %d", status))
		}
		res := a.m.cfg.Edge.result(a.out)
		return idempotency.Result{}, outcome.Retryable(&answerError{status, res.Header, res.Body})
	case outcome.ClassUnknown:
		return idempotency.Result{}, outcome.Unknown(fmt.Errorf("the handler ended with %d", status))
	}
	a.res = a.m.cfg.Edge.result(a.out)
	if a.class == outcome.ClassTerminal {
		a.res.Failure = fmt.Sprintf("http_%d", status)
		return a.res, outcome.Terminal(a.res.Failure, &answerError{status: status})
	}
	return a.res, nil
}

// withBody sets the request's body, which was read.
func withBody(r *http.Request, body []byte) *http.Request {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return r
}

// handle calls the handler. It keeps a panic for answer, so that the guard gets an unknown outcome before the server
// gets the panic.
func (a *attempt) handle(ctx context.Context) {
	defer func() {
		if a.panic = recover(); a.panic != nil && a.panic != http.ErrAbortHandler {
			a.m.cfg.Edge.log().Error("a handler panicked", "panic", fmt.Sprintf("%T", a.panic), "stack",
				string(debug.Stack()))
		}
	}()
	a.next.ServeHTTP(a.out, withBody(a.r.WithContext(ctx), a.body))
}

// answer writes the handler's answer if this request's handler ran, else the guard's.
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
	stored := a.class != outcome.ClassRetryable && a.class != outcome.ClassUnknown
	switch {
	case a.panic != nil:
		panic(a.panic)
	case a.out.streaming:
		a.out.copyTrailers()
	case stored && (res.Replayed || errors.Is(err, store.ErrLeaseLost) || errors.Is(err, idempotency.ErrUnknown)):
		// Another attempt has finished or will, and its answer counts: this one may be a refusal that is not recorded.
		a.m.cfg.Edge.Write(w, res, err)
	default:
		if stored && err != nil && !errors.As(err, &answered) {
			a.m.cfg.Edge.log().Error("a request was done, and its answer may not be recorded", "error", err)
		}
		a.out.send(a.m.cfg.Edge, a.res, stored)
	}
}
