package pgstore_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestInTx_LostCommit: if COMMIT or its reply is lost, there is one effect, and its caller gets the result.
func TestInTx_LostCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		action pgtest.Action
		runs   int32
	}{
		"reply lost": {pgtest.DropReply, 1},
		"never sent": {pgtest.CutBefore, 2},
		"cut":        {pgtest.CutAfter, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestService(t, pgstore.Config{})
			store, proxy := s.storeThroughProxy(pgstore.Config{})
			for _, refused := range []bool{false, true} {
				r := pay("100")
				trap := proxy.OnCommitAfter(func(sql string) bool {
					return strings.Contains(sql, "pgstore: write a result")
				}, c.action)
				var runs atomic.Int32
				res, err := store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result,
					error,
				) {
					runs.Add(1)
					res, err := insertPayment(r)(ctx, tx)
					if refused && err == nil {
						err = outcome.Terminal("no", errors.New("no"))
					}
					return res, err
				})
				<-trap.Fired()
				// CutAfter: the backend may also have found its client gone before it read the COMMIT.
				if n := runs.Load(); err != nil || res.Replayed || n != c.runs && c.action != pgtest.CutAfter {
					t.Errorf("%d runs, %+v, %v", n, res, err)
				}
				want := created(r)
				if refused {
					want.Failure = "no"
				}
				s.requireResult(res, want)
				s.requirePayments(r, map[bool]int{false: 1, true: 0}[refused])
				again, err := s.store.InTx(t.Context(), r, insertPayment(r))
				if err != nil || !again.Replayed {
					t.Errorf("%+v, %v", again, err)
				}
				s.requireResult(again, want)
			}
		})
	}
}

// TestInTx_LateCommit: a COMMIT arrives after its connection was given up. The lookup waits for it.
func TestInTx_LateCommit(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	store, proxy := s.storeThroughProxy(pgstore.Config{})
	trap := proxy.OnCommitAfter(func(sql string) bool { return strings.Contains(sql, "pgstore: write a result") },
		pgtest.Late)
	var runs atomic.Int32
	ended := make(chan error, 1)
	var res idempotency.Result
	go func() {
		var err error
		res, err = store.InTx(context.Background(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result,
			error,
		) {
			runs.Add(1)
			return insertPayment(r)(ctx, tx)
		})
		ended <- err
	}()
	<-trap.Fired()
	pgtest.AwaitSQL(t, s.DB, "select exists (select from pg_stat_activity where wait_event = 'advisory' and "+
		"application_name = $1)", s.Schema)
	trap.Release()
	if err := <-ended; err != nil || runs.Load() != 1 || res.Replayed {
		t.Errorf("%d runs, %+v, %v", runs.Load(), res, err)
	}
	s.requirePayments(r, 1)
}

// TestSave_Late: a save of a connection that was given up is executed after it was sent again, and after the next one.
// It does not replace the newer progress: recovery would assume that a provider was not called.
func TestSave_Late(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	proxy := pgtest.NewProxy(t, s.URL)
	config, err := pgxpool.ParseConfig(proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	keys := s.open(pool, pgstore.Config{})
	c, err := keys.Claim(t.Context(), r, store.ClaimOptions{Token: "t", Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := pool.QueryRow(t.Context(), "select pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	charged := store.Progress{
		Stage: idempotency.ProviderConfirmed,
		Steps: []store.Step{{Name: "charge", State: store.StepDone, Key: "c"}},
	}
	mailing := store.Progress{
		Stage: idempotency.ProviderRequestSent,
		Steps: append(charged.Steps, store.Step{Name: "mail", State: store.StepSent, Key: "m"}),
	}
	trap := proxy.On(func(sql string) bool { return strings.Contains(sql, "pgstore: save") }, 0, pgtest.Late)
	if err := keys.Save(t.Context(), c.Lease, charged); err == nil {
		t.Fatal("the first save was answered")
	}
	<-trap.Fired()
	for _, p := range []store.Progress{charged, mailing} {
		if err := keys.Save(t.Context(), c.Lease, p); err != nil {
			t.Fatal(err)
		}
	}
	trap.Release()
	pgtest.AwaitSQL(t, s.DB, "select not exists (select from pg_stat_activity where pid = $1)", pid)
	rec, _, err := s.store.Get(t.Context(), r.Key)
	if err != nil || len(rec.Progress.Steps) != 2 || rec.Progress.Stage != idempotency.ProviderRequestSent {
		t.Errorf("%+v, %v", rec.Progress, err)
	}
	// Nobody has it any more: that is not "replaced since".
	if err := keys.MarkUnknown(t.Context(), c.Lease, "", 0); err != nil {
		t.Fatal(err)
	}
	if err := keys.Save(t.Context(), c.Lease, charged); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("after the lease: %v", err)
	}
}

// TestInTx_LookupFails: the database is lost with the reply. The outcome is unknown, and the same request gets the
// result later.
func TestInTx_LookupFails(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	store, proxy := s.storeThroughProxy(pgstore.Config{})
	trap := proxy.OnCommit(pgtest.DropReply)
	_, err := store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		proxy.Refuse(true)
		return insertPayment(r)(ctx, tx)
	})
	<-trap.Fired()
	s.requireError(err, idempotency.ErrUnknown)
	proxy.Refuse(false)
	res, err := store.InTx(t.Context(), r, insertPayment(r))
	if err != nil || !res.Replayed {
		t.Errorf("%+v, %v", res, err)
	}
	s.requirePayments(r, 1)
}

// TestInTx_UnavailableIsRetryable: without a connection before COMMIT nothing was done, and the error says so.
func TestInTx_UnavailableIsRetryable(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	store, proxy := s.storeThroughProxy(pgstore.Config{})
	retryable := func(when string, err error) {
		t.Helper()
		if class, _ := outcome.Of(err); class != outcome.ClassRetryable {
			t.Errorf("%s: %v", when, err)
		}
	}
	_, err := store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		proxy.Refuse(true)
		proxy.CutAll()
		return insertPayment(r)(ctx, tx)
	})
	retryable("in the middle", err)
	proxy.Refuse(false)
	_, err = store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		proxy.Refuse(true)
		proxy.CutAll()
		res, err := insertPayment(r)(ctx, tx)
		return res, outcome.Unknown(err)
	})
	if class, _ := outcome.Of(err); class != outcome.ClassUnknown {
		t.Errorf("what the handler calls unknown: %v", err)
	}
	_, err = store.InTx(t.Context(), r, insertPayment(r))
	retryable("from the start", err)
	s.requireNoKey(r)
	s.requirePayments(r, 0)
	proxy.Refuse(false)
	if res, err := store.InTx(t.Context(), r, insertPayment(r)); err != nil || res.Replayed {
		t.Errorf("%+v, %v", res, err)
	}
	s.requirePayments(r, 1)
}
