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
)

// grace is how long a COMMIT that was sent, and the question what became of it, may take after the caller's context
// ended.
const grace = 5 * time.Second

// sender is a connection or a transaction.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// lockNumber is the key's advisory lock. Nobody can find another key that has the same one, so that nobody keeps others
// from theirs.
func (s *Store) lockNumber(k idempotency.Key) int64 {
	b := make([]byte, 0, 512)
	for _, part := range []string{"effectonce key", s.cfg.Schema, k.Tenant, k.Operation, k.Value} {
		b = append(append(b, part...), 0) // none of them has a zero byte
	}
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:])) //nolint:gosec // any 64 bits
}

// claimTx takes the key's lock in a transaction, in one round trip between two other statements, or in two where it has
// to wait; or says what is known of the key. A refused wait is idempotency.ErrInProgress; then the transaction is
// aborted.
func (s *Store) claimTx(ctx context.Context, on sender, before, behind string, r idempotency.Request) (row, error) {
	k, n := r.Key, s.lockNumber(r.Key)
	var (
		locked bool
		known  row
	)
	look := func(b *pgx.Batch) error {
		b.Queue(s.sql.get, k.Tenant, k.Operation, k.Value).QueryRow(func(r pgx.Row) (err error) {
			known, err = scan(r, k)
			if errors.Is(err, pgx.ErrNoRows) {
				known.won, err = true, nil
			}
			return err
		})
		if behind != "" {
			b.Queue(behind)
		}
		return on.SendBatch(ctx, b).Close()
	}
	var at, waiting pgx.Batch
	if before != "" {
		at.Queue(before)
	}
	at.Queue(sqlLock, n).QueryRow(func(row pgx.Row) error { return row.Scan(&locked, nil) })
	err := look(&at)
	if err == nil && !locked && (known.won || known.gone) {
		waiting.Queue(sqlAwait, n, s.lockTimeout)
		err = look(&waiting)
	}
	if err == nil && known.gone {
		known = row{won: true}
		_, err = on.Exec(ctx, s.sql.bury, k.Tenant, k.Operation, k.Value)
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

// handle runs the handler in the transaction that is open on conn. refused: it refused for good, and what it wrote must
// go.
func (s *Store) handle(ctx context.Context, conn *pgx.Conn, inner pgx.Tx, do Handler) (res idempotency.Result,
	refused bool, err error,
) {
	tx := pgtx.New(conn, inner, sqlAdopt, errTransactionControl)
	defer tx.Close()
	res, err = do(ctx, tx)
	err, ended := tx.Left(err)
	if err == nil {
		return res, false, res.Check()
	}
	class, code := idempotency.Classify(err)
	aborted := !conn.IsClosed() && conn.PgConn().TxStatus() == 'E'
	switch {
	case ended, conn.IsClosed() && class == idempotency.ClassUnknown: // the handler knows of more than this transaction
	case conn.IsClosed(): // before COMMIT was sent
		return idempotency.Result{}, false, nothing(err)
	case conn.PgConn().IsBusy():
	case aborted && pgerr.Retry(err):
		// A deadlock says nothing about the request, whatever it was wrapped in.
		return idempotency.Result{}, false, &rolledBack{err}
	case class == idempotency.ClassTerminal:
		res.Failure = cmp.Or(code, "failed")
		return res, true, res.Check()
	}
	return idempotency.Result{}, false, err
}

// undo rolls back what was refused: with what b queues next, or before it where nothing else could be prepared, because
// a statement failed.
func undo(ctx context.Context, conn *pgx.Conn, b *pgx.Batch, sql string, bad *refused) error {
	if conn.PgConn().TxStatus() != 'E' {
		b.Queue(sqlHeld).QueryRow(func(row pgx.Row) error { return bad.look(row.Scan(nil)) })
		b.Queue(sql)
		return nil
	}
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("pgstore: rolling back what was refused: %w", err)
	}
	return nil
}

// refused is why a result was not written.
type refused struct {
	taken bool // somebody made the key meanwhile
	ended bool // the handler ended the transaction with an SQL statement
}

func (f *refused) look(err error) error {
	f.taken = f.taken || pgerr.Is(err, pgerr.UniqueViolation)
	f.ended = f.ended || pgerr.Is(err, pgerr.DivisionByZero)
	return err
}

// errEnded is of a handler that ended the transaction and began another: neither is the key's, whose row is in none of
// them.
var errEnded = fmt.Errorf("pgstore: the handler ended its transaction with an SQL statement, and what it committed "+
	"by that stands without its key: %w",
	errTransactionControl)

// queueWrite queues what records the result and reads its time into it.
func (s *Store) queueWrite(b *pgx.Batch, r idempotency.Request, token string, res *idempotency.Result,
	bad *refused,
) error {
	args, err := resultArgs(*res, s.cfg.Keep)
	if err != nil {
		return err
	}
	k := r.Key
	args = append([]any{k.Tenant, k.Operation, k.Value, r.Fingerprint.Version, r.Fingerprint.Sum[:], token}, args...)
	b.Queue(s.sql.write, args...).QueryRow(func(row pgx.Row) error {
		return bad.look(row.Scan(&res.At))
	})
	return nil
}

// taken is the error of a result whose key has a row that was made past its lock, or since the snapshot of the
// transaction. Nothing has happened.
func (s *Store) taken(err error) error {
	return fmt.Errorf("pgstore: the key was made by another transaction meanwhile (%w): %w", err,
		&idempotency.InProgressError{RetryAfter: s.cfg.Wait})
}

// answer is what a key that is not free answers to a request. token is the request's own: a row that has it is its own,
// whose COMMIT got no reply.
func (s *Store) answer(ctx context.Context, r idempotency.Request, known row, token string) (idempotency.Result,
	error,
) {
	rec := known.record
	if rec.State == idempotency.InProgress && rec.LeaseLeft <= 0 && r.Matches(rec.Fingerprint) {
		args := []any{r.Key.Tenant, r.Key.Operation, r.Key.Value, rec.Fence, known.token}
		noted, again, err := s.step(ctx, r.Key, store.ClaimOptions{}, s.sql.note, args)
		switch {
		case err != nil:
			return idempotency.Result{}, err
		case again: // somebody was faster: the owner after all, or another who noted it
			return idempotency.Result{}, &idempotency.InProgressError{RetryAfter: s.cfg.Wait, Age: rec.Age}
		}
		rec = noted.Record
	}
	res, err := rec.Answer(r)
	res.Replayed = err == nil && known.token != token
	return res, err
}

// ask finds out what became of a transaction whose COMMIT got no reply. The claim waits for the former backend if that
// is still at it, so a key that can be claimed says for certain that it was rolled back; to see no row would prove
// nothing.
func (t *try) ask(ctx context.Context) (idempotency.Result, error) {
	lost := t.lost
	t.lost = nil
	ended := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	t.store.log.WarnContext(ctx, "a COMMIT got no reply: looking for its key", "operation", t.request.Key.Operation,
		"error", lost)
	for n := 1; ; n++ {
		known, err := t.look(ctx)
		switch {
		case err == nil && known.won:
			if ended {
				return idempotency.Result{}, fmt.Errorf("%w; it has not happened", lost)
			}
			return idempotency.Result{}, &rolledBack{fmt.Errorf("%w; it has not happened", lost)}
		case err == nil:
			return t.store.answer(ctx, t.request, known, t.token)
		}
		if pause(ctx, n) != nil {
			unknown := &idempotency.UnknownError{Stage: idempotency.StageUnknown, Reason: "the reply to COMMIT was " +
				"lost, and the database does not say what became of it"}
			return idempotency.Result{}, fmt.Errorf("%w: %w (then: %w)", unknown, lost, err)
		}
	}
}

// look claims the key and lets it go again, or says what is known of it.
func (t *try) look(ctx context.Context) (row, error) {
	conn, err := t.store.db.Acquire(ctx)
	if err != nil {
		return row{}, err
	}
	defer release(ctx, conn)
	return t.store.claimTx(ctx, conn.Conn(), sqlBegin, "", t.request)
}

// release gives the connection back without a transaction on it; the pool closes one that still has its transaction.
func release(ctx context.Context, conn *pgxpool.Conn) {
	if c := conn.Conn(); !c.IsClosed() && c.PgConn().TxStatus() != 'I' && !c.PgConn().IsBusy() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		_, _ = c.Exec(ctx, sqlRollback)
	}
	conn.Release()
}

// outlive returns a context that ends a while after ctx: to cut a COMMIT that was sent would only make its outcome
// unknown.
func outlive(ctx context.Context) (context.Context, func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-longer.Done():
		}
		cancel()
	})
	return longer, func() { stop(); cancel() }
}
