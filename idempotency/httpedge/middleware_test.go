package httpedge_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/keys"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testService is a handler behind the middleware, over a store that remembers in memory. The tenant is a header, as a
// test's authentication.
type testService struct {
	store   *memstore.Store
	handler http.Handler
	effects atomic.Int64
}

func tenant(r *http.Request) (string, error) {
	if t := r.Header.Get("X-Tenant"); t != "" {
		return t, nil
	}
	return "", errors.New("who are you?")
}

func newTestService(t *testing.T, cfg httpedge.Config, do http.HandlerFunc) *testService {
	t.Helper()
	s := &testService{store: memstore.New(memstore.Config{})}
	cfg.Edge.Logger = quiet
	s.handler = s.newHandler(t, cfg, do)
	return s
}

// newHandler is another process: a guard of its own over the same store.
func (s *testService) newHandler(t *testing.T, cfg httpedge.Config, do http.HandlerFunc) http.Handler {
	t.Helper()
	guard, err := guard.New(s.store, guard.Config{Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Edge.Logger = quiet
	return httpedge.Middleware(guard, tenant, cfg)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.effects.Add(1)
		do(w, r)
	}))
}

// send is a POST by tenant a with a key and a body; further headers replace those.
func send(h http.Handler, key, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/things", strings.NewReader(body))
	r.Header.Set("X-Tenant", "a")
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// record is what the store has of a key of tenant a.
func (s *testService) record(t *testing.T, key string) (store.Record, bool) {
	t.Helper()
	rec, found, err := s.store.Get(t.Context(), idempotency.Key{Tenant: "a", Operation: "POST /things", Value: key})
	if err != nil {
		t.Fatal(err)
	}
	return rec, found
}

// requireRuns fails unless the handler ran so often.
func (s *testService) requireRuns(t *testing.T, want int64) {
	t.Helper()
	if got := s.effects.Load(); got != want {
		t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

// echo answers with what it read, and headers of all kinds.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Location", "/things/1")
	w.Header().Set("Set-Cookie", "session=secret")
	w.Header().Set("Date", "the first one's")
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "made of %s", body)
}

func respondWith(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestMiddleware_Replay(t *testing.T) {
	t.Parallel()
	s := newTestService(t, httpedge.Config{Edge: httpedge.Edge{Policy: "replay=1"}}, echo)
	first := send(s.handler, "k", `{"a":1,"b":2}`)
	again := send(s.handler, `"k"`, ` {"b":2, "a":1}`, "Authorization", "another token of the same principal")
	s.requireRuns(t, 1)
	if first.Code != 201 || again.Code != 201 || again.Body.String() != first.Body.String() ||
		first.Body.String() != `made of {"a":1,"b":2}` {
		t.Fatalf("%d %s, then %d %s", first.Code, first.Body, again.Code, again.Body)
	}
	a, b := first.Header(), again.Header()
	if a.Get("Idempotent-Replayed") != "" || b.Get("Idempotent-Replayed") != "true" ||
		b.Get("Location") != "/things/1" || b.Get("Content-Type") != "text/plain" {
		t.Errorf("%v, then %v", a, b)
	}
	if a.Get("Set-Cookie") == "" || b.Get("Set-Cookie") != "" || b.Get("Date") != "" {
		t.Errorf("the caller's and the moment's headers: %v, then %v", a, b)
	}
	if a.Get("Idempotency-Policy") != "replay=1" || b.Get("Idempotency-Policy") != "replay=1" {
		t.Errorf("policy: %v, then %v", a, b)
	}
}

func TestMiddleware_RefusedBeforeRecording(t *testing.T) {
	t.Parallel()
	cfg := httpedge.Config{MaxRequest: 20, Validate: func(_ *http.Request, body []byte) error {
		if !json.Valid(body) {
			return errors.New("no JSON")
		}
		return nil
	}}
	s := newTestService(t, cfg, echo)
	for name, c := range map[string]struct {
		w    *httptest.ResponseRecorder
		want int
		code httpedge.Code
	}{
		"no key":            {send(s.handler, "", "{}"), 400, httpedge.CodeKeyMissing},
		"a malformed key":   {send(s.handler, strings.Repeat("k", 256), "{}"), 400, httpedge.CodeKeyInvalid},
		"not authenticated": {send(s.handler, "k", "{}", "X-Tenant", ""), 401, httpedge.CodeUnauthenticated},
		"too large":         {send(s.handler, "k", strings.Repeat(" ", 21)), 413, httpedge.CodeTooLarge},
		"not valid":         {send(s.handler, "k", "{"), 400, httpedge.CodeBadRequest},
	} {
		if p := problem(t, c.w); c.w.Code != c.want || p.Code != c.code {
			t.Errorf("%s: %d %s", name, c.w.Code, c.w.Body)
		}
	}
	s.requireRuns(t, 0)
	if _, found := s.record(t, "k"); found {
		t.Error("something is recorded")
	}
	// The same key is good for the request once it is right.
	if w := send(s.handler, "k", "{}"); w.Code != 201 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestPeer_Stripe_ValidationFailuresAreNotSaved: a refusal of the handler as malformed is not stored.
func TestPeer_Stripe_ValidationFailuresAreNotSaved(t *testing.T) {
	t.Parallel()
	status := 400
	s := newTestService(t, httpedge.Config{}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	for _, status = range []int{400, 401, 403, 404, 409, 412, 413, 415, 424, 429, 501} {
		if w := send(s.handler, "k", "{}"); w.Code != status || w.Header().Get("Idempotent-Replayed") != "" {
			t.Errorf("%d: %d %v", status, w.Code, w.Header())
		}
		if rec, found := s.record(t, "k"); found {
			t.Errorf("%d burned the key: %s", status, rec.State)
		}
	}
	status = 201
	if w := send(s.handler, "k", `{"corrected":true}`); w.Code != 201 {
		t.Errorf("after all these: %d", w.Code)
	}
}

// TestPeer_StripeV1_500IsNotAResult, as in Stripe's v1, and TestPeer_Fiber_AnyResponseIsCached: a 5xx is never
// replayed. It may have had an effect, so a retry does not run either.
func TestPeer_StripeV1_500IsNotAResult(t *testing.T) {
	t.Parallel()
	for _, status := range []int{500, 502, 503, 504, 599} {
		unclassified := func(int) outcome.Class { return outcome.Unclassified }
		s := newTestService(t, httpedge.Config{Classify: unclassified}, respondWith(status, "half"))
		if w := send(s.handler, "k", "{}"); w.Code != status || w.Body.String() != "half" {
			t.Errorf("first: %d %s", w.Code, w.Body)
		}
		if rec, _ := s.record(t, "k"); rec.State != idempotency.Unknown || rec.Result.Body != nil {
			t.Errorf("%d is kept as %+v", status, rec)
		}
		again := send(s.handler, "k", "{}")
		if p := problem(t, again); p.Code != httpedge.CodeUnknown || again.Header().Get("Retry-After") == "" {
			t.Errorf("again: %d %s", again.Code, again.Body)
		}
		s.requireRuns(t, 1)
	}
}

// TestMiddleware_TimeoutHandler: a 503 may come before the work has ended, or from a proxy that lost its reply.
func TestMiddleware_TimeoutHandler(t *testing.T) {
	t.Parallel()
	s := &testService{store: memstore.New(memstore.Config{})}
	var paid atomic.Int64
	release, done := make(chan struct{}), make(chan struct{}, 3)
	slow := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-release // a provider that takes its time
		paid.Add(1)
		w.WriteHeader(http.StatusCreated)
		done <- struct{}{}
	})
	h := s.newHandler(t, httpedge.Config{}, http.TimeoutHandler(slow, time.Millisecond, "slow").ServeHTTP)
	for i := range 3 {
		if w := send(h, "k", "{}"); w.Code != 503 {
			t.Errorf("request %d: %d %s", i, w.Code, w.Body)
		}
	}
	close(release)
	for range s.effects.Load() {
		<-done
	}
	if n := paid.Load(); n != 1 {
		t.Errorf("paid %d times under one key", n)
	}
	if rec, _ := s.record(t, "k"); rec.State != idempotency.Unknown {
		t.Errorf("the key is %q", rec.State)
	}
}

func TestPeer_Fiber_AnyResponseIsCached(t *testing.T) {
	t.Parallel()
	status := 503
	s := newTestService(t, httpedge.Config{Classify: httpedge.Atomic}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
	})
	// a transaction rolled back leaves nothing: the key is free each time
	for _, status = range []int{503, 500, 502, 201} {
		if w := send(s.handler, "k", "{}"); w.Code != status || w.Header().Get("Idempotent-Replayed") != "" {
			t.Errorf("%d: %d %v", status, w.Code, w.Header())
		}
	}
	if w := send(s.handler, "k", "{}"); w.Code != 201 || w.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("then %d %v", w.Code, w.Header())
	}
}

