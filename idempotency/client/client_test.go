package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/effectonce/effectonce/idempotency/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// step is the server's or the network's reaction to one attempt.
type step struct {
	status int
	header string // Name: value
	body   string
	err    error
	hang   bool // until the attempt's context ends
}

// script is a Base that answers by its steps, and repeats the last one.
type script struct {
	steps  []step
	keys   []string
	bodies []string
	times  []time.Time
}

// RoundTrip is of http.RoundTripper.
func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(b)
	}
	s.keys, s.bodies, s.times = append(s.keys, r.Header.Get("Idempotency-Key")), append(s.bodies, body),
		append(s.times, time.Now())
	step := s.steps[min(len(s.keys), len(s.steps))-1]
	if step.hang {
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	if step.err != nil {
		return nil, step.err
	}
	res := &http.Response{
		StatusCode: step.status, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(step.body)), Request: r,
	}
	if name, value, ok := strings.Cut(step.header, ": "); ok {
		res.Header.Set(name, value)
	}
	if strings.HasPrefix(step.body, "{") {
		res.Header.Set("Content-Type", "application/problem+json")
	}
	return res, nil
}

var (
	refused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	reset   = &net.OpError{Op: "read", Err: errors.New("connection reset")}
)

func post(t *testing.T, ctx context.Context, s *script, cfg client.Config) (*http.Response, string, error) {
	t.Helper()
	cfg.Base = s
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://payments.test/payments",
		io.NopCloser(strings.NewReader("the body")))
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: client.New(cfg)}).Do(r)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body), nil
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	inProgress := step{status: 409, header: "Retry-After: 1", body: `{"code":"IDEMPOTENCY_REQUEST_IN_PROGRESS"}`}
	reused := step{status: 422, body: `{"code":"IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"}`}
	for name, c := range map[string]struct {
		steps    []step
		attempts int
		want     client.Verdict
	}{
		"done at once":             {[]step{{status: 201}}, 1, client.Done},
		"done after a busy server": {[]step{{status: 503}, {status: 500}, {status: 201}}, 3, client.Done},
		"done after a lost answer": {[]step{{err: reset}, {status: 201}}, 2, client.Done},
		"in progress, then done":   {[]step{inProgress, {status: 201}}, 2, client.Done},
		"accepted, then done": {
			[]step{{status: 202, header: "Retry-After: 1"}, {status: 201}},
			2,
			client.Done,
		},
		"refused by the business":      {[]step{{status: 402}}, 1, client.NotDone},
		"refused, after a lost answer": {[]step{{err: reset}, {status: 402}}, 2, client.Unknown},
		"refused by the first attempt": {
			[]step{{err: reset}, {status: 402, header: "Idempotent-Replayed: true"}}, 2, client.NotDone,
		},
		"a conflict without a problem":  {[]step{{status: 409}}, 1, client.NotDone},
		"another command, by its key":   {[]step{reused}, 1, client.Unknown},
		"another release's fingerprint": {[]step{{err: reset}, reused}, 2, client.Unknown},
		"an old key": {
			[]step{{status: 400, body: `{"code":"IDEMPOTENCY_KEY_OUTSIDE_WINDOW"}`}}, 1, client.Unknown,
		},
		"a conflict, after a 502":          {[]step{{status: 502}, {status: 409}}, 2, client.Unknown},
		"gone, after a 502":                {[]step{{status: 502}, {status: 410}}, 2, client.Unknown},
		"a precondition, after a 502":      {[]step{{status: 502}, {status: 412}}, 2, client.Unknown},
		"not valid, after a 502":           {[]step{{status: 502}, {status: 422}}, 2, client.Unknown},
		"a dependency, after a 502":        {[]step{{status: 502}, {status: 424}}, 2, client.Unknown},
		"not allowed":                      {[]step{{status: 401}}, 1, client.NotDone},
		"not allowed, after a lost answer": {[]step{{err: reset}, {status: 401}}, 2, client.Unknown},
		"not allowed, after a 500":         {[]step{{status: 500}, {status: 403}}, 2, client.Unknown},
		"connection refused":               {[]step{{err: refused}}, 4, client.NotDone},
		"connection refused but once": {
			[]step{{err: refused}, {err: reset}, {err: refused}},
			4,
			client.Unknown,
		},
		"no answer at all":                       {[]step{{hang: true}}, 4, client.Unknown},
		"too many requests":                      {[]step{{status: 429}}, 4, client.NotDone},
		"too many requests, after a lost answer": {[]step{{err: reset}, {status: 429}}, 4, client.Unknown},
		"always busy":                            {[]step{{status: 503}}, 4, client.Unknown},
		"always in progress":                     {[]step{inProgress}, 4, client.Unknown},
		"always unknown": {
			[]step{{status: 503, body: `{"code":"IDEMPOTENCY_OUTCOME_UNKNOWN"}`}}, 4, client.Unknown,
		},
		"done, the answer is not kept": {
			[]step{{err: reset}, {status: 410, body: `{"code":"IDEMPOTENCY_RESULT_EXPIRED","first_status":201}`}},
			2,
			client.Done,
		},
		"done, a problem without status": {
			[]step{{status: 410, body: `{"code":"IDEMPOTENCY_RESULT_EXPIRED"}`}},
			1, client.Done,
		},
		"refused, a problem without status": {
			[]step{{status: 410, body: `{"code":"IDEMPOTENCY_RESULT_EXPIRED","failure":"card_declined"}`}},
			1,
			client.NotDone,
		},
		"done, and deleted since": {
			[]step{{err: reset}, {status: 410, body: `{"code":"RESOURCE_GONE","first_status":201}`}}, 2, client.Done,
		},
		"a proxy's 404, after a lost answer": {[]step{{err: reset}, {status: 404}}, 2, client.Unknown},
		"not found, after a lost answer": {
			[]step{{err: reset}, {status: 404, body: `{"code":"NO_SUCH_ACCOUNT"}`}}, 2, client.Unknown,
		},
		"refused, the answer is not kept": {
			[]step{{status: 410, body: `{"code":"IDEMPOTENCY_RESULT_EXPIRED","first_status":402}`}}, 1, client.NotDone,
		},
		"a problem that cannot be read": {
			[]step{{status: 410, body: `{"code":"IDEMPOTENCY_RESULT_EXPI`}},
			1,
			client.Unknown,
		},
		"a replayed redirect": {
			[]step{{status: 303, header: "Idempotent-Replayed: true"}},
			1,
			client.Done,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &script{steps: c.steps}
				res, body, err := post(t, t.Context(), s, client.Config{MaxAttempts: 4})
				if got := client.Outcome(res, err); got != c.want || len(s.keys) != c.attempts {
					t.Errorf("%v after %d attempts; want %v after %d (%v)", got, len(s.keys), c.want, c.attempts, err)
				}
				if len(slices.Compact(s.keys)) != 1 || s.keys[0] == "" {
					t.Errorf("keys %q: want one for the intent", s.keys)
				}
				if len(slices.Compact(s.bodies)) != 1 || s.bodies[0] != "the body" {
					t.Errorf("bodies %q", s.bodies)
				}
				if last := c.steps[len(c.steps)-1]; err == nil && body != last.body {
					t.Errorf("the answer's body is %q, want %q", body, last.body)
				}
				var e *client.Error
				if err != nil && (!errors.As(err, &e) || e.Key != s.keys[0] || e.Attempts != c.attempts) {
					t.Errorf("error %+v", e)
				}
				if res != nil && client.Key(res) != s.keys[0] {
					t.Errorf("key %q, want %q", client.Key(res), s.keys[0])
				}
			})
		})
	}
}

