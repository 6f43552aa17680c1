package payments_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// fixture is the API over a test database, and its log.
type fixture struct {
	*pgtest.DB
	handler http.Handler
	woken   atomic.Int64
	log     *lockedBuffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{DB: pgtest.New(t), log: &lockedBuffer{}}
	if err := payments.Tables().Prepare(f.Pool, f.Schema, false)(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.handler = f.newHandler(t, f.Pool)
	return f
}

// newHandler makes another API over the same database.
func (f *fixture) newHandler(t *testing.T, pool *pgxpool.Pool) http.Handler {
	t.Helper()
	h, err := payments.Handler(pool, payments.Config{
		Schema: f.Schema, Wake: func() { f.woken.Add(1) },
		Logger: slog.New(slog.NewTextHandler(f.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const body = `{"account_id":"acc-1","amount":100,"currency":"EUR"}`

func do(h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// post requests a payment, with a new key unless the headers have one.
func post(h http.Handler, body string, headers ...string) *httptest.ResponseRecorder {
	if !slices.Contains(headers, "Idempotency-Key") {
		headers = append(headers, "Idempotency-Key", event.NewID().String())
	}
	return do(h, http.MethodPost, "/payments", body, headers...)
}

// check fails unless there are exactly want payments, each with one event, and no other event.
func (f *fixture) check(t *testing.T, want int) {
	t.Helper()
	rows, events := pgtest.One[int](t, f.DB, "select count(*) from payment"),
		pgtest.One[int](t, f.DB, "select count(*) from outbox_event")
	pairs := pgtest.One[int](t, f.DB, "select count(*) from payment p join outbox_event e on e.message_id = p.event_id")
	if rows != want || events != want || pairs != want {
		t.Errorf("%d payments, %d events, %d pairs: want %d", rows, events, pairs, want)
	}
}

func code(w *httptest.ResponseRecorder) string {
	var p struct{ Code string }
	_ = json.Unmarshal(w.Body.Bytes(), &p)
	return p.Code
}

func TestCreatesRowAndEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := post(f.handler, body, "X-Tenant", "acme")
	if w.Code != http.StatusCreated || w.Header().Get("Content-Type") != "application/json" ||
		w.Header().Get(payments.HeaderReplayed) != "" {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	var p contract.PaymentCreated
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.AccountID != "acc-1" || p.Amount != 100 ||
		p.Currency != "EUR" {
		t.Fatalf("%+v, %v", p, err)
	}
	f.check(t, 1)
	if f.woken.Load() != 1 {
		t.Errorf("the relay was woken %d times, want 1", f.woken.Load())
	}
	var e event.Event
	var payload []byte
	if err := f.Pool.QueryRow(t.Context(), "select topic, key, type, source, tenant, content_type, payload from "+
		"outbox_event").
		Scan(&e.Topic, &e.Key, &e.Type, &e.Source, &e.Tenant, &e.ContentType, &payload); err != nil {
		t.Fatal(err)
	}
	if e.Topic != "payments" || e.Key != "acc-1" || e.Type != "PaymentCreated" || e.Source != "payments" ||
		e.Tenant != "acme" || e.ContentType != event.ContentTypeJSON {
		t.Errorf("event %+v", e)
	}
	if want := fmt.Sprintf(`{"payment_id":"%s","account_id":"acc-1","amount":100,"currency":"EUR"}`,
		p.PaymentID); string(payload) != want {
		t.Errorf("payload %s, want %s", payload, want)
	}
	got := do(f.handler, http.MethodGet, "/payments/"+p.PaymentID.String(), "", "X-Tenant", "acme")
	if got.Code != http.StatusOK || got.Body.String() != w.Body.String() {
		t.Errorf("GET: %d %s, want %s", got.Code, got.Body, w.Body)
	}
	if got := do(f.handler, http.MethodGet, "/payments/"+p.PaymentID.String(), ""); got.Code != http.StatusNotFound {
		t.Errorf("another tenant sees the payment: %d", got.Code)
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := post(f.handler, body, "Idempotency-Key", "k")
	// White space and the order of members do not change the command.
	again := post(f.handler, ` {"currency":"EUR", "amount":100, "account_id":"acc-1"} `, "Idempotency-Key", "k")
	if first.Code != http.StatusCreated || again.Code != first.Code || again.Body.String() != first.Body.String() {
		t.Fatalf("%d %s, then %d %s", first.Code, first.Body, again.Code, again.Body)
	}
	if first.Header().Get(payments.HeaderReplayed) != "" || again.Header().Get(payments.HeaderReplayed) != "true" {
		t.Errorf("Idempotent-Replayed %q, then %q", first.Header().Get(payments.HeaderReplayed),
			again.Header().Get(payments.HeaderReplayed))
	}
	f.check(t, 1)
}

func TestKeyReuseIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	post(f.handler, body, "Idempotency-Key", "secret-key")
	for _, other := range []string{
		strings.Replace(body, "100", "101", 1), strings.Replace(body, "EUR", "USD", 1),
		strings.Replace(body, "acc-1", "acc-2", 1),
	} {
		w := post(f.handler, other, "Idempotency-Key", "secret-key")
		if w.Code != http.StatusUnprocessableEntity || code(w) != payments.CodeReused ||
			w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	log := f.log.String()
	if !strings.Contains(log, "used for another command") || strings.Contains(log, "secret-key") {
		t.Errorf("log: %s", log)
	}
	f.check(t, 1)
}

func TestKeysAreScopedByTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i, tenant := range []string{"a", "b", ""} {
		other := strings.Replace(body, "100", fmt.Sprint(100+i), 1)
		if w := post(f.handler, other, "Idempotency-Key", "k", "X-Tenant", tenant); w.Code != http.StatusCreated ||
			w.Header().Get(payments.HeaderReplayed) != "" {
			t.Errorf("tenant %q: %d %s", tenant, w.Code, w.Body)
		}
	}
	f.check(t, 3)
}

func TestKeyIsRequired(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if w := do(f.handler, http.MethodPost, "/payments", body); w.Code != http.StatusBadRequest ||
		code(w) != "IDEMPOTENCY_KEY_MISSING" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	f.check(t, 0)
}

// TestReplayIsIdentical: a replay is the first answer, byte for byte, although the row has changed and the key is
// quoted.
func TestReplayIsIdentical(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := post(f.handler, body, "Idempotency-Key", "k")
	f.Exec(t, "update payment set status = 'refunded', created_at = now() - interval '1 day'")
	again := post(f.handler, body, "Idempotency-Key", `"k"`)
	if again.Code != first.Code || again.Body.String() != first.Body.String() ||
		again.Header().Get("Location") != first.Header().Get("Location") {
		t.Errorf("%d %s %v, then %d %s %v", first.Code, first.Body, first.Header(), again.Code, again.Body,
			again.Header())
	}
	if policy := again.Header().Get("Idempotency-Policy"); policy != "replay=86400, remember=259200" {
		t.Errorf("the policy is %q", policy)
	}
}

// TestConcurrentRequests: two requests with one key reach the database before either has committed.
func TestConcurrentRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	answers := f.postConcurrently(t)
	f.check(t, 1)
	if answers[0].Code != http.StatusCreated || answers[1].Code != http.StatusCreated ||
		answers[0].Body.String() != answers[1].Body.String() {
		t.Errorf("answers %d %s and %d %s", answers[0].Code, answers[0].Body, answers[1].Code, answers[1].Body)
	}
	if replayed := answers[0].Header().Get(payments.HeaderReplayed) +
		answers[1].Header().Get(payments.HeaderReplayed); replayed != "true" {
		t.Errorf("Idempotent-Replayed %q, want it once", replayed)
	}
}

// postConcurrently sends the same request to two handlers: within one, the second would not reach the database. The
// first is held between its insert and its commit until the second waits for it. A request that gets 409 is retried.
func (f *fixture) postConcurrently(t *testing.T) [2]*httptest.ResponseRecorder {
	t.Helper()
	// This lock stops both at the append of the event, after the insert of the payment.
	gate := f.Connect(t)
	if _, err := gate.Exec(t.Context(), "begin; lock table outbox_event in exclusive mode"); err != nil {
		t.Fatal(err)
	}
	var answers [2]*httptest.ResponseRecorder
	var wg sync.WaitGroup
	for i, process := range []http.Handler{f.handler, f.newHandler(t, f.Pool)} {
		wg.Go(func() {
			for answers[i] == nil || answers[i].Code == http.StatusConflict {
				answers[i] = post(process, body, "Idempotency-Key", "k")
			}
		})
	}
	pgtest.AwaitSQL(t, f.DB, `select count(*) = 2 from pg_stat_activity where wait_event_type = 'Lock' and
		datname = current_database() and (query like '-- pgstore:%' or query like '-- outbox:%') and
		pid in (select pid from pg_locks l join pg_class c on c.oid = l.relation
		where c.relnamespace = $1::regnamespace)`, f.Schema)
	if _, err := gate.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	return answers
}

// TestLostCommitReply: the payment is made once, and the first request already gets its answer, by the key's record.
func TestLostCommitReply(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]pgtest.Action{
		"committed":     pgtest.DropReply,
		"not committed": pgtest.CutBefore,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy := pgtest.NewProxy(t, f.URL)
			pool, err := pgxpool.New(t.Context(), proxy.URL())
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			h := f.newHandler(t, pool)
			proxy.OnCommit(action)
			first, again := post(h, body, "Idempotency-Key", "k"), post(h, body, "Idempotency-Key", "k")
			if first.Code != http.StatusCreated || again.Code != http.StatusCreated ||
				first.Body.String() != again.Body.String() {
				t.Errorf("%d %s, then %d %s", first.Code, first.Body, again.Code, again.Body)
			}
			if first.Header().Get(payments.HeaderReplayed) != "" ||
				again.Header().Get(payments.HeaderReplayed) != "true" {
				t.Errorf("replayed: %v, then %v", first.Header(), again.Header())
			}
			f.check(t, 1)
		})
	}
}

func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := pgtest.NewProxy(t, f.URL)
	proxy.Refuse(true)
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if w := post(f.newHandler(t, pool), body); w.Code != http.StatusServiceUnavailable || code(w) != "TRY_AGAIN" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestInvalidRequestRecordsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	long := strings.Repeat("é", 200)
	if w := post(f.handler, strings.Replace(body, "acc-1", long, 1)); w.Code != http.StatusCreated {
		t.Errorf("200 characters: %d %s", w.Code, w.Body)
	}
	for name, b := range map[string]string{
		"empty": "", "not JSON": "{", "an array": "[]", "null": "null", "two": body + body, "behind": body + "x",
		"unknown field":  `{"account_id":"a","amount":1,"currency":"EUR","note":"hunter2"}`,
		"twice":          `{"account_id":"a","amount":1,"amount":2,"currency":"EUR"}`,
		"other case":     `{"Account_ID":"a","amount":1,"currency":"EUR"}`,
		"no account":     `{"amount":1,"currency":"EUR"}`,
		"blank account":  `{"account_id":" ","amount":1,"currency":"EUR"}`,
		"long account":   strings.Replace(body, "acc-1", long+"x", 1),
		"U+0000":         strings.Replace(body, "acc-1", `hunter2\u0000`, 1),
		"not UTF-8":      strings.Replace(body, "acc-1", "\xff", 1),
		"account number": `{"account_id":7,"amount":1,"currency":"EUR"}`,
		"no amount":      `{"account_id":"a","currency":"EUR"}`, "zero": strings.Replace(body, "100", "0", 1),
		"negative": strings.Replace(body, "100", "-1", 1), "fraction": strings.Replace(body, "100", "1.0", 1),
		"exponent": strings.Replace(body, "100", "1e2", 1), "text amount": strings.Replace(body, "100", `"100"`, 1),
		"null amount": strings.Replace(body, "100", "null", 1), "nested": strings.Replace(body, "100", "{}", 1),
		"overflow": strings.Replace(body, "100", "9223372036854775808", 1),
		"currency": strings.Replace(body, "EUR", "eur", 1), "long currency": strings.Replace(body, "EUR", "EURO", 1),
		"no currency": `{"account_id":"a","amount":1}`,
	} {
		w := post(f.handler, b, "Idempotency-Key", "k")
		if w.Code != http.StatusBadRequest || code(w) != "INVALID_PAYMENT" && code(w) != "BAD_REQUEST" ||
			strings.Contains(w.Body.String(), "hunter2") {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	if w := post(f.handler, strings.Repeat(" ", 64<<10)+body); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %d %s", w.Code, w.Body)
	}
	for _, bad := range [][]string{
		{"Idempotency-Key", ""},
		{"Idempotency-Key", strings.Repeat("x", 256)},
		{"Idempotency-Key", "é"},
		{"Idempotency-Key", "a", "Idempotency-Key", "b"},
		{"X-Tenant", strings.Repeat("x", 256)},
		{"X-Tenant", "\xff"},
		{"X-Tenant", "a", "X-Tenant", "b"},
	} {
		if w := post(f.handler, body, bad...); w.Code != http.StatusBadRequest {
			t.Errorf("%q: %d %s", bad, w.Code, w.Body)
		}
	}
	f.check(t, 1)
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{http.MethodGet, "/payments", 405},
		{http.MethodDelete, "/payments/x", 405},
		{http.MethodGet, "/payments/x", 404},
		{http.MethodGet, "/payments/" + event.NewID().String(), 404},
		{http.MethodGet, "/", 404},
	} {
		if w := do(f.handler, c.method, c.path, ""); w.Code != c.want ||
			w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %d %v %s", c.method, c.path, w.Code, w.Header(), w.Body)
		}
	}
}

// FuzzBody: no body makes the API panic or answer with an internal error, and an accepted body is a valid payment.
func FuzzBody(f *testing.F) {
	for _, s := range []string{
		body, "", "{}", `{"amount":1e99}`, `{"amount":1,"amount":1}`, "[[[",
		`{"account_id":"\ud800","amount":1,"currency":"EUR"}`,
	} {
		f.Add([]byte(s))
	}
	// The pool has no server: an accepted body ends in 503.
	pool, err := pgxpool.New(context.Background(),
		"postgres://nobody@127.0.0.1:1/none?sslmode=disable&connect_timeout=1")
	if err != nil {
		f.Fatal(err)
	}
	defer pool.Close()
	h, err := payments.Handler(pool, payments.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		switch w := post(h, string(b)); w.Code {
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		case http.StatusServiceUnavailable:
			var p contract.PaymentCreated
			if err := json.Unmarshal(b, &p); err != nil || p.Amount <= 0 || p.AccountID == "" {
				t.Errorf("accepted %q: %+v, %v", b, p, err)
			}
		default:
			t.Errorf("%q: %d %s", b, w.Code, w.Body)
		}
	})
}
