package payments_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// forgetful is a provider that does not remember refusals.
type forgetful func() (string, error)

// Charge implements payments.Provider.
func (p forgetful) Charge(context.Context, payments.Charge) (string, error) { return p() }

// Find implements payments.Provider.
func (forgetful) Find(context.Context, string) (string, error) { return "", nil }

// TestUnrecordedRefusal: the card is refused and the row declined, but all writes of the key's record fail. The caller
// is told that the outcome is unknown. Recovery asks the provider, which does not remember the refusal, and charges:
// the payment is accepted, with its event.
func TestUnrecordedRefusal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := pgtest.NewProxy(t, f.URL)
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	serve := func(db *pgxpool.Pool, p payments.Provider) *payments.Service {
		t.Helper()
		s, err := payments.New(db, payments.Config{
			Schema: f.Schema, Cards: p, Logger: slog.New(slog.DiscardHandler), Recovery: recovery.Config{Grace: -1},
			// The writes that are lost are repeated for that long, twice; the others must succeed in it.
			Guard: guard.Config{RecordTimeout: 3 * time.Second, RecoverAfter: -1},
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	lost := func(sql string) bool {
		return strings.HasPrefix(sql, "-- pgstore: save") || strings.HasPrefix(sql, "-- pgstore: finish")
	}
	owner := serve(pool, forgetful(func() (string, error) {
		for range 100 {
			proxy.On(lost, 0, pgtest.CutBefore)
		}
		return "", outcome.Terminal("card_declined", errors.New("no"))
	}))
	if w := post(owner, body, "Idempotency-Key", "k"); code(w) != "IDEMPOTENCY_OUTCOME_UNKNOWN" {
		t.Errorf("the first time: %d %s", w.Code, w.Body)
	}
	if got := pgtest.One[string](t, f.DB, "select status from payment"); got != "declined" {
		t.Fatalf("the payment is %s: the test is about one that is declined", got)
	}
	other := serve(f.Pool, forgetful(func() (string, error) { return "charge-1", nil }))
	pgtest.Await(t, "recovery", func() (bool, error) {
		n, err := other.Recovery.Once(t.Context())
		return n > 0, err
	})
	if w := post(other, body, "Idempotency-Key", "k"); w.Code != http.StatusCreated {
		t.Errorf("after recovery: %d %s", w.Code, w.Body)
	}
	if n := pgtest.One[int](t, f.DB,
		"select count(*) from payment where status = 'accepted' and charge = 'charge-1'"); n != 1 {
		t.Errorf("the charged payment is %s", pgtest.One[string](t, f.DB, "select status from payment"))
	}
	if n := pgtest.One[int](t, f.DB, "select count(*) from outbox_event"); n != 1 {
		t.Errorf("%d events", n)
	}
}
