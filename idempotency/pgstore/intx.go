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
	"github.com/effectonce/effectonce/internal/pgsession"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/outcome"
)

// errTransactionControl is what Commit and Rollback of a handler's transaction return.
var errTransactionControl = errors.New("pgstore: a handler must not commit or roll back the key's transaction: " +
	"return an error to roll it back, use tx.Begin for a savepoint")

// Handler is the work of one request in one transaction. tx refuses Commit and Rollback.
type Handler func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error)

// InTx runs do once for a key, and commits the key, the rows that do wrote and its result together. Later callers get
// that result, with Replayed set. A caller that comes while another one runs do waits for it, at most Config.Wait;
// callers of the same process wait without a connection. InTx adds no round trip to do's own transaction: the claim
// travels with BEGIN, the result with COMMIT. A replay takes two.
//
// do may run more than once (Config.Attempts), each time in a new transaction, after the former one was rolled back.
// Effects outside of the transaction, such as a call to a provider, belong in guard.Guard. The meaning of do's error:
//
//   - [outcome.Terminal]: do's writes are rolled back. Its result is committed as a refusal (Failure is the code),
//     returned without an error, and replayed.
//   - a deadlock or serialization failure of this transaction: it runs again; after Config.Attempts the error is
//     returned, as [outcome.Retryable].
//   - a lost connection: the transaction did not happen, and the error is Retryable, too.
//   - any other error, a panic, or the end of ctx: everything is rolled back, the key is free, the error is returned.
//
// The errors of a key that is not free are those of a guard: idempotency.ErrMismatch, ErrInProgress, ErrUnknown (a
// guard's attempt at this key ended without a result), ErrExpired and ErrInvalidKey. do did not run then.
//
// When the reply to COMMIT is lost, InTx looks up the key over another connection and returns the result that it finds,
// or runs the transaction again if it did not happen. The error is ErrUnknown only if the database does not answer
// within some seconds. Then the key and the effect exist either both or not at all, and a retry of the request gets the
// answer.
func (s *Store) InTx(ctx context.Context, r idempotency.Request, do Handler) (idempotency.Result, error) {
	if err := r.Key.Check(); err != nil {
		return idempotency.Result{}, err
	}
	began := time.Now()
	res, shared, err := s.single(ctx, r, func(won func()) (idempotency.Result, error) {
		c := &call{store: s, request: r, token: rand.Text(), do: do, won: won}
		return c.run(ctx)
	})
	s.observe(ctx, r, began, res, shared, err)
	return res, err
}

// run runs transactions until one has an answer.
func (c *call) run(ctx context.Context) (idempotency.Result, error) {
	s, r := c.store, c.request
	for {
		c.attempts++
		res, err := c.attempt(ctx)
		if c.lostCommit != nil {
			res, err = c.resolveCommit(ctx)
		}
		var rolled *rolledBack
		if !errors.As(err, &rolled) {
			return res, err
		}
		if c.attempts >= s.cfg.Attempts || ctx.Err() != nil {
			return idempotency.Result{}, notApplied(rolled.err)
		}
		s.log.WarnContext(ctx, "a request's transaction was rolled back and runs again", "operation",
			r.Key.Operation, "attempt", c.attempts, "error", rolled.err)
		if err := backOff(ctx, c.attempts); err != nil {
			return idempotency.Result{}, notApplied(errors.Join(rolled.err, err))
		}
	}
}

// notApplied makes the error of a transaction that certainly did not happen retryable. An InProgressError says that
// already.
func notApplied(err error) error {
	if errors.Is(err, idempotency.ErrInProgress) {
		return err
	}
	return outcome.Retryable(err)
}

// call is one call of InTx.
type call struct {
	store      *Store
	request    idempotency.Request
	token      string // the same in all attempts: marks a row that this call wrote
	do         Handler
	won        func() // called before do
	attempts   int
	lostCommit error // set when the last attempt's COMMIT got no reply
}

