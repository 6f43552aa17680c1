package httpedge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/client"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/keys"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

var quiet = slog.New(slog.DiscardHandler)

func write(e httpedge.Edge, res idempotency.Result, err error) *httptest.ResponseRecorder {
	e.Logger = quiet
	w := httptest.NewRecorder()
	e.Write(w, res, err)
	return w
}

func problem(t *testing.T, w *httptest.ResponseRecorder) httpedge.Problem {
	t.Helper()
	var p httpedge.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil ||
		w.Header().Get("Content-Type") != "application/problem+json" {
		t.Fatalf("no problem: %v %v %q", err, w.Header(), w.Body)
	}
	if p.Status != w.Code || p.Title == "" || p.Type == "" || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("problem %+v with status %d and %v", p, w.Code, w.Header())
	}
	return p
}

func TestWrite_CodesAndStatuses(t *testing.T) {
	t.Parallel()
	_, noKey := httpedge.Key(&http.Request{Header: http.Header{}})
	_, badKey := httpedge.Key(&http.Request{Header: http.Header{"Idempotency-Key": {""}}})
	types := map[string]httpedge.Code{}
	for name, c := range map[string]struct {
		err        error
		status     int
		code       httpedge.Code
		retryAfter string
	}{
		"missing":   {noKey, 400, httpedge.CodeKeyMissing, ""},
		"malformed": {badKey, 400, httpedge.CodeKeyInvalid, ""},
		"an old key": {
			keys.Window{}.CheckV7("01890a5d-ac96-774b-bcce-b302099a8057"), 400,
			httpedge.CodeKeyOutsideWindow, "",
		},
		"mismatch": {
			&idempotency.MismatchError{State: idempotency.Completed}, 422, httpedge.CodeKeyReused,
			"",
		},
		"in progress": {
			&idempotency.InProgressError{RetryAfter: time.Minute}, 409, httpedge.CodeInProgress,
			"2",
		},
		"in progress, nearly": {
			&idempotency.InProgressError{RetryAfter: time.Millisecond}, 409,
			httpedge.CodeInProgress, "1",
		},
		"unknown": {
			&idempotency.UnknownError{Stage: idempotency.ProviderRequestSent}, 503,
			httpedge.CodeUnknown, "15",
		},
		"unknown, a person": {&idempotency.UnknownError{Stuck: true}, 503, httpedge.CodeUnknown, ""},
		"lease lost":        {store.ErrLeaseLost, 503, httpedge.CodeUnknown, "15"},
		"outcome unknown":   {outcome.Unknown(errors.New("secret")), 503, httpedge.CodeUnknown, "15"},
		"expired":           {&idempotency.ExpiredError{Code: 201, Resource: "p1"}, 410, httpedge.CodeExpired, ""},
		"retryable":         {outcome.Retryable(errors.New("secret")), 503, httpedge.CodeTryAgain, "1"},
		"out of time":       {context.DeadlineExceeded, 503, httpedge.CodeTryAgain, "1"},
		"anything":          {errors.New("secret"), 500, httpedge.CodeInternal, ""},
		"own problem":       {&httpedge.Problem{Status: 400, Code: "INVALID_PAYMENT"}, 400, "INVALID_PAYMENT", ""},
		"gone":              {httpedge.Gone("deleted"), 410, httpedge.CodeResourceGone, ""},
	} {
		w := write(httpedge.Edge{}, idempotency.Result{}, c.err)
		p := problem(t, w)
		if w.Code != c.status || p.Code != c.code || w.Header().Get("Retry-After") != c.retryAfter {
			t.Errorf("%s: %d %s, Retry-After %q", name, w.Code, p.Code, w.Header().Get("Retry-After"))
		}
		if strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s: an internal error is shown: %s", name, w.Body)
		}
		if other, taken := types[p.Type]; taken && other != p.Code {
			t.Errorf("%s and %s have one type, %s", other, p.Code, p.Type)
		}
		types[p.Type] = p.Code
	}
	if p := problem(t, write(httpedge.Edge{}, idempotency.Result{},
		&idempotency.ExpiredError{Code: 201, Resource: "p1"})); p.FirstStatus != 201 || p.Resource != "p1" {
		t.Errorf("an expired key's outcome: %+v", p)
	}
}

