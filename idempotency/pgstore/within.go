package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/internal/pgsession"
	"github.com/effectonce/effectonce/internal/sleep"
)

// Within is [Store.InTx] in the caller's own transaction. The key, the effect and the result, a refusal too, are there
// once the caller commits. Within costs the round trips of a savepoint and retries nothing. When a COMMIT gets no
// reply, the caller finds the result by Get, or by the same call in a new transaction.
//
// After an error everything that Within and do wrote is rolled back, the key is free, and the transaction can be used.
// A transaction above READ COMMITTED does not see a key that was completed after its snapshot: do runs, then Within
// returns ErrInProgress; run the transaction again. While Within waits for the key, the transaction keeps the locks
// that it holds, so call Within before taking others.
func (s *Store) Within(ctx context.Context, tx pgx.Tx, r idempotency.Request, do Handler) (idempotency.Result, error) {
	if err := r.Key.Check(); err != nil {
		return idempotency.Result{}, err
	}
	began := time.Now()
	res, err := s.within(ctx, tx, r, do)
	s.observe(ctx, r, began, res, false, err)
	return res, err
}

func (s *Store) within(ctx context.Context, tx pgx.Tx, r idempotency.Request, do Handler) (idempotency.Result, error) {
	if err := pgsession.Texts(tx.Conn()); err != nil {
		return idempotency.Result{}, fmt.Errorf("pgstore: %w", err)
	}
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return idempotency.Result{}, fmt.Errorf("pgstore: making a savepoint: %w", err)
	}
	done := false
	defer func() {
		if !done { // after a panic, too
			ctx, stop := sleep.Outlive(ctx, commitGrace)
			defer stop()
			_ = savepoint.Rollback(ctx)
		}
	}()
	token := rand.Text()
	known, err := s.claimTx(ctx, savepoint, "", sqlSavepoint, r)
	if err != nil {
		return idempotency.Result{}, err
	}
	if !known.won {
		done = true
		if err := savepoint.Rollback(ctx); err != nil {
			return idempotency.Result{}, fmt.Errorf("pgstore: rolling back to a savepoint: %w", err)
		}
		return s.answer(ctx, r, known, token)
	}
	res, refused, err := s.runHandler(ctx, savepoint.Conn(), savepoint, do)
	if err != nil {
		var rolled *rolledBack
		if errors.As(err, &rolled) {
			err = rolled.err
		}
		return idempotency.Result{}, err
	}
	var b pgx.Batch
	var failure writeFailure
	if refused {
		if err := rollBackWrites(ctx, savepoint.Conn(), &b, sqlRollbackTo, &failure); err != nil {
			return idempotency.Result{}, err
		}
	}
	if err := s.queueResult(&b, r, token, &res, &failure); err != nil {
		return idempotency.Result{}, err
	}
	if err = savepoint.SendBatch(ctx, &b).Close(); err == nil {
		err = savepoint.Commit(ctx)
	}
	switch {
	case failure.txEnded:
		return idempotency.Result{}, errHandlerEndedTx
	case failure.keyTaken:
		return idempotency.Result{}, s.keyTakenError(err)
	case err != nil:
		return idempotency.Result{}, fmt.Errorf("pgstore: recording a result: %w", err)
	}
	done = true
	res.Replayed = false
	return res, nil
}