func TestMiddleware_FinalRefusalIsReplayed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{402, 410, 422} {
		s := newTestService(t, httpedge.Config{}, respondWith(status, "declined"))
		send(s.handler, "k", "{}")
		w := send(s.handler, "k", "{}")
		s.requireRuns(t, 1)
		if w.Code != status || w.Body.String() != "declined" || w.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
		}
		if rec, _ := s.record(t, "k"); rec.State != idempotency.FailedReplayable ||
			rec.Result.Failure != fmt.Sprintf("http_%d", status) {
			t.Errorf("kept as %s, %q", rec.State, rec.Result.Failure)
		}
	}
}

// TestMiddleware_ClientHangsUp: the handler continues, and the retry gets its answer.
func TestMiddleware_ClientHangsUp(t *testing.T) {
	t.Parallel()
	began := make(chan struct{}, 1)
	var left <-chan struct{} // the request's own end
	s := newTestService(t, httpedge.Config{}, func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-left
		if err := r.Context().Err(); err != nil {
			t.Errorf("the handler's context has ended: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
	})
	served := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		left = r.Context().Done()
		s.handler.ServeHTTP(w, r)
		served <- struct{}{}
	}))
	defer server.Close()
	ctx, hangUp := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/things", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"X-Tenant": {"a"}, "Content-Type": {"application/json"}, "Idempotency-Key": {"k"}}
	go func() {
		<-began
		hangUp()
	}()
	if res, err := server.Client().Do(r); err == nil {
		_ = res.Body.Close()
		t.Fatal("the client has not hung up")
	}
	<-served
	if w := send(s.handler, "k", "{}"); w.Code != http.StatusCreated ||
		w.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("the retry: %d %s", w.Code, w.Body)
	}
	s.requireRuns(t, 1)
}

