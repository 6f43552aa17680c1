package pgstore_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/sqltx"
)

func TestInTx_KeyEffectAndEventCommitTogether(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	first, err := s.store.InTx(t.Context(), r, insertPayment(r))
	if err != nil || first.Replayed || first.At.IsZero() {
		t.Fatalf("%+v, %v", first, err)
	}
	s.requireResult(first, created(r))
	s.requirePayments(r, 1)
	again, err := s.store.InTx(t.Context(), r, insertPayment(r))
	if err != nil || !again.Replayed || !again.At.Equal(first.At) {
		t.Errorf("%+v, %v", again, err)
	}
	s.requireResult(again, created(r))
	s.requirePayments(r, 1)
	// Another tenant and another operation mean other requests.
	tenant, operation := r, r
	tenant.Key.Tenant, operation.Key.Operation = "other", "payment.refund"
	for i, other := range []idempotency.Request{tenant, operation} {
		if res, err := s.store.InTx(t.Context(), other, insertPayment(r)); err != nil || res.Replayed {
			t.Errorf("%+v, %v", res, err)
		}
		s.requirePayments(r, 2+i)
	}
}

// TestInTx_DatabaseSQL: a handler for database/sql writes in the transaction of the key, and cannot end it.
func TestInTx_DatabaseSQL(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	insert := func(do func(tx *sql.Tx) error) pgstore.Handler {
		return func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			return created(r), sqltx.Do(ctx, tx, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "insert into payment (key, amount) values ($1, 100)", r.Key.Value)
				if err != nil {
					return err
				}
				e := event.Event{Topic: "payments", Key: r.Key.Value, Type: "PaymentCreated", Payload: []byte("{}")}
				if err := outbox.AppendSQL(ctx, tx, e); err != nil {
					return err
				}
				return do(tx)
			})
		}
	}
	failed := errors.New("it fails")
	for name, do := range map[string]func(tx *sql.Tx) error{
		"an error": func(*sql.Tx) error { return failed },
		"a COMMIT": func(tx *sql.Tx) error { _ = tx.Commit(); return nil },
	} {
		if _, err := s.store.InTx(t.Context(), r, insert(do)); err == nil {
			t.Errorf("%s: no error", name)
		}
		s.requireNoKey(r)
		s.requirePayments(r, 0)
	}
	for _, replayed := range []bool{false, true} {
		res, err := s.store.InTx(t.Context(), r, insert(func(*sql.Tx) error { return nil }))
		if err != nil || res.Replayed != replayed {
			t.Errorf("%+v, %v", res, err)
		}
		s.requireResult(res, created(r))
		s.requirePayments(r, 1)
	}
}

func TestInTx_HundredCallersOneEffect(t *testing.T) {
	t.Parallel()
	for name, processes := range map[string]int{"of one process": 1, "of ten": 10, "of a hundred": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hundredCallers(t, processes)
		})
	}
}

func hundredCallers(t *testing.T, processes int) {
	cfg := pgstore.Config{Wait: time.Minute}
	s, r := newTestService(t, cfg), pay("100")
	stores := make([]*pgstore.Store, processes)
	for i := range stores {
		stores[i] = s.open(s.Pool, cfg)
	}
	var ran atomic.Int32
	results, errs := runConcurrently(100, func(i int) (idempotency.Result, error) {
		return stores[i%processes].InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result,
			error,
		) {
			ran.Add(1)
			return insertPayment(r)(ctx, tx)
		})
	})
	firsts := 0
	for i := range results {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		s.requireResult(results[i], created(r))
		if !results[i].Replayed {
			firsts++
		}
	}
	if ran.Load() != 1 || firsts != 1 {
		t.Errorf("%d ran, %d were told that they were first", ran.Load(), firsts)
	}
	s.requirePayments(r, 1)
}

