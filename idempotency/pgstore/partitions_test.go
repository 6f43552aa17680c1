package pgstore_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/idempotencytest"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// partition runs the documentation's script.
func partition(t *testing.T, db *pgtest.DB) {
	t.Helper()
	script, err := os.ReadFile("../../docs/partition-idempotency-keys.sql")
	if err != nil {
		t.Fatal(err)
	}
	conn := db.Connect(t)
	if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), string(script))
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestStore_HashPartitions: the suite on a table that docs/partition-idempotency-keys.sql has partitioned.
func TestStore_HashPartitions(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(t *testing.T) idempotencytest.Harness {
		db := pgtest.New(t, "idempotency")
		partition(t, db)
		return harness(t, db, db.Schema)
	})
}

// TestPartition_KeepsRowsAndConstraints: keys in all states, the constraints, and the comments.
func TestPartition_KeepsRowsAndConstraints(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	done, open := pay("100"), pay("100")
	if _, err := s.store.InTx(t.Context(), done, insertPayment(done)); err != nil {
		t.Fatal(err)
	}
	held, err := s.store.Claim(t.Context(), open, store.ClaimOptions{Token: "t", Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	constraints := "select string_agg(pg_get_constraintdef(oid), '; ' order by pg_get_constraintdef(oid)) from " +
		"pg_constraint where conrelid = 'idempotency_key'::regclass"
	before := pgtest.One[string](t, s.DB, constraints)
	partition(t, s.DB)
	s.Pool.Reset() // plans of the former table
	if after := pgtest.One[string](t, s.DB, constraints); after != before {
		t.Errorf("the rules were\n%s\nand are\n%s", before, after)
	}
	if n := pgtest.One[int](t, s.DB,
		"select count(*) from pg_inherits where inhparent = 'idempotency_key'::regclass"); n != 16 {
		t.Errorf("%d partitions", n)
	}
	res, err := s.store.InTx(t.Context(), done, insertPayment(done))
	if err != nil || !res.Replayed {
		t.Errorf("%+v, %v", res, err)
	}
	if err := s.store.Finish(t.Context(), held.Lease, idempotency.Result{Code: 201},
		idempotency.Retention{}); err != nil {
		t.Error(err)
	}
	s.requirePayments(done, 1)
	if err := migrations.Check(t.Context(), s.Pool,
		migrations.Options{Schema: s.Schema, Sets: []migrations.Set{migrations.Idempotency}}); err != nil {
		t.Error(err)
	}
	// One key, one partition.
	plan := pgtest.One[string](t, s.DB, "explain (format json) select from idempotency_key where tenant = 'acme' and "+
		"operation = 'o' and key = 'k'")
	if n := strings.Count(plan, `"Relation Name"`); n != 1 {
		t.Errorf("a look-up reads %d partitions: %s", n, plan)
	}
}