// TestMiddleware_FollowersGetTheRefusal: callers that waited get it, although it is not stored.
func TestMiddleware_FollowersGetTheRefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Config{})
		guard, err := guard.New(store, guard.Config{Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		release, ran := make(chan struct{}), 0
		h := httpedge.Middleware(guard, tenant, httpedge.Config{Edge: httpedge.Edge{Logger: quiet}})(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				ran++
				<-release
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, "want an amount")
			}))
		for range 5 {
			go func() {
				if w := send(h, "k", "{}"); w.Code != http.StatusBadRequest || w.Body.String() != "want an amount" {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			}()
		}
		synctest.Wait()
		close(release)
		synctest.Wait()
		if ran != 1 {
			t.Errorf("the handler ran %d times", ran)
		}
	})
}

// TestMiddleware_ResponseController: the handler can set deadlines, and cannot hijack the connection.
func TestMiddleware_ResponseController(t *testing.T) {
	t.Parallel()
	s := newTestService(t, httpedge.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		control := http.NewResponseController(w)
		if err := control.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("a deadline: %v", err)
		}
		if _, _, err := control.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("hijacking: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
	})
	server := httptest.NewServer(s.handler)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/things", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"X-Tenant": {"a"}, "Idempotency-Key": {"k"}}
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	s.requireRuns(t, 1)
}

// TestMiddleware_PanicValueIsNotLogged: it may contain the request.
func TestMiddleware_PanicValueIsNotLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	guard, err := guard.New(memstore.New(memstore.Config{}), guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := httpedge.Config{Edge: httpedge.Edge{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	h := httpedge.Middleware(guard, tenant, cfg)(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("card 4111") }))
	func() {
		defer func() { _ = recover() }()
		send(h, "k", "{}")
	}()
	if strings.Contains(log.String(), "4111") || !strings.Contains(log.String(), "panic=string") {
		t.Errorf("the log says: %s", log.String())
	}
}

