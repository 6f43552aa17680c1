package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestRecoverAndSweep_SkipLocked: they skip rows that another recoverer or sweeper has locked.
func TestRecoverAndSweep_SkipLocked(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{Keep: idempotency.Retention{Body: time.Microsecond, Tombstone: time.Hour}})
	for range 2 {
		if _, err := s.store.Claim(t.Context(), pay("1"),
			store.ClaimOptions{Token: "vanishes", Lease: time.Microsecond}); err != nil {
			t.Fatal(err)
		}
		r := pay("1")
		if _, err := s.store.InTx(t.Context(), r, insertPayment(r)); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.AwaitSQL(t, s.DB, "select bool_and(coalesce(lease_until, body_until) < clock_timestamp()) from "+
		"idempotency_key")
	tx, err := s.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from idempotency_key where (tenant, operation, key) in
		(select distinct on (state) tenant, operation, key from idempotency_key order by state)
		for update`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a wait would end in an error
	defer cancel()
	opt := store.RecoverOptions{Limit: 10, Lease: time.Hour, Token: "recoverer"}
	if got, err := s.store.Recover(ctx, opt); err != nil || len(got) != 1 {
		t.Errorf("recovered %d, %v", len(got), err)
	}
	if got, err := s.store.Sweep(ctx, 10); err != nil || got.Bodies != 1 {
		t.Errorf("swept %+v, %v", got, err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := s.store.Recover(ctx, opt); err != nil || len(got) != 1 {
		t.Errorf("recovered %d, %v", len(got), err)
	}
	if got, err := s.store.Sweep(ctx, 10); err != nil || got.Bodies != 1 {
		t.Errorf("swept %+v, %v", got, err)
	}
}

// TestTable_Constraints: they refuse invalid rows of any writer.
func TestTable_Constraints(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("1")
	if _, err := s.store.Claim(t.Context(), r, store.ClaimOptions{Token: "t", Lease: time.Hour}); err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{
		"state = 'FREE'", "lease_until = null", "due_at = null", "forget_at = now()", "body = 'x'",
		"state = 'COMPLETED'",
		"fingerprint = 'short'", "stage = 'SOMEWHERE'", "failure = 'x'",
	} {
		err := pgx.BeginFunc(t.Context(), s.Pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "update idempotency_key set "+set)
			return err
		})
		if err == nil {
			t.Errorf("set %s is taken", set)
		}
	}
	// A body that outlives its row, and one of an expired key.
	for _, set := range []string{"state = 'COMPLETED', body_until = now() + interval '2 h', forget_at = now() + " +
		"interval '1 h'", "state = 'EXPIRED', body = 'x'"} {
		_, err := s.Pool.Exec(t.Context(), "update idempotency_key set lease_until = null, due_at = null, input = "+
			"null, finished_at = now(), "+set)
		if err == nil {
			t.Errorf("set %s is taken", set)
		}
	}
}