func TestEachIntentHasItsKey(t *testing.T) {
	t.Parallel()
	s := &script{steps: []step{{status: 201}}}
	for range 3 {
		if _, _, err := post(t, t.Context(), s, client.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	if s.keys[0] == s.keys[1] || s.keys[1] == s.keys[2] {
		t.Errorf("keys %q", s.keys)
	}
}

func TestCallersKeyIsKept(t *testing.T) {
	t.Parallel()
	s := &script{steps: []step{{status: 204}}}
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		r, _ := http.NewRequestWithContext(t.Context(), method, "http://payments.test/", nil)
		r.Header.Set("Idempotency-Key", "stored-before")
		if _, err := client.New(client.Config{Base: s}).RoundTrip(r); err != nil {
			t.Fatal(err)
		}
	}
	if s.keys[0] != "stored-before" || s.keys[1] != "stored-before" {
		t.Errorf("keys %q", s.keys)
	}
}

func TestOtherMethodsAreNotRetried(t *testing.T) {
	t.Parallel()
	s := &script{steps: []step{{status: 503}}}
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://payments.test/", nil)
	res, err := client.New(client.Config{Base: s}).RoundTrip(r)
	if err != nil || res.StatusCode != 503 || len(s.keys) != 1 || s.keys[0] != "" {
		t.Errorf("%v, %v, keys %q", res, err, s.keys)
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{steps: []step{{status: 503, header: "Retry-After: 30"}, {status: 201}}}
		if _, _, err := post(t, t.Context(), s, client.Config{}); err != nil {
			t.Fatal(err)
		}
		if waited := s.times[1].Sub(s.times[0]); waited != 30*time.Second {
			t.Errorf("waited %v of 30 s", waited)
		}
	})
}

