package pgstore_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestMixed_GuardAndInTx: concurrent callers of one key by Guard and InTx have one effect.
func TestMixed_GuardAndInTx(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{Wait: 30 * time.Second})
	guard, err := guard.New(s.store, guard.Config{Wait: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		r := pay("100")
		var ran atomic.Int32
		results, errs := runConcurrently(8, func(i int) (idempotency.Result, error) {
			if i%2 == 0 {
				return s.store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
					ran.Add(1)
					return insertPayment(r)(ctx, tx)
				})
			}
			return guard.Do(t.Context(), r, func(ctx context.Context) (res idempotency.Result, err error) {
				ran.Add(1)
				return res, pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) error {
					res, err = insertPayment(r)(ctx, tx)
					return err
				})
			})
		})
		for i := range results {
			if errs[i] == nil {
				s.requireResult(results[i], created(r))
				continue
			}
			// InTx does not wait for a guard, which may be at it for minutes.
			s.requireError(errs[i], idempotency.ErrInProgress)
		}
		if ran.Load() != 1 {
			t.Errorf("%d ran", ran.Load())
		}
		s.requirePayments(r, 1)
	}
}

// TestMixed_GuardLostCommit: a guard's transaction has committed, and its reply was lost: the key is not free, for its
// own command nor for another.
func TestMixed_GuardLostCommit(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	through, proxy := s.throughProxy()
	g, err := guard.New(s.store, guard.Config{Classify: guard.ClassifySQL})
	if err != nil {
		t.Fatal(err)
	}
	refused := false
	insert := func(ctx context.Context, r idempotency.Request) (res idempotency.Result, err error) {
		return res, pgx.BeginFunc(ctx, through, func(tx pgx.Tx) error {
			if res, err = insertPayment(r)(ctx, tx); err == nil && refused {
				_, err = tx.Exec(ctx, "select 1/0")
			}
			return err
		})
	}
	for name, attempt := range map[string]func(r idempotency.Request) error{
		"Do": func(r idempotency.Request) error {
			_, err := g.Do(t.Context(), r, func(ctx context.Context) (idempotency.Result, error) {
				return insert(ctx, r)
			})
			return err
		},
		"the first phase of Run": func(r idempotency.Request) error {
			_, err := g.Run(t.Context(), r, func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
				_, err := op.Local(ctx, "payment", func(ctx context.Context, _ guard.Call) ([]byte, error) {
					_, err := insert(ctx, r)
					return nil, err
				})
				return created(r), err
			})
			return err
		},
	} {
		r := pay("100")
		trap := proxy.OnCommit(pgtest.DropReply)
		s.requireError(attempt(r), idempotency.ErrUnknown)
		<-trap.Fired()
		s.requireError(attempt(r), idempotency.ErrUnknown)
		other := r
		other.Fingerprint.Sum[0]++
		s.requireError(attempt(other), idempotency.ErrMismatch)
		s.requirePayments(r, 1)
		if t.Failed() {
			t.Fatal(name)
		}
		r, refused = pay("100"), true // by the server, which has rolled back
		if err := attempt(r); err == nil || errors.Is(err, idempotency.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		s.requireNoKey(r)
		refused = false
	}
}

// TestMixed_InTxAfterCrashedOwner: the outcome is unknown, although the work is local.
func TestMixed_InTxAfterCrashedOwner(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	if _, err := s.store.Claim(t.Context(), r,
		store.ClaimOptions{Token: "vanishes", Lease: time.Microsecond}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := s.store.InTx(t.Context(), r, insertPayment(r))
		s.requireError(err, idempotency.ErrUnknown)
	}
	if rec, _, _ := s.store.Get(t.Context(), r.Key); rec.State != idempotency.Unknown {
		t.Errorf("%+v", rec)
	}
	got, err := s.store.Recover(t.Context(), store.RecoverOptions{Limit: 1, Lease: time.Hour, Token: "recoverer"})
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := s.store.Release(t.Context(), got[0].Lease); err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.InTx(t.Context(), r, insertPayment(r)); err != nil {
		t.Error(err)
	}
	s.requirePayments(r, 1)
}

// TestInTx_OverdueTombstone: it does not count, swept or not, also for another command; a refusal is recorded over it.
func TestInTx_OverdueTombstone(t *testing.T) {
	t.Parallel()
	keep := idempotency.Retention{Body: time.Microsecond, Tombstone: time.Microsecond}
	s := newTestService(t, pgstore.Config{Keep: keep})
	long := s.open(s.Pool, pgstore.Config{})
	for _, refused := range []bool{false, true} {
		r := pay("100")
		for range 3 {
			if res, err := s.store.InTx(t.Context(), r, insertPayment(r)); err != nil || res.Replayed {
				t.Errorf("%+v, %v", res, err)
			}
			r.Fingerprint.Sum[0]++
		}
		s.requirePayments(r, 3)
		for _, replayed := range []bool{false, true} {
			res, err := long.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
				res, err := insertPayment(r)(ctx, tx)
				if refused && err == nil {
					err = outcome.Terminal("no", errors.New("no"))
				}
				return res, err
			})
			if err != nil || res.Replayed != replayed {
				t.Errorf("%+v, %v", res, err)
			}
		}
		s.requirePayments(r, map[bool]int{false: 4, true: 3}[refused])
	}
}