// rolledBack is the error of a transaction that certainly did not happen and may run again.
type rolledBack struct{ err error }

func (e *rolledBack) Error() string { return e.err.Error() }

func (e *rolledBack) Unwrap() error { return e.err }

// backOff waits a random time that grows with each attempt, so that two transactions do not collide again.
func backOff(ctx context.Context, attempt int) error {
	if sleep.For(ctx, time.Duration(attempt)*(5*time.Millisecond+mathrand.N(20*time.Millisecond))) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// attempt runs one transaction, or answers for a key that is not free.
func (c *call) attempt(ctx context.Context) (idempotency.Result, error) {
	c.lostCommit = nil
	known, res, err := c.transaction(ctx)
	if err != nil || known == nil {
		return res, err
	}
	// transaction has released its connection, so answer takes no second one.
	return c.store.answer(ctx, c.request, *known, c.token)
}

// transaction claims the key, runs the handler and commits. It returns the row of a key that is not free.
func (c *call) transaction(ctx context.Context) (known *row, res idempotency.Result, err error) {
	s := c.store
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return nil, res, notApplied(fmt.Errorf("pgstore: getting a connection: %w", err))
	}
	defer releaseConn(ctx, conn)
	if err := pgsession.Texts(conn.Conn()); err != nil {
		return nil, res, fmt.Errorf("pgstore: %w", err)
	}
	got, err := s.claimTx(ctx, conn.Conn(), sqlBegin, "", c.request)
	switch {
	case pgerr.Retry(err) && !pgerr.Is(err, pgerr.LockNotAvailable), pgerr.Away(err) && ctx.Err() == nil:
		return nil, res, &rolledBack{err}
	case err != nil:
		return nil, res, err
	case !got.won:
		return &got, res, nil
	}
	c.won()
	res, refused, err := s.runHandler(ctx, conn.Conn(), nil, c.do)
	if err != nil {
		return nil, idempotency.Result{}, err
	}
	if ctx.Err() != nil {
		return nil, idempotency.Result{}, context.Cause(ctx)
	}
	res, err = c.commit(ctx, conn.Conn(), res, refused)
	return nil, res, err
}

// commit records the result and commits, in one round trip. Before a refusal the handler's writes are rolled back. That
// releases the key's lock, so another caller's handler may run; its result is not written if this one is first.
func (c *call) commit(ctx context.Context, conn *pgx.Conn, res idempotency.Result, refused bool) (idempotency.Result,
	error,
) {
	ctx, stop := sleep.Outlive(ctx, commitGrace)
	defer stop()
	s, k := c.store, c.request.Key
	var b pgx.Batch
	var failure writeFailure
	if refused {
		if err := rollBackWrites(ctx, conn, &b, sqlRollback, &failure); err != nil {
			return idempotency.Result{}, err
		}
		b.Queue(sqlBegin)
		b.Queue(sqlMark)
		b.Queue(s.sql.deleteTombstone, k.Tenant, k.Operation, k.Value)
	}
	if err := s.queueResult(&b, c.request, c.token, &res, &failure); err != nil {
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
	case failure.txEnded:
		return idempotency.Result{}, errHandlerEndedTx
	case failure.keyTaken:
		return idempotency.Result{}, &rolledBack{s.keyTakenError(err)}
	case pgerr.CommitUnknown(err):
		c.lostCommit = fmt.Errorf("pgstore: the outcome of COMMIT is unknown: %w", err)
		return idempotency.Result{}, c.lostCommit
	case pgerr.Retry(err):
		return idempotency.Result{}, &rolledBack{fmt.Errorf("pgstore: COMMIT was rejected: %w", err)}
	}
	// A deferred constraint of the handler's tables failed, or the table refused the result.
	return idempotency.Result{}, fmt.Errorf("pgstore: COMMIT was rejected, so nothing was written: %w", err)
}