// TestPeer_IETF42_StatusIsConfigurable: an API that uses 422 for validation can answer a reused key with 409.
func TestPeer_IETF42_StatusIsConfigurable(t *testing.T) {
	t.Parallel()
	e := httpedge.Edge{
		Status: map[httpedge.Code]int{httpedge.CodeKeyReused: 409},
		Types:  "https://example.org/problems/",
	}
	p := problem(t, write(e, idempotency.Result{}, &idempotency.MismatchError{}))
	if p.Status != 409 || p.Type != "https://example.org/problems/idempotency_key_reused_with_different_request" {
		t.Errorf("%+v", p)
	}
}

// TestPeer_IETF36_MismatchHasFirstState, and TestPeer_PowertoolsTS2048: a mismatch shows state and resource, never the
// answer.
func TestPeer_IETF36_MismatchHasFirstState(t *testing.T) {
	t.Parallel()
	for _, state := range []idempotency.State{
		idempotency.InProgress, idempotency.Completed,
		idempotency.FailedReplayable, idempotency.Unknown, idempotency.Expired,
	} {
		// A result that comes with a mismatch by mistake is not shown.
		w := write(httpedge.Edge{}, idempotency.Result{Code: 201, Body: []byte("secret")},
			&idempotency.MismatchError{State: state, Resource: "payments/1"})
		if p := problem(t, w); p.State != state || p.Resource != "payments/1" ||
			strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s: %s", state, w.Body)
		}
	}
}

func TestWrite_AcceptedWithStatusURL(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		&idempotency.InProgressError{RetryAfter: time.Minute},
		&idempotency.UnknownError{Stage: idempotency.ProviderRequestSent}, &idempotency.UnknownError{Stuck: true},
	} {
		w := write(httpedge.Edge{}.At("/operations/k"), idempotency.Result{}, err)
		var op httpedge.Operation
		if json.Unmarshal(w.Body.Bytes(), &op) != nil || w.Code != 202 ||
			w.Header().Get("Location") != "/operations/k" || op.StatusURL != "/operations/k" || op.State == "" ||
			w.Header().Get("Retry-After") == "" {
			t.Errorf("%v: %d %v %s", err, w.Code, w.Header(), w.Body)
		}
		if got := client.Outcome(w.Result(), nil); got != client.Unknown {
			t.Errorf("%v: a client takes it for %q", err, got)
		}
	}
}

func TestWrite_Replay(t *testing.T) {
	t.Parallel()
	res, err := httpedge.JSON(201, map[string]string{"id": "1"})
	if err != nil {
		t.Fatal(err)
	}
	res.Header["Location"] = []string{"/payments/1"}
	first := write(httpedge.Edge{}, res, nil)
	res.Replayed = true
	again := write(httpedge.Edge{}, res, nil)
	if first.Code != 201 || again.Code != 201 || first.Body.String() != again.Body.String() ||
		again.Header().Get("Location") != "/payments/1" {
		t.Errorf("%d %s, then %d %s", first.Code, first.Body, again.Code, again.Body)
	}
	if first.Header().Get(httpedge.HeaderReplayed) != "" || again.Header().Get(httpedge.HeaderReplayed) != "true" {
		t.Errorf("Idempotent-Replayed: %v, then %v", first.Header(), again.Header())
	}
	// A final refusal comes beside its mark, or without: it is an answer.
	refused := write(httpedge.Edge{}, idempotency.Result{Code: 402, Failure: "card_declined", Body: []byte("no")},
		outcome.Terminal("card_declined", errors.New("no")))
	if refused.Code != 402 || refused.Body.String() != "no" {
		t.Errorf("a refusal: %d %s", refused.Code, refused.Body)
	}
}

