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
)

// cardFixture is the API with a card provider, which has a ledger of its own.
type cardFixture struct {
	*fixture
	bank    *cards.Provider
	bankURL string
	timeout time.Duration // of a request to the provider
	service *payments.Service
}

// newCards makes it, with a provider that is waited for as long as any machine needs.
func newCards(t *testing.T, cfg cards.Config) *cardFixture {
	t.Helper()
	return newCardsWithin(t, cfg, time.Minute)
}

// shortly is the time-out for a provider that does not answer: nothing waits for longer than a test must.
const shortly = 300 * time.Millisecond

func newCardsWithin(t *testing.T, cfg cards.Config, timeout time.Duration) *cardFixture {
	t.Helper()
	f := &cardFixture{fixture: newFixture(t), bank: cards.New(cfg), timeout: timeout}
	server := httptest.NewServer(f.bank.Handler())
	t.Cleanup(server.Close)
	f.bankURL = server.URL
	f.service = f.serve(t)
	f.handler = f.service
	return f
}

// serve is another process with the same database and provider.
func (f *cardFixture) serve(t *testing.T) *payments.Service {
	t.Helper()
	provider, err := payments.HTTPProvider(f.bankURL, f.timeout)
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

// recover lets recovery look until this key's request has its answer.
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

// charged fails unless the provider has so many charges, and each is of an accepted payment.
func (f *cardFixture) charged(t *testing.T, want int) {
	t.Helper()
	ledger := f.bank.Ledger()
	if len(ledger) != want {
		t.Errorf("the provider charged %d times, want %d: %v", len(ledger), want, ledger)
	}
	for _, c := range ledger {
		id := strings.TrimPrefix(c.Key, "provider_payment_")
		if pgtest.One[int](t, f.DB, "select count(*) from payment where status = 'accepted' and charge = $1 and "+
			"payment_id = $2::uuid", c.Reference, id) != 1 {
			t.Errorf("charge %s is of no accepted payment", c.Reference)
		}
	}
	accepted, events := pgtest.One[int](t, f.DB, "select count(*) from payment where status = 'accepted'"),
		pgtest.One[int](t, f.DB, "select count(*) from outbox_event")
	if accepted != want || events != want {
		t.Errorf("%d payments accepted, %d events: want %d", accepted, events, want)
	}
}

func TestACardIsChargedOnce(t *testing.T) {
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
	f.charged(t, 1)
	if key := f.bank.Ledger()[0].Key; key == "k" {
		t.Errorf("the caller's key went to the provider: %q", key)
	}
}

// TestAHundredAtOnceAreOneCharge, by two processes.
func TestAHundredAtOnceAreOneCharge(t *testing.T) {
	t.Parallel()
	f := newCards(t, cards.Config{IgnoreKeys: true})
	other := f.serve(t)
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
	f.charged(t, 1)
}

func TestADeclinedCardIsAFinalAnswer(t *testing.T) {
	t.Parallel()
	f := newCards(t, cards.Config{Decide: func(cards.Charge, int) cards.Verdict { return cards.Refuse }})
	for i, replayed := range []string{"", "true"} {
		if w := post(f.handler, body, "Idempotency-Key", "k"); w.Code != http.StatusPaymentRequired ||
			code(w) != "CARD_DECLINED" || w.Header().Get(payments.HeaderReplayed) != replayed {
			t.Errorf("%d: %d %s %v", i, w.Code, w.Body, w.Header())
		}
	}
	f.charged(t, 0)
	if got := pgtest.One[string](t, f.DB, "select status from payment"); got != "declined" {
		t.Errorf("the payment is %s", got)
	}
}

// TestAProviderThatIsAwayBurnsNoKey: nothing was sent, so the same key is good for the next attempt.
func TestAProviderThatIsAwayBurnsNoKey(t *testing.T) {
	t.Parallel()
	f := newCards(t, cards.Config{})
	up := f.bankURL
	f.bankURL = "http://127.0.0.1:1"
	away := f.serve(t)
	f.bankURL = up
	if w := post(away, body, "Idempotency-Key", "k"); w.Code != http.StatusServiceUnavailable ||
		code(w) != "TRY_AGAIN" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// Its payment is there, and pending: under this key nothing else may be made.
	if w := post(f.handler, strings.Replace(body, "100", "101", 1), "Idempotency-Key",
		"k"); w.Code != http.StatusUnprocessableEntity {
		t.Errorf("another command: %d %s", w.Code, w.Body)
	}
	if w := post(f.handler, body, "Idempotency-Key", "k"); w.Code != http.StatusCreated ||
		w.Header().Get(payments.HeaderReplayed) != "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	f.charged(t, 1)
}

// TestACallerThatLeavesABusyProvider: the payment that it leaves behind is the one that its retry is answered with.
func TestACallerThatLeavesABusyProvider(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, leave := context.WithCancel(t.Context())
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
		leave()
		<-ctx.Done()
		return "", idempotency.Retryable(errors.New("busy"))
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

// TestATimeOutIsRecovered: before the provider did anything, and after it did. It takes no keys, so a second call would
// be a second charge.
func TestATimeOutIsRecovered(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]cards.Verdict{"before": cards.TimeOutBefore, "after": cards.TimeOutAfter} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newCardsWithin(t, cards.Config{
				IgnoreKeys: true,
				Decide: func(_ cards.Charge, attempt int) cards.Verdict {
					if attempt == 1 {
						return verdict
					}
					return cards.Accept
				},
			}, shortly)
			first := post(f.handler, body, "Idempotency-Key", "k")
			if first.Code != http.StatusServiceUnavailable || code(first) != "IDEMPOTENCY_OUTCOME_UNKNOWN" ||
				first.Header().Get("Retry-After") == "" {
				t.Errorf("first: %d %s", first.Code, first.Body)
			}
			// The retry does not charge again: nobody knows yet.
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
			f.charged(t, 1)
		})
	}
}

