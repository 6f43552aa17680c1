package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
)

// Within is [Store.InTx] in a transaction of the caller's, who commits it: key, effect and result are there if and when
// it does, a refusal too. It is for code that has its transaction already; it costs a savepoint and its round trips
// more, retries nothing, and leaves a lost COMMIT to the caller, who finds the answer by Get or by the same call in a
// new transaction.
//
// When it returns an error, all that it and do wrote is rolled back, the key is free, and the transaction can be used.
// A transaction that is not READ COMMITTED does not see a key that another one has completed since its snapshot: do
// runs, and then the error is ErrInProgress; run the transaction again. Locks that it holds already are held while it
// waits for the key: claim first.
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
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return idempotency.Result{}, fmt.Errorf("pgstore: making a savepoint: %w", err)
	}
	done := false
	defer func() {
		if !done { // a panic, too
			ctx, stop := outlive(ctx)
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
			return idempotency.Result{}, fmt.Errorf("pgstore: giving up a savepoint: %w", err)
		}
		return s.answer(ctx, r, known, token)
	}
	res, refusal, err := s.handle(ctx, savepoint.Conn(), savepoint, do)
	if err != nil {
		var again *rolledBack
		if errors.As(err, &again) {
			err = again.err
		}
		return idempotency.Result{}, err
	}
	var b pgx.Batch
	var bad refused
	if refusal {
		if err := undo(ctx, savepoint.Conn(), &b, sqlRollbackTo, &bad); err != nil {
			return idempotency.Result{}, err
		}
	}
	if err := s.queueWrite(&b, r, token, &res, &bad); err != nil {
		return idempotency.Result{}, err
	}
	if err = savepoint.SendBatch(ctx, &b).Close(); err == nil {
		err = savepoint.Commit(ctx)
	}
	switch {
	case bad.ended:
		return idempotency.Result{}, errEnded
	case bad.taken:
		return idempotency.Result{}, s.taken(err)
	case err != nil:
		return idempotency.Result{}, fmt.Errorf("pgstore: recording a result: %w", err)
	}
	done = true
	res.Replayed = false
	return res, nil
}