// TestWrite_UnrecordedSuccess: a success that may not be recorded is answered as a success.
func TestWrite_UnrecordedSuccess(t *testing.T) {
	t.Parallel()
	w := write(httpedge.Edge{}, idempotency.Result{Code: 201, Body: []byte("b")},
		fmt.Errorf("%w: time-out", guard.ErrUnrecorded))
	if w.Code != 201 || w.Body.String() != "b" || w.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if p := problem(t, write(httpedge.Edge{}, idempotency.Result{},
		guard.ErrUnrecorded)); p.Code != httpedge.CodeUnknown {
		t.Errorf("%+v", p)
	}
}

// TestPeer_PowertoolsPY4037_OnReplayHeaders: OnReplay adds headers; headers of the first answer's time and caller are
// not replayed.
func TestPeer_PowertoolsPY4037_OnReplayHeaders(t *testing.T) {
	t.Parallel()
	e := httpedge.Edge{
		Headers:  []string{"x-payment-id", "Date", "set-cookie"},
		OnReplay: func(h http.Header, res idempotency.Result) { h.Set("X-First-At", res.At.Format(time.RFC3339)) },
		Policy:   httpedge.Policy(idempotency.Retention{}),
	}
	full := map[string][]string{
		"Content-Type": {"text/plain"}, "X-Payment-Id": {"1"}, "Date": {"long ago"}, "Set-Cookie": {"session=1"},
		"X-Other": {"1"}, "Connection": {"close"},
	}
	kept, err := e.Kept(idempotency.Result{Code: 201, Header: full, Body: []byte("b")})
	if err != nil || len(kept.Header) != 2 || kept.Header["X-Payment-Id"] == nil || kept.Header["Content-Type"] == nil {
		t.Errorf("kept %v, %v", kept.Header, err)
	}
	// Also of a record that has more than it should.
	w := write(e, idempotency.Result{Code: 201, Header: full, Replayed: true, At: time.Unix(0, 0).UTC()}, nil)
	if h := w.Header(); h.Get("Set-Cookie") != "" || h.Get("Date") != "" || h.Get("X-Payment-Id") != "1" ||
		h.Get("X-First-At") != "1970-01-01T00:00:00Z" || h.Get("Idempotency-Policy") != "replay=86400, "+
		"remember=259200" {
		t.Errorf("replayed %v", h)
	}
}

func TestKept_TooLargeAndRedacted(t *testing.T) {
	t.Parallel()
	e := httpedge.Edge{MaxBody: 3, Redact: func(r *idempotency.Result) { r.Body, r.Code = []byte("***"), 500 }}
	if _, err := e.Kept(idempotency.Result{Code: 200, Body: []byte("four")}); err == nil {
		t.Error("four bytes of three are kept")
	}
	if res, err := e.Kept(idempotency.Result{Code: 200, Body: []byte("abc")}); err != nil ||
		string(res.Body) != "***" || res.Code != 200 {
		t.Errorf("redacted: %+v, %v", res, err)
	}
}

// TestJSON_Refuses5xx: JSON and Kept return an error for a 5xx; Kept redacts other results.
func TestJSON_Refuses5xx(t *testing.T) {
	t.Parallel()
	e := httpedge.Edge{Redact: func(r *idempotency.Result) { r.Body = []byte("***") }}
	if res, err := e.JSON(201, "card 4711"); err != nil || string(res.Body) != "***" ||
		res.Header["Content-Type"] == nil {
		t.Errorf("%+v, %v", res, err)
	}
	for _, make := range []func(int, any) (idempotency.Result, error){httpedge.JSON, e.JSON} {
		if res, err := make(503, "later"); err == nil {
			t.Errorf("%+v", res)
		}
	}
	if res, err := e.Kept(idempotency.Result{Code: 500}); err == nil {
		t.Errorf("%+v", res)
	}
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	for want, keep := range map[string]idempotency.Retention{
		"replay=86400, remember=259200": {},
		"replay=60, remember=60":        {Body: time.Minute, Tombstone: time.Second},
		"replay=86400, remember":        {Tombstone: -1},
		"replay, remember":              {Body: -1, Tombstone: -1},
		"replay=10, remember=10":        {Body: -1, Tombstone: 10 * time.Second},
	} {
		if got := httpedge.Policy(keep); got != want {
			t.Errorf("%+v: %q, want %q", keep, got, want)
		}
	}
}

