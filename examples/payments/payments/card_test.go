package payments_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/examples/payments/cards"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// cardFixture is the API with a card provider.
type cardFixture struct {
	*fixture
	bank    *cards.Provider
	bankURL string
	service *payments.Service
}

func newCards(t *testing.T, cfg cards.Config) *cardFixture {
	t.Helper()
	f := &cardFixture{fixture: newFixture(t), bank: cards.New(cfg)}
	server := httptest.NewServer(f.bank.Handler())
	t.Cleanup(server.Close)
	f.bankURL = server.URL
	f.service = f.newService(t)
	f.handler = f.service
	return f
}

// newService makes another service over the same database and provider.
func (f *cardFixture) newService(t *testing.T) *payments.Service {
	t.Helper()
	return f.newServiceTimeout(t, time.Minute)
}

// timesOut makes the first request, of a service that soon gives up, to a provider that does not answer. It returns
// when the provider has the request: on a slow machine this may be later.
func (f *cardFixture) timesOut(t *testing.T) *httptest.ResponseRecorder {
	t.Helper()
	w := post(f.newServiceTimeout(t, 2*time.Second), body, "Idempotency-Key", "k")
	key := "provider_payment_" + pgtest.One[string](t, f.DB, "select payment_id::text from payment")
	pgtest.Await(t, "the request at the provider", func() (bool, error) { return f.bank.Attempts(key) > 0, nil })
	return w
}