func TestMiddleware_PanicReachesServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		classify func(int) outcome.Class
		state    idempotency.State
	}{"unknown": {nil, idempotency.Unknown}, "atomic": {httpedge.Atomic, ""}} {
		s := newTestService(t, httpedge.Config{Classify: c.classify}, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			panic(http.ErrAbortHandler)
		})
		got := func() (p any) {
			defer func() { p = recover() }()
			send(s.handler, "k", "{}")
			return nil
		}()
		if got != http.ErrAbortHandler {
			t.Errorf("%s: the server sees %v", name, got)
		}
		if rec, _ := s.record(t, "k"); rec.State != c.state {
			t.Errorf("%s: %q, want %q", name, rec.State, c.state)
		}
	}
}

// TestPeer_PowertoolsPY3821_MismatchIsRefused (also ts#1502, java#2260, fiber): in every state of the first command.
func TestPeer_PowertoolsPY3821_MismatchIsRefused(t *testing.T) {
	t.Parallel()
	for _, status := range []int{201, 402, 500} {
		s := newTestService(t, httpedge.Config{}, respondWith(status, "the first one's answer"))
		send(s.handler, "k", `{"amount":1}`)
		for what, w := range map[string]*httptest.ResponseRecorder{
			"body":    send(s.handler, "k", `{"amount":2}`),
			"type":    send(s.handler, "k", `{"amount":1}`, "Content-Type", "text/plain"),
			"a float": send(s.handler, "k", `{"amount":1.0}`),
		} {
			p := problem(t, w)
			if w.Code != 422 || p.Code != httpedge.CodeKeyReused || p.State == "" ||
				strings.Contains(w.Body.String(), "first one") {
				t.Errorf("another %s after %d: %d %s", what, status, w.Code, w.Body)
			}
		}
		s.requireRuns(t, 1)
	}
}

// TestPeer_Fiber_NoFingerprint: path and query belong to the command if one pattern matches many.
func TestPeer_Fiber_NoFingerprint(t *testing.T) {
	t.Parallel()
	s := newTestService(t, httpedge.Config{Operation: func(*http.Request) string { return "POST /things" }}, echo)
	for i, path := range []string{
		"/accounts/1/pay?a=1&b=2", "/accounts/2/pay?a=1&b=2", "/accounts/1/pay?a=2&b=2",
		"/accounts/1/pay?b=2&a=1",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader("{}"))
		r.Header.Set("X-Tenant", "a")
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		if want := []int{201, 422, 422, 201}[i]; w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
	s.requireRuns(t, 1)
}

// TestPeer_Devlink1195_KeysOfTenantsDiffer (also devlink#773, and fiber, whose keys have no scope): a tenant neither
// collides with another's key, nor sees its answer, nor waits for it.
func TestPeer_Devlink1195_KeysOfTenantsDiffer(t *testing.T) {
	t.Parallel()
	inside, leave := make(chan struct{}), make(chan struct{})
	s := newTestService(t, httpedge.Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Tenant") == "a" {
			close(inside)
			<-leave
		}
		_, _ = io.WriteString(w, r.Header.Get("X-Tenant"))
	})
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- send(s.handler, "k", "{}") }()
	<-inside
	// The first is at work with this key; with another body, too, the second is served and told nothing.
	for range 2 {
		if w := send(s.handler, "k", `{"other":1}`, "X-Tenant", "b"); w.Code != 200 || w.Body.String() != "b" {
			t.Errorf("the second tenant: %d %s", w.Code, w.Body)
		}
	}
	close(leave)
	if w := <-first; w.Body.String() != "a" || w.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("the first tenant: %d %s", w.Code, w.Body)
	}
	s.requireRuns(t, 2)
}

