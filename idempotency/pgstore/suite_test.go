package pgstore_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency/idempotencytest"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestStore: the exam of every store, over two pools as two processes have them.
func TestStore(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(t *testing.T) idempotencytest.Harness {
		db := pgtest.New(t, "idempotency")
		return harness(t, db, "")
	})
}

func harness(t *testing.T, db *pgtest.DB, schema string) idempotencytest.Harness {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := pgstore.New(db.Pool, pgstore.Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	other, err := pgstore.New(pool, pgstore.Config{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	return idempotencytest.Harness{Store: s, Recoverer: s, Others: []store.Store{other}}
}