func TestWithin_CallersTransaction(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{Wait: -1})
	begin := func() pgx.Tx {
		tx, err := s.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	end := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r := pay("100")
	tx := begin()
	res, err := s.store.Within(t.Context(), tx, r, insertPayment(r))
	if err != nil || res.Replayed {
		t.Fatalf("%+v, %v", res, err)
	}
	// Others wait, and are told.
	_, err = s.store.InTx(t.Context(), r, insertPayment(r))
	s.requireError(err, idempotency.ErrInProgress)
	second := begin()
	_, err = s.store.Within(t.Context(), second, r, insertPayment(r))
	s.requireError(err, idempotency.ErrInProgress)
	// A transaction that was told so goes on.
	_, err = second.Exec(t.Context(), "insert into payment (key, amount) values ('other', 1)")
	end(err)
	end(second.Commit(t.Context()))
	end(tx.Rollback(t.Context()))
	s.requireNoKey(r)
	s.requirePayments(r, 0)

	tx = begin()
	_, err = s.store.Within(t.Context(), tx, r, insertPayment(r))
	end(err)
	again, err := s.store.Within(t.Context(), tx, r, insertPayment(r))
	if err != nil || !again.Replayed {
		t.Errorf("in the same transaction: %+v, %v", again, err)
	}
	end(tx.Commit(t.Context()))
	s.requirePayments(r, 1)

	tx = begin()
	again, err = s.store.Within(t.Context(), tx, r, insertPayment(r))
	if err != nil || !again.Replayed {
		t.Errorf("%+v, %v", again, err)
	}
	s.requireResult(again, created(r))
	end(tx.Commit(t.Context()))
	s.requirePayments(r, 1)
}

// TestWithin_ErrorHasNoEffect: even if the caller commits its other writes; a refusal is recorded.
func TestWithin_ErrorHasNoEffect(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	for name, do := range map[string]pgstore.Handler{
		"error": func(context.Context, pgx.Tx) (idempotency.Result, error) {
			return idempotency.Result{}, errors.New("no")
		},
		"statement": func(ctx context.Context, tx pgx.Tx) (res idempotency.Result, err error) {
			_, err = tx.Exec(ctx, "select 1/0")
			return
		},
		"deadlock": func(ctx context.Context, tx pgx.Tx) (res idempotency.Result, err error) {
			_, err = tx.Exec(ctx, "do $$ begin raise exception 'x' using errcode = '40P01'; end $$")
			return
		},
		"commits": func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			return idempotency.Result{}, tx.Commit(ctx)
		},
		"terminal": func(context.Context, pgx.Tx) (idempotency.Result, error) {
			return idempotency.Result{Code: 402}, outcome.Terminal("declined", errors.New("no"))
		},
	} {
		r := pay("100")
		err := pgx.BeginFunc(t.Context(), s.Pool, func(tx pgx.Tx) error {
			_, err := s.store.Within(t.Context(), tx, r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result,
				error,
			) {
				if _, err := insertPayment(r)(ctx, tx); err != nil {
					return idempotency.Result{}, err
				}
				return do(ctx, tx)
			})
			if (err == nil) != (name == "terminal") {
				t.Errorf("%s: %v", name, err)
			}
			_, err = tx.Exec(t.Context(), "insert into payment (key, amount) values ($1, 1)", "beside "+r.Key.Value)
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s.requirePayments(r, 0)
		if n := pgtest.One[int](t, s.DB, "select count(*) from payment where key = $1", "beside "+r.Key.Value); n != 1 {
			t.Errorf("%s: what the caller wrote is gone", name)
		}
		if name != "terminal" {
			s.requireNoKey(r)
		} else if rec, _, _ := s.store.Get(t.Context(), r.Key); rec.State != idempotency.FailedReplayable ||
			rec.Result.Failure != "declined" {
			t.Errorf("%+v", rec)
		}
	}
}

func TestNew_Refuses(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	if _, err := pgstore.New(nil, pgstore.Config{}); err == nil {
		t.Error("no pool")
	}
	for want, cfg := range map[string]pgstore.Config{"schema": {Schema: "A;"}, "Attempts": {Attempts: -1}} {
		if _, err := pgstore.New(s.Pool, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	for _, k := range []idempotency.Key{
		{},
		{Operation: "o"},
		{Operation: "o", Value: "\x00"},
		{Operation: "o", Value: strings.Repeat("x", 256)},
	} {
		r := pay("1")
		r.Key = k
		_, err := s.store.InTx(t.Context(), r, insertPayment(r))
		s.requireError(err, idempotency.ErrInvalidKey)
		err = pgx.BeginFunc(t.Context(), s.Pool, func(tx pgx.Tx) error {
			_, err := s.store.Within(t.Context(), tx, r, insertPayment(r))
			return err
		})
		s.requireError(err, idempotency.ErrInvalidKey)
	}
}