// TestMiddleware_OneKeyForTwoOperations: the two requests are independent.
func TestMiddleware_OneKeyForTwoOperations(t *testing.T) {
	t.Parallel()
	s := newTestService(t, httpedge.Config{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /a/{id}", s.handler)
	mux.Handle("POST /b/{id}", s.handler)
	for path, want := range map[string]int{"/a/1": 200, "/b/1": 200} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
		r.Header.Set("X-Tenant", "a")
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code != want || w.Body.String() != path {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if _, found, _ := s.store.Get(t.Context(), idempotency.Key{
		Tenant: "a", Operation: "POST /a/{id}",
		Value: "k",
	}); !found {
		t.Error("the operation is not the pattern")
	}
}

// TestPeer_Fiber_TheLockIsInMemory: a concurrent request to another process is refused, too.
func TestPeer_Fiber_TheLockIsInMemory(t *testing.T) {
	t.Parallel()
	inside, leave := make(chan struct{}), make(chan struct{})
	s := newTestService(t, httpedge.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		close(inside)
		<-leave
		w.WriteHeader(201)
	})
	other := s.newHandler(t, httpedge.Config{}, echo)
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- send(s.handler, "k", "{}") }()
	<-inside
	w := send(other, "k", "{}")
	if p := problem(t, w); w.Code != 409 || p.Code != httpedge.CodeInProgress || w.Header().Get("Retry-After") == "" {
		t.Errorf("while it works: %d %s", w.Code, w.Body)
	}
	if w := send(other, "k", `{"other":1}`); w.Code != 422 {
		t.Errorf("another command while it works: %d", w.Code)
	}
	close(leave)
	if w := <-first; w.Code != 201 {
		t.Errorf("the first: %d", w.Code)
	}
	if w := send(other, "k", "{}"); w.Code != 201 || w.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("afterwards: %d", w.Code)
	}
	s.requireRuns(t, 1)
}