// TestInTx_PrimaryKeyIsTheGuarantee: the lock only saves work. If a row was inserted without it, here through a view,
// which has a lock of its own, the primary key rolls the effect back; without it there are two.
func TestInTx_PrimaryKeyIsTheGuarantee(t *testing.T) {
	t.Parallel()
	for name, guarded := range map[string]bool{"with the primary key": true, "without": false} {
		for _, refused := range []bool{false, true} {
			s, r := newTestService(t, pgstore.Config{}), pay("100")
			beside := s.Schema + "_view"
			s.Exec(t, fmt.Sprintf(`create schema %[1]s; create view %[1]s.idempotency_key as select * from idempotency_key`,
				beside))
			other := s.open(s.Pool, pgstore.Config{Schema: beside})
			if !guarded {
				s.Exec(t, "alter table idempotency_key drop constraint idempotency_key_pkey")
			}
			runs := 0
			res, err := s.store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
				if runs++; runs == 1 {
					if res, err := other.InTx(ctx, r, insertPayment(r)); err != nil || res.Replayed {
						t.Errorf("%s: the other one: %+v, %v", name, res, err)
					}
				}
				res, err := insertPayment(r)(ctx, tx)
				if refused && err == nil {
					err = outcome.Terminal("no", errors.New("no"))
				}
				return res, err
			})
			if err != nil || runs != 1 || res.Replayed != guarded || guarded && res.Failure != "" {
				t.Errorf("%s: %d runs, %+v, %v", name, runs, res, err)
			}
			effects := 1
			if !guarded && !refused {
				effects = 2
			}
			s.requirePayments(r, effects)
		}
	}
}

func TestInTx_WaitsThenInProgress(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{true, false} {
		t.Run(map[bool]string{true: "for this process", false: "for another"}[same], func(t *testing.T) {
			t.Parallel()
			waitsThenInProgress(t, same)
		})
	}
}

func waitsThenInProgress(t *testing.T, same bool) {
	s, r := newTestService(t, pgstore.Config{Wait: -1}), pay("100")
	other := s.store
	if !same {
		other = s.open(s.Pool, pgstore.Config{Wait: -1})
	}
	inside, leave := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := s.store.InTx(context.Background(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result,
			error,
		) {
			close(inside)
			<-leave
			return insertPayment(r)(ctx, tx)
		})
		ended <- err
	}()
	<-inside
	res, err := other.InTx(t.Context(), r, insertPayment(r))
	s.requireError(err, idempotency.ErrInProgress)
	var in *idempotency.InProgressError
	if !errors.As(err, &in) || in.RetryAfter <= 0 {
		t.Errorf("%+v, %v", res, err)
	}
	// A guard that comes by the same key is told the same.
	claimed, err := s.store.Claim(t.Context(), r, store.ClaimOptions{Token: "t", Lease: time.Hour})
	if err != nil || claimed.Won || claimed.Record.State != idempotency.InProgress || claimed.Record.LeaseLeft <= 0 {
		t.Errorf("claim: %+v, %v", claimed, err)
	}
	close(leave)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.requirePayments(r, 1)
}

// TestInTx_WaitIsOnlyForTheKey: the handler's lock_timeout bounds its own waits.
func TestInTx_WaitIsOnlyForTheKey(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{Wait: 7 * time.Second}), pay("100")
	var within string
	_, err := s.store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (res idempotency.Result, err error) {
		return res, tx.QueryRow(ctx, "select current_setting('lock_timeout')").Scan(&within)
	})
	if err != nil || within != "0" {
		t.Errorf("lock_timeout is %q, %v", within, err)
	}
}