// TestOpenAPI: the fragment has every code, header and status.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(httpedge.OpenAPI()), &doc); err != nil || doc["components"] == nil {
		t.Fatalf("the fragment is no YAML with components: %v", err)
	}
	for code := range httpedge.Codes() {
		if !strings.Contains(httpedge.OpenAPI(), string(code)) {
			t.Errorf("%s is not in the fragment", code)
		}
	}
	for _, header := range []string{httpedge.HeaderKey, httpedge.HeaderReplayed, httpedge.HeaderPolicy, "Retry-After"} {
		if !strings.Contains(httpedge.OpenAPI(), header) {
			t.Errorf("%s is not in the fragment", header)
		}
	}
}

// TestWrite_ResultWithoutCode: the first answer and its replays have the same default status.
func TestWrite_ResultWithoutCode(t *testing.T) {
	t.Parallel()
	for _, replayed := range []string{"", "true"} {
		for _, c := range []struct {
			res  idempotency.Result
			code int
			body string
		}{
			{idempotency.Result{}, 204, ""},
			{idempotency.Result{Body: []byte("done")}, 200, "done"},
			{idempotency.Result{Failure: "card_declined"}, 422, `"code":"REQUEST_REFUSED","failure":"card_declined"`},
		} {
			c.res.Replayed = replayed != ""
			w := write(httpedge.Edge{}, c.res, nil)
			if w.Code != c.code || !strings.Contains(w.Body.String(), c.body) ||
				w.Header().Get("Idempotent-Replayed") != replayed {
				t.Errorf("%+v: %d %s %v", c.res, w.Code, w.Body, w.Header())
			}
		}
	}
}

func TestStatusHandler(t *testing.T) {
	t.Parallel()
	s := memstore.New(memstore.Config{})
	k := idempotency.Key{Tenant: "a", Operation: "payment.create", Value: "k"}
	claimed, err := s.Claim(t.Context(), idempotency.Request{Key: k},
		store.ClaimOptions{Token: "t", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	h := httpedge.Edge{Logger: quiet}.StatusHandler(s.Get, func(r *http.Request) (idempotency.Key, error) {
		return idempotency.Key{
			Tenant: r.Header.Get("X-Tenant"), Operation: "payment.create",
			Value: r.PathValue("key"),
		}, nil
	})
	ask := func(tenant string) (*httptest.ResponseRecorder, httpedge.Operation) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/operations/k", nil)
		r.SetPathValue("key", "k")
		r.Header.Set("X-Tenant", tenant)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var op httpedge.Operation
		_ = json.Unmarshal(w.Body.Bytes(), &op)
		return w, op
	}
	if w, op := ask("a"); w.Code != 200 || op.State != idempotency.InProgress || w.Header().Get("Retry-After") == "" {
		t.Errorf("in progress: %d %+v %v", w.Code, op, w.Header())
	}
	if w, _ := ask("b"); w.Code != 404 {
		t.Errorf("another tenant: %d", w.Code)
	}
	if err := s.Finish(t.Context(), claimed.Lease, idempotency.Result{
		Code: 201, Resource: "p1",
		Body: []byte("secret"),
	}, idempotency.Retention{}); err != nil {
		t.Fatal(err)
	}
	if w, op := ask("a"); w.Code != 200 || op.State != idempotency.Completed || op.Status != 201 ||
		op.Resource != "p1" || strings.Contains(w.Body.String(), "secret") || w.Header().Get("Retry-After") != "" {
		t.Errorf("completed: %d %s %v", w.Code, w.Body, w.Header())
	}
}