func TestMiddleware_ConcurrentRequestsHaveOneEffect(t *testing.T) {
	t.Parallel()
	s := newTestService(t, httpedge.Config{}, echo)
	other := s.newHandler(t, httpedge.Config{}, echo)
	var wg sync.WaitGroup
	var replayed, first, busy atomic.Int64
	for i := range 100 {
		wg.Go(func() {
			h := s.handler
			if i%2 == 0 {
				h = other
			}
			switch w := send(h, "k", "{}"); {
			case w.Code == 201 && w.Body.String() == "made of {}" && w.Header().Get("Idempotent-Replayed") == "true":
				replayed.Add(1)
			case w.Code == 201 && w.Body.String() == "made of {}":
				first.Add(1)
			case w.Code == 409:
				busy.Add(1)
			default:
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	wg.Wait()
	s.requireRuns(t, 1)
	if first.Load() != 1 || first.Load()+replayed.Load()+busy.Load() != 100 {
		t.Errorf("%d first, %d replayed, %d in progress", first.Load(), replayed.Load(), busy.Load())
	}
}

func TestMiddleware_UnguardedRequests(t *testing.T) {
	t.Parallel()
	s := newTestService(t, httpedge.Config{Optional: true}, echo)
	for _, method := range []string{
		http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut,
		http.MethodDelete,
	} {
		for range 2 {
			r := httptest.NewRequestWithContext(t.Context(), method, "/things", nil)
			r.Header.Set("Idempotency-Key", "k")
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			if w.Code != 201 || w.Header().Get("Idempotent-Replayed") != "" {
				t.Errorf("%s: %d %v", method, w.Code, w.Header())
			}
		}
	}
	s.requireRuns(t, 10)
	send(s.handler, "", "{}")
	send(s.handler, "", "{}", "X-Tenant", "") // whoever it is: the handler decides
	s.requireRuns(t, 12)
	if w := send(s.handler, " ", "{}"); w.Code != 400 {
		t.Errorf("an empty key is no missing one: %d", w.Code)
	}
}

// TestMiddleware_StreamIsNotKept: the client gets the first part before the handler continues, the request is done
// once, and the retry gets CodeNotKept.
func TestMiddleware_StreamIsNotKept(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	s := newTestService(t, httpedge.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/things/1")
		_, _ = io.WriteString(w, "one ")
		w.(http.Flusher).Flush()
		<-read
		_, _ = io.WriteString(w, "two")
	})
	server := httptest.NewServer(s.handler)
	defer server.Close()
	post := func() *http.Response {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/things", nil)
		r.Header.Set("X-Tenant", "a")
		r.Header.Set("Idempotency-Key", "k")
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	res := post()
	head := make([]byte, 4)
	if _, err := io.ReadFull(res.Body, head); err != nil || string(head) != "one " {
		t.Fatalf("%q, %v", head, err)
	}
	close(read)
	rest, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || string(rest) != "two" {
		t.Errorf("%q, %v", rest, err)
	}
	again := post()
	defer again.Body.Close()
	var p httpedge.Problem
	if err := json.NewDecoder(again.Body).Decode(&p); err != nil || p.Code != httpedge.CodeNotKept ||
		p.FirstStatus != 200 || p.Resource != "/things/1" {
		t.Errorf("again: %+v, %v", p, err)
	}
	s.requireRuns(t, 1)
}

// TestMiddleware_Trailers: the first caller gets the handler's trailers, of a stored answer and of a stream.
func TestMiddleware_Trailers(t *testing.T) {
	t.Parallel()
	for _, flush := range []bool{false, true} {
		s := newTestService(t, httpedge.Config{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = w.Write([]byte("body"))
			if flush {
				_ = http.NewResponseController(w).Flush()
			}
			w.Header().Set("X-Sum", "42")
			w.Header().Set(http.TrailerPrefix+"X-Late", "1")
			w.Header().Set("X-Unannounced", "1")
		})
		server := httptest.NewServer(s.handler)
		defer server.Close()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/payments", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		req.Header.Set("X-Tenant", "a")
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || string(body) != "body" || len(res.Trailer) != 2 || res.Trailer.Get("X-Sum") != "42" ||
			res.Trailer.Get("X-Late") != "1" {
			t.Errorf("flushed %v: %d %q, %v, %v", flush, res.StatusCode, body, res.Trailer, err)
		}
	}
}

// TestMiddleware_Older: a release with another fingerprint recognizes the requests of the one before.
func TestMiddleware_Older(t *testing.T) {
	t.Parallel()
	version := func(v int16) func(*http.Request, []byte) idempotency.Fingerprint {
		return func(_ *http.Request, body []byte) idempotency.Fingerprint {
			return idempotency.Fingerprint{Version: v, Sum: sha256.Sum256(body)}
		}
	}
	s := newTestService(t, httpedge.Config{Fingerprint: version(1)}, echo)
	if w := send(s.handler, "k", "100"); w.Code != 201 {
		t.Fatal(w.Code, w.Body)
	}
	after := s.newHandler(t, httpedge.Config{
		Fingerprint: version(2), Older: func(r *http.Request, body []byte) []idempotency.Fingerprint {
			return []idempotency.Fingerprint{version(1)(r, body)}
		},
	}, echo)
	if w := send(after, "k", "100"); w.Code != 201 || w.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := send(after, "k", "200"); w.Code != 422 {
		t.Errorf("another command: %d %s", w.Code, w.Body)
	}
	s.requireRuns(t, 1)
}

// TestMiddleware_KeyOutsideWindow: a client must not take a key that is too old for a request that was not done.
func TestMiddleware_KeyOutsideWindow(t *testing.T) {
	t.Parallel()
	for code, refusal := range map[httpedge.Code]error{
		httpedge.CodeKeyOutsideWindow: fmt.Errorf("validate: %w", keys.ErrOutsideWindow),
		httpedge.CodeKeyInvalid:       idempotency.ErrInvalidKey,
		httpedge.CodeBadRequest:       errors.New("no amount"),
	} {
		s := newTestService(t, httpedge.Config{
			Validate: func(*http.Request, []byte) error { return refusal },
		}, echo)
		if w := send(s.handler, "k", "100"); w.Code != 400 || problem(t, w).Code != code {
			t.Errorf("%d %s, want %s", w.Code, w.Body, code)
		}
	}
}

func TestMiddleware_LargeAnswerIsNotKept(t *testing.T) {
	t.Parallel()
	cfg := httpedge.Config{Edge: httpedge.Edge{MaxBody: 10}}
	s := newTestService(t, cfg, func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "12345")
		}
	})
	if w := send(s.handler, "k", "{}"); w.Body.String() != "123451234512345" {
		t.Errorf("%q", w.Body)
	}
	if p := problem(t, send(s.handler, "k", "{}")); p.Code != httpedge.CodeNotKept {
		t.Errorf("again: %+v", p)
	}
	if rec, _ := s.record(t, "k"); rec.State != idempotency.Completed || len(rec.Result.Body) != 0 {
		t.Errorf("kept: %+v", rec)
	}
	s.requireRuns(t, 1)
}

// TestMiddleware_Redact: the first answer is redacted like its replay.
func TestMiddleware_Redact(t *testing.T) {
	t.Parallel()
	s := newTestService(t, httpedge.Config{Edge: httpedge.Edge{Redact: func(r *idempotency.Result) {
		r.Body = []byte(strings.ReplaceAll(string(r.Body), "4111", "****"))
	}}}, echo)
	first, again := send(s.handler, "k", `"4111 22"`), send(s.handler, "k", `"4111 22"`)
	if first.Body.String() != `made of "**** 22"` || again.Body.String() != first.Body.String() {
		t.Errorf("%s, then %s", first.Body, again.Body)
	}
	if rec, _ := s.record(t, "k"); strings.Contains(string(rec.Result.Body), "4111") {
		t.Errorf("kept: %s", rec.Result.Body)
	}
}

func TestMiddleware_HandlerGetsWholeRequest(t *testing.T) {
	t.Parallel()
	s := newTestService(t, httpedge.Config{}, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.Header().Set("X-Length", fmt.Sprint(r.ContentLength))
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusAccepted)
		w.WriteHeader(http.StatusTeapot) // too late, as everywhere
		w.Header().Set("X-Late", "1")
		_, _ = fmt.Fprintf(w, "%s %v", body, err)
	})
	server := httptest.NewServer(s.handler)
	defer server.Close()
	var hints []int
	ctx := httptrace.WithClientTrace(t.Context(),
		&httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			hints = append(hints, code)
			return nil
		}})
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("a body"))
	r.Header.Set("X-Tenant", "a")
	r.Header.Set("Idempotency-Key", "k")
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 202 || string(body) != "a body <nil>" || res.Header.Get("X-Length") != "6" ||
		res.Header.Get("X-Late") != "" {
		t.Errorf("%d %s %v, %v", res.StatusCode, body, res.Header, err)
	}
	if len(hints) != 1 || hints[0] != http.StatusEarlyHints {
		t.Errorf("hints %v", hints)
	}
}