func TestMaxRetryAfter(t *testing.T) {
	t.Parallel()
	s := &script{steps: []step{{status: 503, header: "Retry-After: 3600"}}}
	res, _, err := post(t, t.Context(), s, client.Config{})
	if err != nil || res.StatusCode != 503 || len(s.keys) != 1 {
		t.Errorf("%v, %v after %d attempts", res, err, len(s.keys))
	}
}

// TestDelaysGrowWithJitter: clients of a restarted server must not retry at the same time.
func TestDelaysGrowWithJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := map[time.Duration]bool{}
		for range 20 {
			s := &script{steps: []step{{status: 503}}}
			if _, _, err := post(t, t.Context(), s, client.Config{
				MaxAttempts: 5, MinDelay: time.Second,
				MaxDelay: 4 * time.Second,
			}); err != nil {
				t.Fatal(err)
			}
			first[s.times[1].Sub(s.times[0])] = true
			for i, middle := range []time.Duration{1000, 1500, 2250, 3375} {
				if delay := s.times[i+1].Sub(s.times[i]).Round(time.Millisecond); delay < middle*time.Millisecond/2 ||
					delay > middle*time.Millisecond*3/2 {
					t.Errorf("delay %d is %v, want %v plus or minus a half", i, delay, middle*time.Millisecond)
				}
			}
		}
		if len(first) < 10 {
			t.Errorf("20 first delays have %d lengths", len(first))
		}
	})
}

// TestDeadlineWithinDelay: the last answer is returned instead of a timeout.
func TestDeadlineWithinDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		s := &script{steps: []step{{status: 503, header: "Retry-After: 20"}}}
		res, _, err := post(t, ctx, s, client.Config{})
		if err != nil || res.StatusCode != 503 || ctx.Err() != nil {
			t.Errorf("%v, %v", res, err)
		}
		hang := &script{steps: []step{{hang: true}}}
		_, _, err = post(t, ctx, hang, client.Config{AttemptTimeout: -1})
		if !errors.Is(err, context.DeadlineExceeded) || client.Outcome(nil, err) != client.Unknown {
			t.Errorf("%v", err)
		}
	})
}

func TestTooLongBodyIsNotSent(t *testing.T) {
	t.Parallel()
	s := &script{steps: []step{{status: 201}}}
	_, _, err := post(t, t.Context(), s, client.Config{MaxBody: 3})
	if err == nil || client.Outcome(nil, err) != client.NotDone || len(s.keys) != 0 {
		t.Errorf("%v after %d attempts", err, len(s.keys))
	}
}