// newServiceTimeout is newService with a time-out for requests to the provider.
func (f *cardFixture) newServiceTimeout(t *testing.T, timeout time.Duration) *payments.Service {
	t.Helper()
	provider, err := payments.HTTPProvider(f.bankURL, timeout)
	if err != nil {
		t.Fatal(err)
	}
	s, err := payments.New(f.Pool, payments.Config{
		Schema: f.Schema, Cards: provider, Logger: slog.New(slog.NewTextHandler(f.log, nil)),
		Guard:    guard.Config{RecoverAfter: -1},
		Recovery: recovery.Config{Grace: -1, Backoff: time.Millisecond, MaxBackoff: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// recover runs recovery until a request with this key gets its final answer.
func (f *cardFixture) recover(t *testing.T, key string) *httptest.ResponseRecorder {
	t.Helper()
	var w *httptest.ResponseRecorder
	pgtest.Await(t, "recovery", func() (bool, error) {
		if _, err := f.service.Recovery.Once(t.Context()); err != nil {
			return false, err
		}
		w = post(f.handler, body, "Idempotency-Key", key)
		return w.Code != http.StatusServiceUnavailable && w.Code != http.StatusConflict, nil
	})
	return w
}

// checkCharges fails unless the provider has exactly want charges, each of an accepted payment with an event.
func (f *cardFixture) checkCharges(t *testing.T, want int) {
	t.Helper()
	ledger := f.bank.Ledger()
	if len(ledger) != want {
		t.Errorf("the provider charged %d times, want %d: %v", len(ledger), want, ledger)
	}
	for _, c := range ledger {
		id := strings.TrimPrefix(c.Key, "provider_payment_")
		if pgtest.One[int](t, f.DB, "select count(*) from payment where status = 'accepted' and charge = $1 and "+
			"payment_id = $2::uuid", c.Reference, id) != 1 {
			t.Errorf("charge %s has no accepted payment", c.Reference)
		}
	}
	accepted, events := pgtest.One[int](t, f.DB, "select count(*) from payment where status = 'accepted'"),
		pgtest.One[int](t, f.DB, "select count(*) from outbox_event")
	if accepted != want || events != want {
		t.Errorf("%d payments accepted, %d events: want %d", accepted, events, want)
	}
}

func TestChargesOnce(t *testing.T) {
	t.Parallel()
	f := newCards(t, cards.Config{IgnoreKeys: true})
	first, again := post(f.handler, body, "Idempotency-Key", "k"), post(f.handler, body, "Idempotency-Key", "k")
	if first.Code != http.StatusCreated || again.Code != http.StatusCreated ||
		first.Body.String() != again.Body.String() || again.Header().Get(payments.HeaderReplayed) != "true" {
		t.Errorf("%d %s, then %d %s", first.Code, first.Body, again.Code, again.Body)
	}
	if w := post(f.handler, strings.Replace(body, "100", "101", 1), "Idempotency-Key",
		"k"); w.Code != http.StatusUnprocessableEntity || code(w) != payments.CodeReused {
		t.Errorf("another command: %d %s", w.Code, w.Body)
	}
	f.checkCharges(t, 1)
	if key := f.bank.Ledger()[0].Key; key == "k" {
		t.Errorf("the caller's key went to the provider: %q", key)
	}
}

// TestHundredConcurrentRequestsChargeOnce sends them to two services.
func TestHundredConcurrentRequestsChargeOnce(t *testing.T) {
	t.Parallel()
	f := newCards(t, cards.Config{IgnoreKeys: true})
	other := f.newService(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			h := http.Handler(f.service)
			if i%2 == 0 {
				h = other
			}
			if w := post(h, body, "Idempotency-Key", "k"); w.Code != http.StatusCreated &&
				w.Code != http.StatusConflict {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	wg.Wait()
	if w := post(f.handler, body, "Idempotency-Key", "k"); w.Code != http.StatusCreated {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	f.checkCharges(t, 1)
}

func TestDeclinedCardIsFinal(t *testing.T) {
	t.Parallel()
	f := newCards(t, cards.Config{Decide: func(cards.Charge, int) cards.Verdict { return cards.Refuse }})
	for i, replayed := range []string{"", "true"} {
		if w := post(f.handler, body, "Idempotency-Key", "k"); w.Code != http.StatusPaymentRequired ||
			code(w) != "CARD_DECLINED" || w.Header().Get(payments.HeaderReplayed) != replayed {
			t.Errorf("%d: %d %s %v", i, w.Code, w.Body, w.Header())
		}
	}
	f.checkCharges(t, 0)
	if got := pgtest.One[string](t, f.DB, "select status from payment"); got != "declined" {
		t.Errorf("the payment is %s", got)
	}
}

// TestProviderAwayKeepsKeyUsable: nothing was sent, so the next attempt with the same key charges.
func TestProviderAwayKeepsKeyUsable(t *testing.T) {
	t.Parallel()
	f := newCards(t, cards.Config{})
	up := f.bankURL
	f.bankURL = "http://127.0.0.1:1"
	away := f.newService(t)
	f.bankURL = up
	if w := post(away, body, "Idempotency-Key", "k"); w.Code != http.StatusServiceUnavailable ||
		code(w) != "TRY_AGAIN" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// The payment is pending: this key refuses another command.
	if w := post(f.handler, strings.Replace(body, "100", "101", 1), "Idempotency-Key",
		"k"); w.Code != http.StatusUnprocessableEntity {
		t.Errorf("another command: %d %s", w.Code, w.Body)
	}
	if w := post(f.handler, body, "Idempotency-Key", "k"); w.Code != http.StatusCreated ||
		w.Header().Get(payments.HeaderReplayed) != "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	f.checkCharges(t, 1)
}

// TestCallerGivesUpOnBusyProvider: the retry completes the payment that the caller left behind.
func TestCallerGivesUpOnBusyProvider(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	serve := func(p payments.Provider) http.Handler {
		s, err := payments.New(f.Pool, payments.Config{
			Schema: f.Schema, Cards: p,
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	busy := serve(forgetful(func() (string, error) {
		cancel()
		<-ctx.Done()
		return "", outcome.Retryable(errors.New("busy"))
	}))
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", "k")
	busy.ServeHTTP(httptest.NewRecorder(), r)
	w := post(serve(forgetful(func() (string, error) { return "charge-1", nil })), body, "Idempotency-Key", "k")
	if w.Code != http.StatusCreated {
		t.Errorf("the retry: %d %s", w.Code, w.Body)
	}
	if n := pgtest.One[int](t, f.DB, "select count(*) from payment"); n != 1 {
		t.Errorf("%d payments, 1 of them charged", n)
	}
}

// TestRecoversTimeOut: the provider times out before or after it has charged. It ignores keys, so a second call would
// be a second charge.
func TestRecoversTimeOut(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]cards.Verdict{"before": cards.TimeOutBefore, "after": cards.TimeOutAfter} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newCards(t, cards.Config{
				IgnoreKeys: true,
				Decide: func(_ cards.Charge, attempt int) cards.Verdict {
					if attempt == 1 {
						return verdict
					}
					return cards.Accept
				},
			})
			first := f.timesOut(t)
			if first.Code != http.StatusServiceUnavailable || code(first) != "IDEMPOTENCY_OUTCOME_UNKNOWN" ||
				first.Header().Get("Retry-After") == "" {
				t.Errorf("first: %d %s", first.Code, first.Body)
			}
			// The retry does not charge again: the outcome is unknown.
			if w := post(f.handler, body, "Idempotency-Key", "k"); code(w) != "IDEMPOTENCY_OUTCOME_UNKNOWN" {
				t.Errorf("retry: %d %s", w.Code, w.Body)
			}
			if w := post(f.handler, strings.Replace(body, "100", "101", 1), "Idempotency-Key",
				"k"); w.Code != http.StatusUnprocessableEntity {
				t.Errorf("another command: %d %s", w.Code, w.Body)
			}
			w := f.recover(t, "k")
			if w.Code != http.StatusCreated || w.Header().Get(payments.HeaderReplayed) != "true" {
				t.Errorf("after recovery: %d %s", w.Code, w.Body)
			}
			f.checkCharges(t, 1)
		})
	}
}

// TestBusyProviderDuringRecovery: the provider charges at the third attempt, after a time-out and a 429. The payment
// has its row and its event.
func TestBusyProviderDuringRecovery(t *testing.T) {
	t.Parallel()
	f := newCards(t, cards.Config{Decide: func(_ cards.Charge, attempt int) cards.Verdict {
		return []cards.Verdict{cards.TimeOutBefore, cards.Busy, cards.Accept}[min(attempt, 3)-1]
	}})
	if w := f.timesOut(t); code(w) != "IDEMPOTENCY_OUTCOME_UNKNOWN" {
		t.Errorf("first: %d %s", w.Code, w.Body)
	}
	w := f.recover(t, "k")
	var p struct {
		PaymentID string `json:"payment_id"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusCreated {
		t.Fatalf("after recovery: %d %s", w.Code, w.Body)
	}
	f.checkCharges(t, 1)
	shown := httptest.NewRecorder()
	f.handler.ServeHTTP(shown, httptest.NewRequest(http.MethodGet, "/payments/"+p.PaymentID, nil))
	if shown.Code != http.StatusOK || shown.Body.String() != w.Body.String() {
		t.Errorf("%d %s, and the answer was %s", shown.Code, shown.Body, w.Body)
	}
}

// TestDuplicateWebhook: the provider sends each notice three times, and one of them counts.
func TestDuplicateWebhook(t *testing.T) {
	t.Parallel()
	var handler http.Handler
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(hook.Close)
	f := newCards(t, cards.Config{Webhook: hook.URL + "/notices", WebhookCalls: 3})
	handler = f.handler
	for _, key := range []string{"k1", "k2"} {
		if w := post(f.handler, body, "Idempotency-Key", key); w.Code != http.StatusCreated {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	f.checkCharges(t, 2)
	if n := pgtest.One[int](t, f.DB, "select sum(confirmations)::int from payment"); n != 2 {
		t.Errorf("%d confirmations of 2 charges with three notices each", n)
	}
}

// TestKilledBetweenChargeAndRecord: the process is killed after the provider has booked the charge and before it
// answers. Another process's recovery asks the provider and completes the payment: the caller's retry gets it, there is
// one charge, and one event.
func TestKilledBetweenChargeAndRecord(t *testing.T) {
	t.Parallel()
	var victim child
	f := newCards(t, cards.Config{IgnoreKeys: true, Booked: func(c cards.Charge) { victim.kill() }})
	victim.start(t, f)
	awaitReady(t, victim.url)
	if status, text := request(t, http.MethodPost, victim.url+"/payments", body); status != 0 {
		t.Fatalf("a process that was killed answered %d: %s", status, text)
	}
	if n := len(f.bank.Ledger()); n != 1 {
		t.Fatalf("%d charges before the kill", n)
	}
	if state := pgtest.One[string](t, f.DB, "select stage from idempotency_key"); state != string(
		idempotency.ProviderRequestSent) {
		t.Errorf("the stage is %s", state)
	}
	// As if the killed process's lease had ended.
	f.Exec(t, "update idempotency_key set lease_until = clock_timestamp(), due_at = clock_timestamp()")
	w := f.recover(t, "k")
	var p struct {
		PaymentID string `json:"payment_id"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusCreated ||
		w.Header().Get(payments.HeaderReplayed) != "true" || "provider_payment_"+p.PaymentID != f.bank.Ledger()[0].Key {
		t.Errorf("after recovery: %d %s", w.Code, w.Body)
	}
	f.checkCharges(t, 1)
	if f.bank.Attempts("provider_payment_"+p.PaymentID) != 1 {
		t.Error("the provider was asked to charge again")
	}
}

// TestServiceRunsRecovery: Recovery.Run completes a payment with an unknown outcome.
func TestServiceRunsRecovery(t *testing.T) {
	t.Parallel()
	f := newCards(t, cards.Config{Decide: func(_ cards.Charge, attempt int) cards.Verdict {
		if attempt == 1 {
			return cards.TimeOutAfter
		}
		return cards.Accept
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.service.Recovery.Run(ctx) }()
	if w := f.timesOut(t); w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	pgtest.AwaitSQL(t, f.DB, "select count(*) = 1 from idempotency_key where state = 'COMPLETED'")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.checkCharges(t, 1)
}