// badFinishStore is a store whose Finish fails.
type badFinishStore struct {
	*memstore.Store
	err error
}

// Finish is of store.Store.
func (f badFinishStore) Finish(context.Context, store.Lease, idempotency.Result, idempotency.Retention) error {
	return f.err
}

// TestMiddleware_OvertakenOwnerDoesNotAnswer: the other owner's answer counts.
func TestMiddleware_OvertakenOwnerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	w := send(handlerWithBadFinish(t, store.ErrLeaseLost, echo), "k", "{}")
	if p := problem(t, w); p.Code != httpedge.CodeUnknown || w.Header().Get("Location") != "" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

// overtakenStore is a store in which another owner has taken the key and ended it when Finish is called.
type overtakenStore struct{ *memstore.Store }

// Finish is of store.Store.
func (o overtakenStore) Finish(ctx context.Context, l store.Lease, res idempotency.Result,
	keep idempotency.Retention,
) error {
	if err := o.MarkUnknown(ctx, l, "", 0); err != nil {
		return err
	}
	taken, err := o.Recover(ctx, store.RecoverOptions{Limit: 1, Lease: time.Minute, Token: "other"})
	if err != nil || len(taken) != 1 {
		return fmt.Errorf("%v %w", taken, err)
	}
	other := idempotency.Result{Code: http.StatusAccepted, Body: []byte("of the other")}
	return errors.Join(o.Store.Finish(ctx, taken[0].Lease, other, keep), o.Store.Finish(ctx, l, res, keep))
}

