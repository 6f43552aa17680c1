package pgstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestResource_Cascade: the key is deleted with the payment, in one transaction or not at all; then it is new.
func TestResource_Cascade(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	if _, err := s.store.InTx(t.Context(), r, insertPayment(r)); err != nil {
		t.Fatal(err)
	}
	remove := func(then error) error {
		return pgx.BeginFunc(t.Context(), s.Pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "delete from payment where key = $1", r.Key.Value); err != nil {
				return err
			}
			if was, err := s.store.Forget(t.Context(), tx, r.Key); err != nil || !was {
				t.Errorf("forgot: %v, %v", was, err)
			}
			return then
		})
	}
	again := errors.New("rolled back")
	if err := remove(again); !errors.Is(err, again) {
		t.Fatal(err)
	}
	if res, err := s.store.InTx(t.Context(), r, insertPayment(r)); err != nil || !res.Replayed {
		t.Errorf("a deletion that was rolled back forgot the key: %+v, %v", res, err)
	}
	if err := remove(nil); err != nil {
		t.Fatal(err)
	}
	if res, err := s.store.InTx(t.Context(), r, insertPayment(r)); err != nil || res.Replayed {
		t.Errorf("a retry after the deletion: %+v, %v", res, err)
	}
	if n := pgtest.One[int](t, s.DB, "select count(*) from payment"); n != 1 {
		t.Errorf("%d payments", n)
	}
}

// TestForget_KeepsUnfinished: a key that is in progress or unknown is not deleted.
func TestForget_KeepsUnfinished(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	c, err := s.store.Claim(t.Context(), r, store.ClaimOptions{Token: "t", Lease: time.Minute})
	if err != nil || !c.Won {
		t.Fatal(c, err)
	}
	for _, state := range []idempotency.State{idempotency.InProgress, idempotency.Unknown} {
		err := pgx.BeginFunc(t.Context(), s.Pool, func(tx pgx.Tx) error {
			was, err := s.store.Forget(t.Context(), tx, r.Key)
			if was {
				t.Errorf("%s was forgotten", state)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if rec, found, err := s.store.Get(t.Context(), r.Key); err != nil || !found || rec.State != state {
			t.Errorf("%+v, %v, %v", rec, found, err)
		}
		if state == idempotency.InProgress {
			if err := s.store.MarkUnknown(t.Context(), c.Lease, "nobody knows", time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	}
}
