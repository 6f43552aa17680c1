package pgstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgtx"
	"github.com/effectonce/effectonce/outcome"
)

// commitGrace bounds a COMMIT that was sent, and the lookup of its outcome, after the caller's context has ended:
// cancelling it would only make its outcome unknown.
const commitGrace = 5 * time.Second

// querier is a connection or a transaction.
type querier interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// lockNumber returns what the statements make the id of the key's advisory lock of, with the table's oid: a
// cryptographic hash, so that no key can be chosen that blocks another one.
func lockNumber(k idempotency.Key) int64 {
	b := make([]byte, 0, 512)
	for _, part := range []string{"effectonce key", k.Tenant, k.Operation, k.Value} {
		b = append(append(b, part...), 0) // none of them has a zero byte
	}
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:])) //nolint:gosec // any 64 bits
}

// claimTx takes the key's lock in a transaction and reads its row; won: there is none. It sends the statements before
// and after with it, if they are not empty: one round trip, or two when the lock must be waited for. When that wait
// times out, the error is idempotency.ErrInProgress, and the transaction is aborted.
func (s *Store) claimTx(ctx context.Context, q querier, before, after string, r idempotency.Request) (row, error) {
	k, lock := r.Key, lockNumber(r.Key)
	var (
		locked bool
		known  row
	)
	sendWithGet := func(b *pgx.Batch) error {
		b.Queue(s.sql.get, k.Tenant, k.Operation, k.Value).QueryRow(func(r pgx.Row) (err error) {
			known, err = scan(r, k)
			if errors.Is(err, pgx.ErrNoRows) {
				known.won, err = true, nil
			}
			return err
		})
		if after != "" {
			b.Queue(after)
		}
		return q.SendBatch(ctx, b).Close()
	}
	var try, wait pgx.Batch
	if before != "" {
		try.Queue(before)
	}
	try.Queue(s.sql.tryLock, lock).QueryRow(func(row pgx.Row) error { return row.Scan(&locked, nil) })
	err := sendWithGet(&try)
	if err == nil && !locked && (known.won || known.forgotten) {
		wait.Queue(s.sql.awaitLock, lock, s.lockTimeout)
		err = sendWithGet(&wait)
	}
	if err == nil && known.forgotten {
		known = row{won: true}
		_, err = q.Exec(ctx, s.sql.deleteTombstone, k.Tenant, k.Operation, k.Value)
	}
	switch {
	case pgerr.Is(err, pgerr.LockNotAvailable):
		return row{}, fmt.Errorf("pgstore: another transaction has the key: %w", &idempotency.InProgressError{
			RetryAfter: s.cfg.Wait,
		})
	case err != nil:
		return row{}, fmt.Errorf("pgstore: claiming a key: %w", err)
	}
	return known, nil
}

// runHandler runs do in the transaction that is open on conn. refused: it returned a terminal error, and its writes
// must be rolled back.
func (s *Store) runHandler(ctx context.Context, conn *pgx.Conn, inner pgx.Tx, do Handler) (res idempotency.Result,
	refused bool, err error,
) {
	tx := pgtx.New(conn, inner, sqlAdopt, errTransactionControl)
	defer tx.Close()
	res, err = do(ctx, tx)
	err, ended := tx.Left(err)
	if err == nil {
		return res, false, res.Check()
	}
	class, code := outcome.Of(err)
	aborted := !conn.IsClosed() && conn.PgConn().TxStatus() == 'E'
	switch {
	case ended, conn.IsClosed() && class == outcome.ClassUnknown: // may have effects outside of this transaction
	case conn.IsClosed(): // before COMMIT was sent
		return idempotency.Result{}, false, notApplied(err)
	case conn.PgConn().IsBusy():
	case aborted && pgerr.Retry(err):
		// A deadlock says nothing about the request, even if the handler wrapped it in a terminal error.
		return idempotency.Result{}, false, &rolledBack{err}
	case class == outcome.ClassTerminal:
		res.Failure = cmp.Or(code, "failed")
		return res, true, res.Check()
	}
	return idempotency.Result{}, false, err
}

// rollBackWrites rolls back the writes of a refused request by sql. It queues sql on b; in a failed transaction it runs
// it at once, because nothing else could be prepared there.
func rollBackWrites(ctx context.Context, conn *pgx.Conn, b *pgx.Batch, sql string, failure *writeFailure) error {
	if conn.PgConn().TxStatus() != 'E' {
		b.Queue(sqlCheckMark).QueryRow(func(row pgx.Row) error { return failure.note(row.Scan(nil)) })
		b.Queue(sql)
		return nil
	}
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("pgstore: rolling back a refused request: %w", err)
	}
	return nil
}

// writeFailure is the reason why a result was not written.
type writeFailure struct {
	keyTaken bool // another transaction has inserted the key
	txEnded  bool // the handler ended the transaction with an SQL statement
}

