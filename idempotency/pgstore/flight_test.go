package pgstore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/outcome"
)

// hotKey is a process with few connections and many callers of one key, of which the first waits in its handler.
type hotKey struct {
	*testService
	request     idempotency.Request
	store       *pgstore.Store
	shared      atomic.Int32  // answers that were another caller's
	runs        atomic.Int32  // of the handler
	firstInside chan struct{} // closed when the first is in its handler
	finishFirst chan error    // what the first one's handler ends with
	firstErr    chan error    // the first one's answer
	followers
}

type followers struct {
	sync.WaitGroup
	results []idempotency.Result
	errs    []error
}

func newHotKey(t *testing.T, ctx context.Context) *hotKey {
	t.Helper()
	c := &hotKey{
		testService: newTestService(t, pgstore.Config{}), request: pay("100"), firstInside: make(chan struct{}),
		finishFirst: make(chan error), firstErr: make(chan error, 1),
	}
	config := c.Pool.Config()
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c.store = c.open(pool, pgstore.Config{Wait: time.Minute, Observer: idempotency.Observer{
		Replayed: func(i idempotency.ReplayedInfo) {
			if i.Shared {
				c.shared.Add(1)
			}
		},
	}})
	go func() {
		_, err := c.store.InTx(ctx, c.request, c.handle)
		c.firstErr <- err
	}()
	<-c.firstInside
	return c
}

// handle inserts a payment. The first caller waits before it.
func (c *hotKey) handle(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
	if c.runs.Add(1) == 1 {
		close(c.firstInside)
		if err := <-c.finishFirst; err != nil {
			return idempotency.Result{}, err
		}
	}
	return insertPayment(c.request)(ctx, tx)
}

// startFollowers starts n more callers, and returns when all are about to call.
func (c *hotKey) startFollowers(n int, r idempotency.Request) {
	c.results, c.errs = make([]idempotency.Result, n), make([]error, n)
	var begun sync.WaitGroup
	for i := range n {
		begun.Add(1)
		c.Go(func() {
			begun.Done()
			c.results[i], c.errs[i] = c.store.InTx(c.t.Context(), r, c.handle)
		})
	}
	begun.Wait()
}

// TestInTx_HotKeyUsesOneConnection: fifty callers that wait for a key leave connections for others, and get its answer.
func TestInTx_HotKeyUsesOneConnection(t *testing.T) {
	t.Parallel()
	c := newHotKey(t, t.Context())
	c.startFollowers(50, c.request)
	for range 20 { // the longer the others go on, the surer the fifty are in the way if they can be
		other := pay("100")
		if _, err := c.store.InTx(t.Context(), other, insertPayment(other)); err != nil {
			t.Fatal(err)
		}
	}
	c.finishFirst <- nil
	c.Wait()
	if err := <-c.firstErr; err != nil {
		t.Error(err)
	}
	for i, res := range c.results {
		if c.errs[i] != nil || !res.Replayed {
			t.Fatalf("%+v, %v", res, c.errs[i])
		}
		c.requireResult(res, created(c.request))
	}
	if c.runs.Load() != 1 || c.shared.Load() == 0 {
		t.Errorf("%d runs, %d answers were shared", c.runs.Load(), c.shared.Load())
	}
	c.requirePayments(c.request, 1)
}

// TestInTx_NextCallerRunsAfterFailure: it does not get the first caller's error.
func TestInTx_NextCallerRunsAfterFailure(t *testing.T) {
	t.Parallel()
	own := errors.New("its own")
	for name, fail := range map[string]func(c *hotKey, leave func()){
		"the handler fails": func(c *hotKey, _ func()) { c.finishFirst <- own },
		"the caller goes":   func(c *hotKey, leave func()) { leave(); c.finishFirst <- context.Canceled },
		"the caller vanishes": func(c *hotKey, leave func()) {
			leave()
			c.finishFirst <- outcome.Retryable(context.Canceled)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			c := newHotKey(t, ctx)
			c.startFollowers(10, c.request)
			fail(c, leave)
			c.Wait()
			if err := <-c.firstErr; err == nil {
				t.Error("the first one has not failed")
			}
			firsts := 0
			for i, res := range c.results {
				if c.errs[i] != nil {
					t.Fatal(c.errs[i])
				}
				if !res.Replayed {
					firsts++
				}
			}
			if firsts != 1 || c.runs.Load() != 2 {
				t.Errorf("%d were first, %d runs", firsts, c.runs.Load())
			}
			c.requirePayments(c.request, 1)
		})
	}
}

// TestInTx_FlightIsForOneCommand: a caller with another command gets ErrMismatch.
func TestInTx_FlightIsForOneCommand(t *testing.T) {
	t.Parallel()
	c := newHotKey(t, t.Context())
	another := c.request
	another.Fingerprint.Sum[0]++
	c.startFollowers(5, another)
	c.finishFirst <- nil
	c.Wait()
	if err := <-c.firstErr; err != nil {
		t.Error(err)
	}
	for i, res := range c.results {
		c.requireError(c.errs[i], idempotency.ErrMismatch)
		if res.Code != 0 || res.Body != nil {
			t.Errorf("it was answered %+v", res)
		}
	}
	if c.runs.Load() != 1 {
		t.Errorf("%d runs", c.runs.Load())
	}
}

// TestInTx_IsSeenWhileItRuns: its row comes with COMMIT. Until then Get, also of another process that names the schema,
// says that the request is in progress, and another command is refused at once.
func TestInTx_IsSeenWhileItRuns(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{Wait: time.Minute}), pay("100")
	elsewhere, another := s.open(s.Pool, pgstore.Config{Schema: s.Schema}), r
	another.Fingerprint.Sum[0]++
	s.requireNoKey(r)
	_, err := s.store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		for _, from := range []*pgstore.Store{s.store, elsewhere} {
			rec, found, err := from.Get(ctx, r.Key)
			if err != nil || !found || rec.State != idempotency.InProgress || rec.LeaseLeft <= 0 {
				t.Errorf("%+v, %v, %v", rec, found, err)
			}
		}
		_, err := s.store.InTx(ctx, another, insertPayment(another))
		s.requireError(err, idempotency.ErrMismatch)
		return insertPayment(r)(ctx, tx)
	})
	if rec, found, getErr := elsewhere.Get(t.Context(), r.Key); err != nil || getErr != nil || !found ||
		rec.State != idempotency.Completed {
		t.Errorf("%+v, %v, %v, %v", rec, found, err, getErr)
	}
	s.requirePayments(r, 1)
}

func TestInTx_NextCallerRunsAfterPanic(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{Wait: time.Minute}), pay("100")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is not the caller's")
			}
		}()
		_, _ = s.store.InTx(t.Context(), r, func(context.Context, pgx.Tx) (idempotency.Result, error) {
			panic("broken")
		})
	}()
	if res, err := s.store.InTx(t.Context(), r, insertPayment(r)); err != nil || res.Replayed {
		t.Errorf("%+v, %v", res, err)
	}
	s.requirePayments(r, 1)
}