func TestInTx_TerminalIsKeptAndReplayed(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	declined := errors.New("no funds")
	refuses := func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		if _, err := insertPayment(r)(ctx, tx); err != nil {
			return idempotency.Result{}, err
		}
		return idempotency.Result{Code: 402, Body: []byte("declined")}, outcome.Terminal("card_declined", declined)
	}
	want := idempotency.Result{Code: 402, Body: []byte("declined"), Failure: "card_declined"}
	for _, replayed := range []bool{false, true, true} {
		res, err := s.store.InTx(t.Context(), r, refuses)
		if err != nil || res.Replayed != replayed {
			t.Errorf("%+v, %v", res, err)
		}
		s.requireResult(res, want)
	}
	s.requirePayments(r, 0)
	// After a statement that failed, too, and over a connection that has never kept a result.
	r = pay("100")
	s.Pool.Reset()
	res, err := s.store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		_, err := tx.Exec(ctx, "select 1/0")
		return idempotency.Result{Code: 422}, outcome.Terminal("bad_amount", err)
	})
	if err != nil || res.Failure != "bad_amount" {
		t.Errorf("%+v, %v", res, err)
	}
	if rec, _, _ := s.store.Get(t.Context(), r.Key); rec.State != idempotency.FailedReplayable {
		t.Errorf("%+v", rec)
	}
}

func TestInTx_NoBurnedKey(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	bad := errors.New("the database of another was away")
	ctx, cancel := context.WithCancel(t.Context())
	for name, fails := range map[string]pgstore.Handler{
		"plain": func(context.Context, pgx.Tx) (idempotency.Result, error) {
			return idempotency.Result{Code: 500},
				bad
		},
		"retryable": func(context.Context, pgx.Tx) (idempotency.Result, error) {
			return idempotency.Result{}, outcome.Retryable(bad)
		},
		"statement": func(ctx context.Context, tx pgx.Tx) (res idempotency.Result, err error) {
			_, err = tx.Exec(ctx, "select 1/0")
			return res, err
		},
		"swallowed": func(ctx context.Context, tx pgx.Tx) (res idempotency.Result, err error) {
			_, _ = tx.Exec(ctx, "select 1/0")
			return idempotency.Result{Code: 201}, nil
		},
		"time-out": func(ctx context.Context, tx pgx.Tx) (res idempotency.Result, err error) {
			_, err = tx.Exec(ctx, "set local statement_timeout = '1ms'; select pg_sleep(60)")
			return res, err
		},
		"commits": func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			return idempotency.Result{}, tx.Commit(ctx)
		},
		"commits and says nothing": func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			_ = tx.Commit(ctx)
			return idempotency.Result{Code: 201}, nil
		},
		"terminal over a commit": func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			return idempotency.Result{}, outcome.Terminal("x", tx.Rollback(ctx))
		},
		"gives up": func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			cancel()
			return idempotency.Result{Code: 201}, nil
		},
	} {
		r := pay("100")
		within := t.Context()
		if name == "gives up" {
			within = ctx
		}
		res, err := s.store.InTx(within, r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			if _, err := insertPayment(r)(ctx, tx); err != nil {
				return idempotency.Result{}, err
			}
			return fails(ctx, tx)
		})
		if err == nil || res.Code != 0 {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		s.requireNoKey(r)
		s.requirePayments(r, 0)
		if res, err := s.store.InTx(t.Context(), r, insertPayment(r)); err != nil || res.Replayed {
			t.Errorf("%s: the next attempt: %+v, %v", name, res, err)
		}
		s.requirePayments(r, 1)
	}
}

