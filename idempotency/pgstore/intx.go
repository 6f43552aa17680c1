package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
)

// errTransactionControl is what Commit and Rollback of a handler's transaction return.
var errTransactionControl = errors.New("pgstore: a handler must not commit or roll back the key's transaction: " +
	"return an error to roll it back, use tx.Begin for a savepoint")

// Handler is the work of one request in one transaction. tx refuses Commit and Rollback.
type Handler func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error)

// InTx runs do once for a key, and commits the key, what do wrote and its result together. Later callers get that
// result, with Replayed set. A caller that comes while the first one is at it waits at most Config.Wait for it: one of
// the same process without a connection. It adds no round trip to do's own transaction: the claim travels with BEGIN,
// the result with COMMIT. A replay takes two.
//
// do may run more than once (Config.Attempts), each time in a new transaction after the former one was rolled back;
// whatever else it does, a call to a provider above all, belongs into guard.Guard. What its error means:
//
//   - [idempotency.Terminal]: what it wrote is rolled back, its result is kept as a refusal (Failure is the code),
//     committed, returned without an error, and replayed.
//   - a deadlock or serialization failure of this transaction: it runs again; after Config.Attempts the error is
//     returned, as [idempotency.Retryable].
//   - the loss of the connection: nothing has happened, and the error is Retryable, too.
//   - any other, a panic, and the end of ctx: everything is rolled back, the key is free, the error is returned.
//
// Without do being run, errors.Is tells idempotency.ErrMismatch, ErrInProgress, ErrUnknown (a guard's attempt at this
// key ended without a result), ErrExpired and ErrInvalidKey, as from a guard.
//
// When the reply to COMMIT is lost, InTx looks for the key over another connection and answers what it finds; where the
// transaction has not happened it runs again. Only if the database cannot tell within some seconds the error is
// ErrUnknown: the effect and the key have happened both or neither, and the same request sent again gets the answer.
func (s *Store) InTx(ctx context.Context, r idempotency.Request, do Handler) (idempotency.Result, error) {
	if err := r.Key.Check(); err != nil {
		return idempotency.Result{}, err
	}
	began := time.Now()
	res, shared, err := s.inLine(ctx, r, func() (idempotency.Result, error) {
		t := &try{store: s, request: r, token: rand.Text(), do: do}
		return t.run(ctx)
	})
	s.observe(ctx, r, began, res, shared, err)
	return res, err
}

// run runs transactions until one has an answer.
func (t *try) run(ctx context.Context) (idempotency.Result, error) {
	s, r := t.store, t.request
	for {
		t.attempts++
		res, err := t.once(ctx)
		if t.lost != nil {
			res, err = t.ask(ctx)
		}
		var again *rolledBack
		if !errors.As(err, &again) {
			return res, err
		}
		if t.attempts >= s.cfg.Attempts || ctx.Err() != nil {
			return idempotency.Result{}, nothing(again.err)
		}
		s.log.WarnContext(ctx, "a transaction of a request was rolled back and runs again", "operation",
			r.Key.Operation, "attempt", t.attempts, "error", again.err)
		if err := pause(ctx, t.attempts); err != nil {
			return idempotency.Result{}, nothing(errors.Join(again.err, err))
		}
	}
}

// nothing marks an error after which certainly nothing has happened. What is in progress says so itself.
func nothing(err error) error {
	if errors.Is(err, idempotency.ErrInProgress) {
		return err
	}
	return idempotency.Retryable(err)
}

// try is one call of InTx.
type try struct {
	store    *Store
	request  idempotency.Request
	token    string // the same in all attempts: a row that has it is this call's
	do       Handler
	attempts int
	lost     error // the COMMIT of the last attempt got no reply
}

// rolledBack is an error after which the transaction has certainly not happened and may run again.
type rolledBack struct{ err error }

func (e *rolledBack) Error() string { return e.err.Error() }

func (e *rolledBack) Unwrap() error { return e.err }

// pause waits a little, longer each time, so that two that met do not meet again.
func pause(ctx context.Context, attempt int) error {
	if sleep.For(ctx, time.Duration(attempt)*(5*time.Millisecond+mathrand.N(20*time.Millisecond))) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// once is one transaction.
func (t *try) once(ctx context.Context) (idempotency.Result, error) {
	t.lost = nil
	known, res, err := t.transaction(ctx)
	if err != nil || known == nil {
		return res, err
	}
	// On the pool again: the connection that found it is given back.
	return t.store.answer(ctx, t.request, *known, t.token)
}

// transaction claims the key and runs the handler, or returns what is known of the key.
func (t *try) transaction(ctx context.Context) (known *row, res idempotency.Result, err error) {
	s := t.store
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return nil, res, nothing(fmt.Errorf("pgstore: getting a connection: %w", err))
	}
	defer release(ctx, conn)
	got, err := s.claimTx(ctx, conn.Conn(), sqlBegin, "", t.request)
	switch {
	case pgerr.Retry(err) && !pgerr.Is(err, pgerr.LockNotAvailable), pgerr.Away(err) && ctx.Err() == nil:
		return nil, res, &rolledBack{err}
	case err != nil:
		return nil, res, err
	case !got.won:
		return &got, res, nil
	}
	res, refused, err := s.handle(ctx, conn.Conn(), nil, t.do)
	if err != nil {
		return nil, idempotency.Result{}, err
	}
	if ctx.Err() != nil {
		return nil, idempotency.Result{}, context.Cause(ctx)
	}
	res, err = t.commit(ctx, conn.Conn(), res, refused)
	return nil, res, err
}

// commit records the result and commits, in one round trip. With a refusal, what the handler wrote is rolled back
// before, and the lock goes with it: whoever has it then runs in vain if this result is there first.
func (t *try) commit(ctx context.Context, conn *pgx.Conn, res idempotency.Result, refusal bool) (idempotency.Result,
	error,
) {
	ctx, stop := outlive(ctx)
	defer stop()
	s, k := t.store, t.request.Key
	var b pgx.Batch
	var bad refused
	if refusal {
		if err := undo(ctx, conn, &b, sqlRollback, &bad); err != nil {
			return idempotency.Result{}, err
		}
		b.Queue(sqlBegin)
		b.Queue(sqlMark)
		b.Queue(s.sql.bury, k.Tenant, k.Operation, k.Value)
	}
	if err := s.queueWrite(&b, t.request, t.token, &res, &bad); err != nil {
		return idempotency.Result{}, err
	}
	committed := ""
	b.Queue(sqlCommit).Exec(func(tag pgconn.CommandTag) error { committed = tag.String(); return nil })
	err := conn.SendBatch(ctx, &b).Close()
	if err == nil && committed == "ROLLBACK" {
		err = pgx.ErrTxCommitRollback
	}
	switch {
	case err == nil:
		res.Replayed = false
		return res, nil
	case bad.ended:
		return idempotency.Result{}, errEnded
	case bad.taken:
		return idempotency.Result{}, &rolledBack{s.taken(err)}
	case pgerr.CommitUnknown(err):
		t.lost = fmt.Errorf("pgstore: the outcome of COMMIT is unknown: %w", err)
		return idempotency.Result{}, t.lost
	case pgerr.Retry(err):
		return idempotency.Result{}, &rolledBack{fmt.Errorf("pgstore: COMMIT was refused: %w", err)}
	}
	// A deferred constraint of the handler's tables, or a result that the table cannot keep.
	return idempotency.Result{}, fmt.Errorf("pgstore: COMMIT was refused, nothing has happened: %w", err)
}
