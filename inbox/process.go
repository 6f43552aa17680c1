package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// ProcessTx records e and runs do in the caller's own transaction, once: Applied, Duplicate or Skipped. The outcome holds
// when the caller commits. It is deduplication only: it retries nothing, counts no attempts and cannot halt a partition.
//
// Record and effect stand behind a savepoint, so after an error nothing of the event is left in tx; a tx that is then
// committed has not processed e. The error is that of do, a *HaltError for an event too old or too far in the future to be
// decided, or the database's (40001 when tx is REPEATABLE READ or stricter and another process was quicker: begin again).
func (in *Inbox) ProcessTx(ctx context.Context, tx pgx.Tx, e event.Event, do Effect) (Outcome, error) {
	if err := in.Prepare(ctx); err != nil {
		return Undecided, err
	}
	// The caller's own transaction runs in the caller's own trace.
	do = in.traced(do, false)
	outcome, err := in.processTx(ctx, tx, e, do)
	if !pgerr.Is(err, pgerr.CheckViolation) || !errors.Is(err, errInsert) {
		return outcome, err
	}
	err = in.exclusive(ctx, func() error { _, err := in.keeper.makeDays(ctx); return err })
	if err != nil {
		return Undecided, err
	}
	return in.processTx(ctx, tx, e, do)
}

// errInsert marks errors of the inbox's insert among those of an effect.
var errInsert = errors.New("inbox: recording the id")

func (in *Inbox) processTx(ctx context.Context, tx pgx.Tx, e event.Event, do Effect) (_ Outcome, err error) {
	isNew, savepoint, err := in.insertTx(ctx, tx, e)
	if err != nil {
		return Undecided, err
	}
	if !isNew {
		return Duplicate, nil
	}
	g := &guardTx{conn: savepoint.Conn(), inner: savepoint}
	switch err = guarded(g, func() error { return do(ctx, g, e) }); {
	case err == nil:
		if err = savepoint.Commit(ctx); err != nil {
			return Undecided, fmt.Errorf("inbox: releasing the savepoint: %w", err)
		}
		return Applied, nil
	case !errors.Is(err, Skip):
		return Undecided, errors.Join(err, savepoint.Rollback(ctx))
	}
	if err = savepoint.Rollback(ctx); err != nil {
		return Undecided, fmt.Errorf("inbox: undoing a skipped effect: %w", err)
	}
	// The record went with what the effect wrote.
	if _, savepoint, err = in.insertTx(ctx, tx, e); err != nil {
		return Undecided, err
	}
	if err = savepoint.Commit(ctx); err != nil {
		return Undecided, fmt.Errorf("inbox: releasing the savepoint: %w", err)
	}
	return Skipped, nil
}

// insertTx records the id behind a savepoint and returns that when the id is new.
func (in *Inbox) insertTx(ctx context.Context, tx pgx.Tx, e event.Event) (isNew bool, savepoint pgx.Tx, err error) {
	var s state
	var lock, statement, durable string
	// The time-outs are the caller's.
	err = tx.QueryRow(ctx, in.sql.state, "", "", in.consumer).Scan(&lock, &statement, &durable, &s.today, &s.dropped, &s.floor)
	if err != nil {
		return false, nil, fmt.Errorf("inbox: reading the state: %w", err)
	}
	sql := in.sql.insertDay
	switch where := s.place(e.ID, in.cfg.windowDays, in.cfg.DaysAhead); where {
	case inAny:
		sql = in.sql.insertAny
	case tooOld, tooFuture:
		return false, nil, &HaltError{Event: bare(e), Err: refusal(where, &e, s, in.cfg.windowDays)}
	}
	if savepoint, err = tx.Begin(ctx); err != nil {
		return false, nil, fmt.Errorf("inbox: making a savepoint: %w", err)
	}
	tag, err := savepoint.Exec(ctx, sql, in.consumer, "{"+e.ID.String()+"}")
	if err != nil {
		return false, nil, errors.Join(fmt.Errorf("%w: %w", errInsert, err), savepoint.Rollback(ctx))
	}
	if tag.RowsAffected() == 0 {
		return false, nil, savepoint.Rollback(ctx)
	}
	return true, savepoint, nil
}