// TestInTx_HandlerEndsTransaction: a commit by the handler has no key: it gets an error, and no retry finds a result.
func TestInTx_HandlerEndsTransaction(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	terminal := func(res idempotency.Result) (idempotency.Result, error) {
		return res, outcome.Terminal("declined", errors.New("no"))
	}
	success := func(res idempotency.Result) (idempotency.Result, error) { return res, nil }
	type execer interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}
	ways := map[string]func(tx pgx.Tx) execer{
		"transaction": func(tx pgx.Tx) execer { return tx },        // refused before it is sent
		"connection":  func(tx pgx.Tx) execer { return tx.Conn() }, // found out
	}
	for _, sql := range []string{
		"commit", "rollback and chain", "/* x */ end; begin",
		"select 1; commit", "select 1; rollback", "select 1; commit; begin", "select 1; commit and chain",
	} {
		for way, on := range ways {
			for name, end := range map[string]func(idempotency.Result) (idempotency.Result, error){
				"success": success,
				"refusal": terminal,
			} {
				r := pay("100")
				res, err := s.store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result,
					error,
				) {
					if _, err := on(tx).Exec(ctx, sql); err != nil {
						return idempotency.Result{}, err
					}
					return end(created(r))
				})
				if err == nil || !strings.Contains(err.Error(), "transaction") || res.Code != 0 {
					t.Errorf("%s by the %s, then a %s: %+v, %v", sql, way, name, res, err)
					continue // its key is not free
				}
				s.requireNoKey(r)
			}
		}
	}
	// Within finds the savepoint gone.
	tx, err := s.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	r := pay("100")
	if res, err := s.store.Within(t.Context(), tx, r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		_, err := tx.Exec(ctx, "select 1; commit; begin")
		return created(r), err
	}); err == nil {
		t.Errorf("within: %+v", res)
	}
}

// TestWithin_Nested: the inner call's mark is kept with the outer transaction.
func TestWithin_Nested(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	outer, inner := pay("100"), pay("100")
	res, err := s.store.InTx(t.Context(), outer, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		if res, err := s.store.Within(ctx, tx, inner, insertPayment(inner)); err != nil {
			return res, err
		}
		return insertPayment(outer)(ctx, tx)
	})
	if err != nil || res.Code != 201 {
		t.Errorf("%+v, %v", res, err)
	}
	s.requirePayments(outer, 1)
	s.requirePayments(inner, 1)
}

// TestInTx_InvalidResult: a result that fails Check rolls the work back.
func TestInTx_InvalidResult(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	for want, res := range map[string]idempotency.Result{
		"Resource is not UTF-8": {Code: 201, Resource: "a\x00b"},
		"Header is not UTF-8":   {Code: 201, Header: map[string][]string{"Location": {"/\x00"}}},
		"the code 503":          {Code: 503},
	} {
		r := pay("100")
		got, err := s.store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			_, err := insertPayment(r)(ctx, tx)
			return res, err
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v: want %q", got, err, want)
		}
		s.requireNoKey(r)
		s.requirePayments(r, 0)
	}
}

func TestInTx_PanicReleasesTheKey(t *testing.T) {
	t.Parallel()
	s, r := newTestService(t, pgstore.Config{}), pay("100")
	func() {
		defer func() {
			if p := recover(); p != "oops" {
				t.Errorf("recovered %v", p)
			}
		}()
		_, _ = s.store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			_, _ = insertPayment(r)(ctx, tx)
			panic("oops")
		})
	}()
	s.requireNoKey(r)
	s.requirePayments(r, 0)
}