// TestMiddleware_OvertakenOwnerReturnsRecorded: not its own handler's answer.
func TestMiddleware_OvertakenOwnerReturnsRecorded(t *testing.T) {
	t.Parallel()
	guard, err := guard.New(overtakenStore{memstore.New(memstore.Config{})}, guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h := httpedge.Middleware(guard, tenant, httpedge.Config{Edge: httpedge.Edge{Logger: quiet}})(
		respondWith(http.StatusPaymentRequired, "declined"))
	for range 2 {
		if w := send(h, "k", "{}"); w.Code != http.StatusAccepted || w.Body.String() != "of the other" ||
			w.Header().Get(httpedge.HeaderReplayed) != "true" {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
	}
}

func handlerWithBadFinish(t *testing.T, refused error, do http.HandlerFunc) http.Handler {
	t.Helper()
	guard, err := guard.New(badFinishStore{memstore.New(memstore.Config{}), refused},
		guard.Config{Lease: time.Minute, RecordTimeout: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return httpedge.Middleware(guard, tenant, httpedge.Config{Edge: httpedge.Edge{Logger: quiet}})(do)
}

// TestMiddleware_UnrecordedRefusalIsUnknown: a refusal that may not be recorded is not answered, because the next
// attempt may succeed.
func TestMiddleware_UnrecordedRefusalIsUnknown(t *testing.T) {
	t.Parallel()
	away := errors.New("the store does not answer")
	if w := send(handlerWithBadFinish(t, away, echo), "k", "{}"); w.Code != http.StatusCreated {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w := send(handlerWithBadFinish(t, away, respondWith(http.StatusPaymentRequired, "declined")), "k", "{}")
	if p := problem(t, w); p.Code != httpedge.CodeUnknown || strings.Contains(w.Body.String(), "declined") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestCanonical(t *testing.T) {
	t.Parallel()
	of := func(contentType, body string) idempotency.Fingerprint {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		r.Header.Set("Content-Type", contentType)
		return httpedge.Canonical(r, []byte(body))
	}
	const asJSON = "application/json; charset=utf-8"
	for _, same := range [][2]string{
		{`{"a":1,"b":[1,{"c":null,"d":"x"}]}`, "{\n\"b\": [1, {\"d\": \"\\u0078\", \"c\": null}], \"a\": 1 }"},
		{``, ``},
		{`"x"`, ` "x" `},
	} {
		if of(asJSON, same[0]) != of(asJSON, same[1]) {
			t.Errorf("%s and %s differ", same[0], same[1])
		}
	}
	for _, other := range [][2]string{
		{`[1,2]`, `[2,1]`},
		{`1`, `1.0`},
		{`"1"`, `1`},
		{`null`, ``},
		{`{"a":1}`, `{"a":1,"a":1}`},
		{`{"a":1,"a":2}`, `{"a":2}`},
		{`9007199254740992`, `9007199254740993`},
		{`"\ud800"`, `"\ud801"`},
		{"\"\xff\"", "\"\xfe\""},
		{`{} {}`, `{}`},
		{`{`, `{ `},
	} {
		if of(asJSON, other[0]) == of(asJSON, other[1]) {
			t.Errorf("%s and %s are the same", other[0], other[1])
		}
	}
	if of("text/plain", "{ }") == of("text/plain", "{}") {
		t.Error("white space of a text does not count")
	}
}

// FuzzCanonical: what is the same to the fingerprint is the same to whoever reads it as JSON.
func FuzzCanonical(f *testing.F) {
	for _, s := range [][2]string{
		{`{"a":1}`, ` {"a":1}`},
		{`[[[`, `[[[ `},
		{`{"a":1,"a":2}`, `{"a":2}`},
		{"\xff", "\xfe"},
		{`"\ud800"`, `"\ud801"`},
		{`1e999`, `1e998`},
		{``, `null`},
	} {
		f.Add([]byte(s[0]), []byte(s[1]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		r.Header.Set("Content-Type", "application/json")
		if httpedge.Canonical(r, a) != httpedge.Canonical(r, b) || bytes.Equal(a, b) {
			return
		}
		read := func(body []byte) (v any) {
			dec := json.NewDecoder(bytes.NewReader(body))
			dec.UseNumber()
			if err := dec.Decode(&v); err != nil {
				t.Errorf("%q and %q have one fingerprint, and one is no JSON: %v", a, b, err)
			}
			return v
		}
		if !reflect.DeepEqual(read(a), read(b)) {
			t.Errorf("%q and %q have one fingerprint", a, b)
		}
	})
}

// TestCanonical_IsStable: a change would refuse the retries of requests that an earlier release recorded.
func TestCanonical_IsStable(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodPost, "/a%20b?y=2&x=1", nil)
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	got := httpedge.Canonical(r, []byte(`{"b": 1.50, "a": ["<", null]}`))
	if sum := hex.EncodeToString(got.Sum[:]); got.Version != 16384 ||
		sum != "397377f246059864b419933c5b23ec965333bfcb5f80d5bbecfd9688a29984a5" {
		t.Errorf("version %d, %s", got.Version, sum)
	}
}