func (f *writeFailure) note(err error) error {
	f.keyTaken = f.keyTaken || pgerr.Is(err, pgerr.UniqueViolation)
	f.txEnded = f.txEnded || pgerr.Is(err, pgerr.DivisionByZero) && !pgerr.Within(err) // a trigger may divide, too
	return err
}

// errHandlerEndedTx: the handler ended the transaction and began another. Neither has the key's row.
var errHandlerEndedTx = fmt.Errorf("pgstore: the handler ended its transaction with an SQL statement; whatever that "+
	"committed has no key: %w", errTransactionControl)

// queueResult queues the insert of the result, which sets res.At.
func (s *Store) queueResult(b *pgx.Batch, r idempotency.Request, token string, res *idempotency.Result,
	failure *writeFailure,
) error {
	args, err := resultArgs(*res, s.cfg.Keep)
	if err != nil {
		return err
	}
	k := r.Key
	args = append([]any{k.Tenant, k.Operation, k.Value, r.Fingerprint.Version, r.Fingerprint.Sum[:], token}, args...)
	b.Queue(s.sql.insertResult, args...).QueryRow(func(row pgx.Row) error {
		return failure.note(row.Scan(&res.At))
	})
	return nil
}

// keyTakenError is the error of a result whose key another transaction has inserted: one that did not take the lock, or
// that committed after this one's snapshot. Nothing was written.
func (s *Store) keyTakenError(err error) error {
	return fmt.Errorf("pgstore: another transaction has inserted the key meanwhile (%w): %w", err,
		&idempotency.InProgressError{RetryAfter: s.cfg.Wait})
}

// answer returns the answer of a key that is not free. A row with the caller's own token was written by an earlier
// attempt of the same call, whose COMMIT got no reply: its result is no replay.
func (s *Store) answer(ctx context.Context, r idempotency.Request, known row, token string) (idempotency.Result,
	error,
) {
	rec := known.record
	if rec.State == idempotency.InProgress && rec.LeaseLeft <= 0 && r.Matches(rec.Fingerprint) {
		args := []any{r.Key.Tenant, r.Key.Operation, r.Key.Value, rec.Fence, known.token}
		expired, changed, err := s.transition(ctx, r.Key, store.ClaimOptions{}, s.sql.expireLease, args)
		switch {
		case err != nil:
			return idempotency.Result{}, err
		case changed: // the owner has finished after all, or another caller was faster
			return idempotency.Result{}, &idempotency.InProgressError{RetryAfter: s.cfg.Wait, Age: rec.Age}
		}
		rec = expired.Record
	}
	res, err := rec.Answer(r)
	res.Replayed = err == nil && known.token != token
	return res, err
}

// resolveCommit finds out the outcome of a transaction whose COMMIT got no reply. It claims the key, and so waits for a
// backend that still runs the transaction. Only then does a missing row prove that the transaction was rolled back.
func (c *call) resolveCommit(ctx context.Context) (idempotency.Result, error) {
	lost := c.lostCommit
	c.lostCommit = nil
	ended := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitGrace)
	defer cancel()
	c.store.log.WarnContext(ctx, "a COMMIT got no reply: looking up its key", "operation", c.request.Key.Operation,
		"error", lost)
	for n := 1; ; n++ {
		known, err := c.lookUp(ctx)
		switch {
		case err == nil && known.won:
			if ended {
				return idempotency.Result{}, fmt.Errorf("%w; it was rolled back", lost)
			}
			return idempotency.Result{}, &rolledBack{fmt.Errorf("%w; it was rolled back", lost)}
		case err == nil:
			return c.store.answer(ctx, c.request, known, c.token)
		}
		if backOff(ctx, n) != nil {
			unknown := &idempotency.UnknownError{Stage: idempotency.StageUnknown, Reason: "the reply to COMMIT was " +
				"lost, and the database does not tell its outcome"}
			return idempotency.Result{}, fmt.Errorf("%w: %w (then: %w)", unknown, lost, err)
		}
	}
}

// lookUp claims the key and releases it again; won: it has no row.
func (c *call) lookUp(ctx context.Context) (row, error) {
	conn, err := c.store.db.Acquire(ctx)
	if err != nil {
		return row{}, err
	}
	defer releaseConn(ctx, conn)
	return c.store.claimTx(ctx, conn.Conn(), sqlBegin, "", c.request)
}

// releaseConn rolls back an open transaction and returns the connection to the pool. The pool closes a connection that
// still has one.
func releaseConn(ctx context.Context, conn *pgxpool.Conn) {
	if c := conn.Conn(); !c.IsClosed() && c.PgConn().TxStatus() != 'I' && !c.PgConn().IsBusy() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitGrace)
		defer cancel()
		_, _ = c.Exec(ctx, sqlRollback)
	}
	conn.Release()
}
