package recovery_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/fakeprovider"
)

// Bugs of other systems.

// TestPeer_DBOSJava491_LiveOwnerIsNotRecovered: work that takes longer than its lease, with a heartbeat, is not
// recovered.
func TestPeer_DBOSJava491_LiveOwnerIsNotRecovered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		g, err := guard.New(w.store, guard.Config{Lease: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		worker, err := recovery.New(w.store, map[string]recovery.Handler{operation: {Rerun: true, Resume: w.pay}},
			recovery.Config{Grace: -1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Run(t.Context(), request(), func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			for range 20 {
				advance(900 * time.Millisecond)
				if n, err := worker.Once(ctx); n != 0 || err != nil {
					t.Errorf("recovery processed %d, %v", n, err)
				}
			}
			return w.pay(ctx, op)
		}); err != nil {
			t.Error(err)
		}
		if w.bank.Calls() != 1 {
			t.Errorf("%d calls", w.bank.Calls())
		}
	})
}

// TestPeer_River1302_LateWorkerOverwritesNothing: a worker that lost its lease ends after another one has completed the
// operation. Its result is refused.
func TestPeer_River1302_LateWorkerOverwritesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.makeUnknown(t, fakeprovider.LostAnswer)
		other := recovery.Handler{Rerun: true, Probe: w.probe, Resume: w.pay}
		late := recovery.Handler{Rerun: true, Probe: w.probe, Resume: func(context.Context, *guard.Op) (
			idempotency.Result, error,
		) {
			w.recoverAll(t, other, recovery.Config{})
			return idempotency.Result{Code: 409, Body: []byte("late")}, nil
		}}
		var outcome recovery.Outcome
		p := &process{Recoverable: w.store, noHeartbeat: true}
		worker, err := recovery.New(p, map[string]recovery.Handler{operation: late},
			recovery.Config{
				Observer: recovery.Observer{Recovered: func(i recovery.RecoveredInfo) { outcome = i.Outcome }},
			})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := worker.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		rec, _, err := w.store.Get(t.Context(), request().Key)
		if err != nil || rec.State != idempotency.Completed || rec.Result.Code != 201 || outcome != recovery.Lost ||
			len(w.bank.Effects()) != 1 {
			t.Errorf("%s: %+v, the late worker's is %s, %v", rec.State, rec.Result, outcome, err)
		}
	})
}

// outageStore is a store whose Recover fails several times.
type outageStore struct {
	store.Recoverable
	mu       sync.Mutex
	failures int
}

func (a *outageStore) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	a.mu.Lock()
	a.failures--
	fails := a.failures >= 0
	a.mu.Unlock()
	if fails {
		return nil, errors.New("the database restarts")
	}
	return a.Recoverable.Recover(ctx, opt)
}

// TestPeer_DBOSPy716_RecoveryAfterOutage: recovery continues after an outage of the database.
func TestPeer_DBOSPy716_RecoveryAfterOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, failures := newWorld(), 0
		w.makeUnknown(t, fakeprovider.LostAnswer)
		worker, err := recovery.New(&outageStore{Recoverable: w.store, failures: 30},
			map[string]recovery.Handler{operation: {Rerun: true, Probe: w.probe, Resume: w.pay}},
			recovery.Config{Observer: recovery.Observer{Failed: func(error) { failures++ }}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := worker.Run(ctx); err != nil {
			t.Error(err)
		}
		rec, _, err := w.store.Get(t.Context(), request().Key)
		if err != nil || rec.State != idempotency.Completed || failures != 30 {
			t.Errorf("%s after %d failures, %v", rec.State, failures, err)
		}
	})
}

// failingRecover is a store whose Recover returns keys and an error.
type failingRecover struct{ store.Recoverable }

func (h failingRecover) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	got, err := h.Recoverable.Recover(ctx, opt)
	return got, errors.Join(err, errors.New("the connection broke"))
}

// TestWorker_ProcessesPartialBatch: keys that the store claimed before its error are processed at once.
func TestWorker_ProcessesPartialBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.makeUnknown(t, fakeprovider.LostAnswer)
		worker, err := recovery.New(failingRecover{w.store},
			map[string]recovery.Handler{operation: {Rerun: true, Probe: w.probe, Resume: w.pay}}, recovery.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := worker.Once(t.Context()); n != 1 || err == nil {
			t.Errorf("%d, %v", n, err)
		}
		if rec, _, err := w.store.Get(t.Context(), request().Key); err != nil || rec.State != idempotency.Completed {
			t.Errorf("%s, %v", rec.State, err)
		}
	})
}