// TestInTx_DeadlockIsRetried: the work that loses a deadlock runs again, however its error is wrapped.
func TestInTx_DeadlockIsRetried(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	s.Exec(t, "create table account (id int primary key, balance int not null); insert into account values (1, "+
		"0), (2, 0)")
	var both, ran atomic.Int32
	requests := []idempotency.Request{pay("1"), pay("2")}
	_, errs := runConcurrently(2, func(i int) (idempotency.Result, error) {
		return s.store.InTx(t.Context(), requests[i], func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			ran.Add(1)
			if _, err := tx.Exec(ctx, "update account set balance = balance + 1 where id = $1", 1+i); err != nil {
				return idempotency.Result{}, err
			}
			both.Add(1)
			pgtest.Await(t, "both have their first row", func() (bool, error) { return both.Load() >= 2, nil })
			if _, err := tx.Exec(ctx, "update account set balance = balance + 1 where id = $1", 2-i); err != nil {
				return idempotency.Result{}, outcome.Terminal("not_so", err)
			}
			return insertPayment(requests[i])(ctx, tx)
		})
	})
	if err := errors.Join(errs...); err != nil || ran.Load() < 3 { // whoever lost may meet the other one once more
		t.Errorf("%d runs, %v", ran.Load(), err)
	}
	for _, r := range requests {
		s.requirePayments(r, 1)
	}
	if sum := pgtest.One[int](t, s.DB, "select sum(balance) from account"); sum != 4 {
		t.Errorf("balances are %d", sum)
	}
	// For ever is not for ever.
	r, ran2 := pay("3"), 0
	_, err := s.store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (res idempotency.Result, err error) {
		ran2++
		_, err = tx.Exec(ctx, "do $$ begin raise exception 'x' using errcode = '40001'; end $$")
		return res, err
	})
	if !pgerr.Is(err, pgerr.SerializationFailure) || ran2 != 3 {
		t.Errorf("%d runs, %v", ran2, err)
	}
	s.requireNoKey(r)
}

func TestInTx_MismatchInEveryState(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	ctx := t.Context()
	claim := func(r idempotency.Request) store.Lease {
		c, err := s.store.Claim(ctx, r, store.ClaimOptions{Token: "owner", Lease: time.Hour})
		if err != nil || !c.Won {
			t.Fatalf("%+v, %v", c, err)
		}
		return c.Lease
	}
	no := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for state, bring := range map[idempotency.State]func(r idempotency.Request){
		idempotency.Completed: func(r idempotency.Request) {
			_, err := s.store.InTx(ctx, r,
				insertPayment(r))
			no(err)
		},
		idempotency.FailedReplayable: func(r idempotency.Request) {
			_, err := s.store.InTx(ctx, r, func(context.Context, pgx.Tx) (idempotency.Result, error) {
				return idempotency.Result{}, outcome.Terminal("no", errors.New("no"))
			})
			no(err)
		},
		idempotency.InProgress: func(r idempotency.Request) { claim(r) },
		idempotency.Unknown:    func(r idempotency.Request) { no(s.store.MarkUnknown(ctx, claim(r), "?", 0)) },
		idempotency.Expired: func(r idempotency.Request) {
			no(s.store.Finish(ctx, claim(r), idempotency.Result{Code: 201, Resource: "7"},
				idempotency.Retention{Body: time.Nanosecond, Tombstone: time.Hour}))
		},
	} {
		r := pay("100")
		bring(r)
		other := r
		other.Fingerprint.Sum = sha256.Sum256([]byte("999"))
		for range 2 {
			_, err := s.store.InTx(ctx, other, insertPayment(r))
			var mismatch *idempotency.MismatchError
			if !errors.As(err, &mismatch) || mismatch.State != state {
				t.Errorf("%s: %v", state, err)
			}
		}
		before := map[idempotency.State]error{
			idempotency.InProgress: idempotency.ErrInProgress, idempotency.Unknown: idempotency.ErrUnknown,
			idempotency.Expired: idempotency.ErrExpired,
		}[state]
		if _, err := s.store.InTx(ctx, r, insertPayment(r)); !errors.Is(err, before) {
			t.Errorf("%s: the same command: %v", state, err)
		}
		// A version that the request does not know is never taken for the same; one that it knows is.
		newer := r
		newer.Fingerprint = idempotency.Fingerprint{Version: 2, Sum: r.Fingerprint.Sum}
		if _, err := s.store.InTx(ctx, newer, insertPayment(r)); !errors.Is(err, idempotency.ErrMismatch) {
			t.Errorf("%s: another version: %v", state, err)
		}
		newer.Older = []idempotency.Fingerprint{r.Fingerprint}
		if _, err := s.store.InTx(ctx, newer, insertPayment(r)); !errors.Is(err, before) {
			t.Errorf("%s: a version that it knows: %v", state, err)
		}
	}
}
