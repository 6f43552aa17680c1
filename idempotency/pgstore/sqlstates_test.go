package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// codesThatTheStoreKnows are SQLSTATEs that its code compares with, or that belong to a class that it does.
var codesThatTheStoreKnows = []string{
	"08006", "08P01", "22012", "23505", "25006", "40001", "40003", "40P01", "53100", "53300", "55P03", "57014", "57P01",
}

// TestSQLStates: each SQLSTATE of the server, raised by a trigger under each statement of a request's transaction, the
// handler's and the outbox's among them, and at its COMMIT, for one key. The request ends within a bounded time with an
// error that names it, nothing of it is written, and others go on; once the trigger is gone it is applied, once.
func TestSQLStates(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	faults := pgtest.NewFaults(t, s.DB)
	recorded := faults.Record(t)
	if _, err := s.store.InTx(t.Context(), pay("100"), insertPayment(pay("100"))); err != nil {
		t.Fatal(err)
	}
	places := recorded()
	hand := pgtest.DealCodes(t, s.DB, draw.Size(10, 250), len(codesThatTheStoreKnows), codesThatTheStoreKnows)
	var running sync.WaitGroup
	slots, cells := make(chan struct{}, 8), 0
	for _, at := range places {
		for _, code := range hand() {
			slots <- struct{}{}
			cells++
			running.Go(func() {
				defer func() { <-slots }()
				if err := s.requestFails(faults, at, code); err != nil {
					t.Errorf("%s: %s: %v", at, code, err)
				}
			})
		}
	}
	running.Wait()
	t.Logf("%d cells in %v", cells, places)
}

func (s *testService) requestFails(faults *pgtest.Faults, at pgtest.Place, code string) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	r, other := pay("100"), pay("100")
	lift := faults.Raise(s.t, pgtest.Fault{Place: at, Field: "key", Value: r.Key.Value}, code)
	res, err := s.store.InTx(ctx, r, insertPayment(r))
	if err == nil || !strings.Contains(err.Error(), "(SQLSTATE "+code+")") {
		lift()
		return fmt.Errorf("%+v, %w: want an error with the code", res, err)
	}
	_, err = s.store.InTx(ctx, other, insertPayment(other))
	lift()
	if err != nil {
		return fmt.Errorf("another request: %w", err)
	}
	for replayed := range 2 {
		if res, err = s.store.InTx(ctx, r, insertPayment(r)); err != nil || res.Replayed != (replayed == 1) {
			return fmt.Errorf("without the trigger: %+v, %w", res, err)
		}
	}
	for _, key := range []string{r.Key.Value, other.Key.Value} {
		var payments, events int
		err = s.Pool.QueryRow(ctx, "select (select count(*) from payment where key = $1), (select count(*) "+
			"from outbox_event where key = $1)", key).Scan(&payments, &events)
		if err != nil || payments != 1 || events != 1 {
			return fmt.Errorf("%d payments and %d events of a key: %w", payments, events, err)
		}
	}
	return nil
}
