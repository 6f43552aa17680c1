package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgtx"
)

// grace is how long a COMMIT that was sent, and the question what became of it, may take after the caller's context ended.
const grace = 5 * time.Second

// sender is a connection or a transaction.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// claimTx claims the key in the transaction that first opens, with a savepoint behind the claim, in one round trip; or says what
// is known of the key. A refused wait is idempotency.ErrInProgress; then the transaction is aborted.
func (s *Store) claimTx(ctx context.Context, on sender, first string, r idempotency.Request, token string) (row, error) {
	k := r.Key
	body, tombstone := s.cfg.Keep.Terms()
	for range turns {
		var b pgx.Batch
		if first != "" {
			b.Queue(first)
		}
		b.Queue(s.sql.claimTx, k.Tenant, k.Operation, k.Value, r.Fingerprint.Version, r.Fingerprint.Sum[:], token, s.lockTimeout, until(body), until(tombstone))
		b.Queue(s.sql.knownTx, k.Tenant, k.Operation, k.Value)
		b.Queue(sqlSavepoint)
		known, err := readClaim(on.SendBatch(ctx, &b), first != "", k)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			first = "" // it went between the two statements
			continue
		case pgerr.Is(err, pgerr.LockNotAvailable):
			return row{}, fmt.Errorf("pgstore: another transaction has the key: %w", &idempotency.InProgressError{RetryAfter: s.cfg.Wait})
		case err != nil:
			return row{}, fmt.Errorf("pgstore: claiming a key: %w", err)
		case !known.gone:
			return known, nil
		}
		var again pgx.Batch
		again.Queue(s.sql.regainTx, k.Tenant, k.Operation, k.Value, known.record.Fence, known.token, token,
			r.Fingerprint.Version, r.Fingerprint.Sum[:], until(body), until(tombstone))
		again.Queue(sqlSavepoint)
		replies := on.SendBatch(ctx, &again)
		tag, err := replies.Exec()
		if err = errors.Join(err, replies.Close()); err != nil {
			return row{}, fmt.Errorf("pgstore: claiming a key: %w", err)
		}
		if tag.RowsAffected() > 0 {
			return row{won: true}, nil
		}
		first = ""
	}
	return row{}, errBusy
}

func readClaim(replies pgx.BatchResults, began bool, k idempotency.Key) (known row, err error) {
	if began {
		_, err = replies.Exec()
	}
	var tag pgconn.CommandTag
	if err == nil {
		tag, err = replies.Exec()
	}
	switch known.won = tag.RowsAffected() > 0; {
	case err != nil:
	case known.won:
		_, err = replies.Exec()
	default:
		known, err = scan(replies.QueryRow(), k)
	}
	if cerr := replies.Close(); err == nil {
		err = cerr
	}
	return known, err
}

// handle runs the handler in the transaction that is open on conn. refused: it refused for good, and what it wrote must go.
func (s *Store) handle(ctx context.Context, conn *pgx.Conn, inner pgx.Tx, do Handler) (res idempotency.Result, refused bool, err error) {
	tx := pgtx.New(conn, inner, sqlAdopt, errTransactionControl)
	res, err = do(ctx, tx)
	err, ended := tx.Left(err)
	if err == nil {
		return res, false, nil
	}
	class, code := idempotency.Classify(err)
	aborted := !conn.IsClosed() && conn.PgConn().TxStatus() == 'E'
	switch {
	case ended, conn.IsClosed(), conn.PgConn().IsBusy():
	case aborted && pgerr.Retry(err):
		// A deadlock says nothing about the request, whatever it was wrapped in.
		return idempotency.Result{}, false, &rolledBack{err}
	case class == idempotency.ClassTerminal:
		res.Failure = cmp.Or(code, "failed")
		return res, true, nil
	}
	return idempotency.Result{}, false, err
}

// queueFinish queues what records the result.
func (s *Store) queueFinish(b *pgx.Batch, k idempotency.Key, token string, res idempotency.Result, refused bool) error {
	args, err := resultArgs(res, s.cfg.Keep)
	if err != nil {
		return err
	}
	if refused {
		b.Queue(sqlRollbackTo)
	}
	b.Queue(s.sql.finishTx, append([]any{k.Tenant, k.Operation, k.Value, token}, args[:6]...)...)
	return nil
}

func readFinish(replies pgx.BatchResults, refused bool) (at time.Time, err error) {
	if refused {
		if _, err := replies.Exec(); err != nil {
			return at, err
		}
	}
	return at, replies.QueryRow().Scan(&at)
}

// answer is what a key that is not free answers to a request. token is the request's own: a row that has it is its own, whose
// COMMIT got no reply.
func (s *Store) answer(ctx context.Context, r idempotency.Request, known row, token string) (idempotency.Result, error) {
	rec := known.record
	if rec.State == idempotency.InProgress && rec.LeaseLeft <= 0 && r.Matches(rec.Fingerprint) {
		args := []any{r.Key.Tenant, r.Key.Operation, r.Key.Value, rec.Fence, known.token}
		noted, again, err := s.step(ctx, r.Key, idempotency.ClaimOptions{}, s.sql.note, args)
		switch {
		case err != nil:
			return idempotency.Result{}, err
		case again: // somebody was faster: the owner after all, or another who noted it
			return idempotency.Result{}, &idempotency.InProgressError{RetryAfter: s.cfg.Wait, Age: rec.Age}
		}
		rec = noted.Record
	}
	if !r.Matches(rec.Fingerprint) {
		return idempotency.Result{}, &idempotency.MismatchError{State: rec.State, Resource: rec.Result.Resource, Version: rec.Fingerprint.Version}
	}
	switch rec.State {
	case idempotency.Completed, idempotency.FailedReplayable:
		rec.Result.Replayed = known.token != token
		return rec.Result, nil
	case idempotency.Expired:
		res := rec.Result
		return idempotency.Result{}, &idempotency.ExpiredError{Code: res.Code, Failure: res.Failure, Resource: res.Resource, At: res.At}
	case idempotency.InProgress:
		return idempotency.Result{}, &idempotency.InProgressError{RetryAfter: rec.LeaseLeft, Age: rec.Age}
	}
	return idempotency.Result{}, &idempotency.UnknownError{Stage: rec.Progress.Stage, Stuck: rec.Stuck, Reason: rec.Reason}
}

// ask finds out what became of a transaction whose COMMIT got no reply. The claim waits for the former backend if that is still
// at it, so a key that can be claimed says for certain that it was rolled back; to see no row would prove nothing.
func (t *try) ask(ctx context.Context) (idempotency.Result, error) {
	lost := t.lost
	t.lost = nil
	ended := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	t.store.log.WarnContext(ctx, "a COMMIT got no reply: looking for its key", "operation", t.request.Key.Operation, "error", lost)
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
			unknown := &idempotency.UnknownError{Stage: idempotency.StageUnknown, Reason: "the reply to COMMIT was lost, and the database does not say what became of it"}
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
	return t.store.claimTx(ctx, conn.Conn(), sqlBegin, t.request, t.token)
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

// outlive returns a context that ends a while after ctx: to cut a COMMIT that was sent would only make its outcome unknown.
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
