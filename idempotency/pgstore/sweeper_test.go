package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestSweeper(t *testing.T) {
	t.Parallel()
	keep := idempotency.Retention{Body: time.Microsecond, Tombstone: time.Microsecond}
	s := newTestService(t, pgstore.Config{Keep: keep})
	r := pay("100")
	if _, err := s.store.InTx(t.Context(), r, insertPayment(r)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- pgstore.Sweeper{Store: s.store, Every: time.Millisecond}.Run(ctx) }()
	pgtest.AwaitSQL(t, s.DB, "select count(*) = 0 from idempotency_key")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