// TestRealServer: a server that closes the first connections, then one that does not listen.
func TestRealServer(t *testing.T) {
	t.Parallel()
	var attempts atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if attempts.Add(1) < 3 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.Copy(w, r.Body)
		_, _ = io.WriteString(w, strconv.Itoa(len(r.Header.Get("Idempotency-Key"))))
	}))
	base := &http.Transport{}
	c := &http.Client{Transport: client.New(client.Config{Base: base, MinDelay: time.Millisecond, MaxAttempts: 4})}
	res, err := c.Post(server.URL, "text/plain", strings.NewReader("again "))
	if err != nil || client.Outcome(res, err) != client.Done {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if string(body) != "again 36" || attempts.Load() != 3 {
		t.Errorf("%q after %d attempts", body, attempts.Load())
	}
	base.CloseIdleConnections()
	server.Close()
	res, err = c.Post(server.URL, "text/plain", strings.NewReader(""))
	if err == nil {
		_ = res.Body.Close()
	}
	if client.Outcome(res, err) != client.NotDone {
		t.Errorf("no server: %v", err)
	}
}

// TestNetHTTPResends: net/http treats a request with a key as idempotent and resends it, so the first sending may have
// been served.
func TestNetHTTPResends(t *testing.T) {
	t.Parallel()
	for name, stops := range map[string]bool{"a refusal": false, "the server stops": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var served atomic.Int64
			var server *httptest.Server
			server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch served.Add(1) {
				case 1: // leaves a connection for reuse
				case 2: // executes the request and closes the connection
					if stops {
						_ = server.Listener.Close()
					}
					conn, _, err := w.(http.Hijacker).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					_ = conn.Close()
				default:
					w.WriteHeader(http.StatusConflict)
				}
			}))
			defer server.Close()
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			c := &http.Client{Transport: client.New(client.Config{Base: base, MaxAttempts: 1})}
			for _, want := range []client.Verdict{client.Done, client.Unknown} {
				res, err := c.Post(server.URL, "text/plain", strings.NewReader("pay"))
				if err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
				if got := client.Outcome(res, err); got != want {
					t.Errorf("%q after %d sendings (%v, %v): want %q", got, served.Load(), res, err, want)
				}
			}
		})
	}
}

// TestRedirectIsTheSameIntent: it keeps the Transport's key and the uncertainty of earlier attempts; with another
// method its answer proves nothing.
func TestRedirectIsTheSameIntent(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]client.Verdict{
		http.StatusTemporaryRedirect: client.Unknown,
		http.StatusFound:             client.Unknown,
	} {
		s := &script{steps: []step{{err: reset}, {status: status, header: "Location: /elsewhere"}, {status: 401}}}
		if status == http.StatusFound {
			s.steps = []step{{status: status, header: "Location: /login"}, {status: 200}}
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://payments.test/payments",
			strings.NewReader("the body"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: client.New(client.Config{Base: s, MinDelay: time.Millisecond})}).Do(r)
		if got := client.Outcome(res, err); got != want || len(slices.Compact(s.keys)) != 1 {
			t.Errorf("%d: %q with keys %q (%v): want %q with one key", status, got, s.keys, err, want)
		}
	}
}

func TestOutcomeWithoutTransport(t *testing.T) {
	t.Parallel()
	replayed := http.Header{"Idempotent-Replayed": {"true"}}
	for _, c := range []struct {
		res  *http.Response
		want client.Verdict
	}{
		{&http.Response{StatusCode: 201}, client.Done},
		{&http.Response{StatusCode: 402}, client.Unknown},
		{&http.Response{StatusCode: 402, Header: replayed}, client.NotDone},
		{&http.Response{StatusCode: 303}, client.Unknown},
	} {
		if got := client.Outcome(c.res, nil); got != c.want {
			t.Errorf("%d %v: %q, want %q", c.res.StatusCode, c.res.Header, got, c.want)
		}
	}
}
