package pgstore_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestSweeper(t *testing.T) {
	t.Parallel()
	keep := idempotency.Retention{Body: time.Microsecond, Tombstone: time.Microsecond}
	logged := make(chan struct{}, 1)
	s := newTestService(t, pgstore.Config{Keep: keep, Logger: slog.New(slog.NewTextHandler(notify(logged), nil))})
	r := pay("100")
	if _, err := s.store.InTx(t.Context(), r, insertPayment(r)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- pgstore.Sweeper{Store: s.store, Every: time.Millisecond}.Run(ctx) }()
	pgtest.AwaitSQL(t, s.DB, "select count(*) = 0 from idempotency_key")
	s.DB.Exec(t, "alter table idempotency_key rename to away")
	<-logged // a sweep that fails is not silent
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// notify is a writer that tells of its first write.
type notify chan struct{}

func (n notify) Write(b []byte) (int, error) {
	select {
	case n <- struct{}{}:
	default:
	}
	return len(b), nil
}