// TestABusyProviderDuringRecovery: nothing was charged, twice over, before it is. The payment whose charge it is has
// its row and its event.
func TestABusyProviderDuringRecovery(t *testing.T) {
	t.Parallel()
	f := newCardsWithin(t, cards.Config{Decide: func(_ cards.Charge, attempt int) cards.Verdict {
		return []cards.Verdict{cards.TimeOutBefore, cards.Busy, cards.Accept}[min(attempt, 3)-1]
	}}, shortly)
	if w := post(f.handler, body, "Idempotency-Key", "k"); code(w) != "IDEMPOTENCY_OUTCOME_UNKNOWN" {
		t.Errorf("first: %d %s", w.Code, w.Body)
	}
	w := f.recover(t, "k")
	var p struct {
		PaymentID string `json:"payment_id"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusCreated {
		t.Fatalf("after recovery: %d %s", w.Code, w.Body)
	}
	f.charged(t, 1)
	shown := httptest.NewRecorder()
	f.handler.ServeHTTP(shown, httptest.NewRequest(http.MethodGet, "/payments/"+p.PaymentID, nil))
	if shown.Code != http.StatusOK || shown.Body.String() != w.Body.String() {
		t.Errorf("%d %s, and the caller was told %s", shown.Code, shown.Body, w.Body)
	}
}

// TestADuplicateWebhook: the provider tells each charge three times, once it counts.
func TestADuplicateWebhook(t *testing.T) {
	t.Parallel()
	var handler http.Handler
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(hook.Close)
	f := newCards(t, cards.Config{Webhook: hook.URL + "/notices", Times: 3})
	handler = f.handler
	for _, key := range []string{"k1", "k2"} {
		if w := post(f.handler, body, "Idempotency-Key", key); w.Code != http.StatusCreated {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	f.charged(t, 2)
	if n := pgtest.One[int](t, f.DB, "select sum(confirmations)::int from payment"); n != 2 {
		t.Errorf("%d confirmations of 2 charges that were each told three times", n)
	}
}

// TestKilledBetweenChargeAndRecord: the provider has booked the charge, and the process is killed before it hears of
// it. Another process's recovery asks the provider, and completes the payment: the caller's retry gets it, nothing is
// charged twice, and one event is told.
func TestKilledBetweenChargeAndRecord(t *testing.T) {
	t.Parallel()
	var victim child
	f := newCards(t, cards.Config{IgnoreKeys: true, Booked: func(c cards.Charge) { victim.kill() }})
	victim.start(t, f)
	awaitReady(t, victim.url)
	if status, text := ask(t, http.MethodPost, victim.url+"/payments", body); status != 0 {
		t.Fatalf("a process that was killed answered %d: %s", status, text)
	}
	if n := len(f.bank.Ledger()); n != 1 {
		t.Fatalf("%d charges before the kill", n)
	}
	if state := pgtest.One[string](t, f.DB, "select stage from idempotency_key"); state != string(
		idempotency.ProviderRequestSent) {
		t.Errorf("the record says %s", state)
	}
	w := f.recover(t, "k")
	var p struct {
		PaymentID string `json:"payment_id"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusCreated ||
		w.Header().Get(payments.HeaderReplayed) != "true" || "provider_payment_"+p.PaymentID != f.bank.Ledger()[0].Key {
		t.Errorf("after recovery: %d %s", w.Code, w.Body)
	}
	f.charged(t, 1)
	if f.bank.Attempts("provider_payment_"+p.PaymentID) != 1 {
		t.Error("the provider was asked to charge again")
	}
}

// TestServiceRunsRecovery: Run does what the tests above do by hand.
func TestServiceRunsRecovery(t *testing.T) {
	t.Parallel()
	f := newCardsWithin(t, cards.Config{Decide: func(_ cards.Charge, attempt int) cards.Verdict {
		if attempt == 1 {
			return cards.TimeOutAfter
		}
		return cards.Accept
	}}, shortly)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.service.Recovery.Run(ctx) }()
	if w := post(f.handler, body, "Idempotency-Key", "k"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	pgtest.AwaitSQL(t, f.DB, "select count(*) = 1 from idempotency_key where state = 'COMPLETED'")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.charged(t, 1)
}
