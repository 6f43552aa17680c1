package pgstore_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

func TestObserver(t *testing.T) {
	t.Parallel()
	var seen []string
	saw := func(what string) { seen = append(seen, what) }
	s := newTestService(t, pgstore.Config{Observer: idempotency.Observer{
		Finished:     func(i idempotency.FinishedInfo) { saw("finished " + i.Failure) },
		Replayed:     func(i idempotency.ReplayedInfo) { saw("replayed " + i.Failure) },
		Mismatched:   func(i idempotency.MismatchedInfo) { saw("mismatched " + string(i.State)) },
		InProgress:   func(idempotency.InProgressInfo) { saw("in progress") },
		ExpiredRetry: func(idempotency.ExpiredInfo) { saw("expired") },
		Unknown:      func(i idempotency.UnknownInfo) { saw("unknown " + string(i.Stage)) },
		Released:     func(i idempotency.ReleasedInfo) { saw("released " + i.Err.Error()) },
	}})
	expiring := s.open(s.Pool, pgstore.Config{Keep: idempotency.Retention{Body: time.Microsecond}})
	do := func(r idempotency.Request, h pgstore.Handler) { _, _ = s.store.InTx(t.Context(), r, h) }
	fails := func(err error) pgstore.Handler {
		return func(context.Context, pgx.Tx) (idempotency.Result, error) { return idempotency.Result{}, err }
	}
	r := pay("1")
	do(r, fails(errors.New("away")))
	do(r, fails(outcome.Terminal("declined", errors.New("no"))))
	do(r, insertPayment(r))
	r.Fingerprint.Sum[0]++
	do(r, insertPayment(r))
	held, unknown, old := pay("1"), pay("1"), pay("1")
	for _, r := range []idempotency.Request{held, unknown} {
		if _, err := s.store.Claim(t.Context(), r, store.ClaimOptions{Token: "t", Lease: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	rec, _, err := s.store.Get(t.Context(), unknown.Key)
	if err == nil {
		err = s.store.MarkUnknown(t.Context(), store.Lease{Key: unknown.Key, Fence: rec.Fence, Token: "t"}, "?", 0)
	}
	if err == nil {
		_, err = expiring.InTx(t.Context(), old, insertPayment(old))
	}
	if err != nil {
		t.Fatal(err)
	}
	do(held, insertPayment(held))
	do(unknown, insertPayment(unknown))
	do(old, insertPayment(old))
	if err := pgx.BeginFunc(t.Context(), s.Pool, func(tx pgx.Tx) error {
		r := pay("1")
		_, err := s.store.Within(t.Context(), tx, r, insertPayment(r))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"released away", "finished declined", "replayed declined", "mismatched FAILED_REPLAYABLE",
		"in progress", "unknown RECEIVED", "expired", "finished ",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("saw %q\nwant %q", seen, want)
	}
}
