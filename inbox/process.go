package inbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/outcome"
)

// ProcessTx records e and runs do once, in the caller's transaction. It returns Applied, Duplicate or Skipped, or
// Parked if the key of e is parked and e was added to its list. The outcome holds once the caller commits. ProcessTx
// only deduplicates: it does not retry, count attempts, park failed events or halt partitions. It needs Config.Dedup
// ByID, since only ids can decide single events out of order.
//
// Record and effect run under a savepoint: after an error tx holds nothing of the event, and committing tx does not
// process e. The error is the error of do, a *HaltError for an event that is too old or too far in the future, or an
// error of the database (40001 when tx is REPEATABLE READ or stricter and another process was faster: begin a new
// transaction).
func (in *Inbox) ProcessTx(ctx context.Context, tx pgx.Tx, e event.Event, do Effect) (Outcome, error) {
	if in.cfg.Dedup != ByID {
		return Undecided, fmt.Errorf("inbox: ProcessTx goes by ids only, and consumer %q goes by %s: whoever calls "+
			"it for single events may call it out of order, "+
			"and an event that was overtaken would be taken for a repeat; use Each or Batch, or Config.Dedup ByID",
			in.consumer, in.cfg.Dedup)
	}
	if err := in.Prepare(ctx); err != nil {
		return Undecided, err
	}
	// The caller's transaction belongs to the caller's trace.
	do = in.traced(do, false)
	outcome, err := in.processTx(ctx, tx, e, do)
	if !pgerr.Is(err, pgerr.CheckViolation) || !errors.Is(err, errInsert) {
		return outcome, err
	}
	err = in.exclusive(ctx, func() error { _, err := in.keeper.Make(ctx, true); return err })
	if err != nil {
		return Undecided, err
	}
	return in.processTx(ctx, tx, e, do)
}

// errInsert marks errors of the inbox's insert, to tell them from errors of the effect.
var errInsert = errors.New("inbox: recording the id")

func (in *Inbox) processTx(ctx context.Context, tx pgx.Tx, e event.Event, do Effect) (_ Outcome, err error) {
	where, savepoint, err := in.insertTx(ctx, tx, e)
	if err != nil {
		return Undecided, err
	}
	if savepoint == nil {
		// The caller may write nothing else, and its COMMIT must wait until the other transaction's row is durable.
		if _, err := tx.Exec(ctx, sqlBarrier); err != nil {
			return Undecided, fmt.Errorf("inbox: writing a barrier after the row of another: %w", err)
		}
		return Duplicate, nil
	}
	if outcome, err := in.asideTx(ctx, savepoint, e, where); outcome != Undecided || err != nil {
		if outcome == Parked {
			return Parked, savepoint.Commit(ctx)
		}
		return outcome, errors.Join(err, savepoint.Rollback(ctx))
	}
	g := newGuardTx(savepoint.Conn(), savepoint)
	err = guarded(g, func() error { return do(ctx, g, e) })
	g.Close()
	switch {
	case err == nil:
		if err = savepoint.Commit(ctx); err != nil {
			return Undecided, fmt.Errorf("inbox: releasing the savepoint: %w", err)
		}
		return Applied, nil
	case !skips(err):
		return Undecided, errors.Join(err, savepoint.Rollback(ctx))
	}
	if err = savepoint.Rollback(ctx); err != nil {
		return Undecided, fmt.Errorf("inbox: undoing a skipped effect: %w", err)
	}
	// The rollback also removed the record of the id.
	if _, savepoint, err = in.insertTx(ctx, tx, e); err != nil {
		return Undecided, err
	}
	if err = savepoint.Commit(ctx); err != nil {
		return Undecided, fmt.Errorf("inbox: releasing the savepoint: %w", err)
	}
	return Skipped, nil
}

// insertTx records the id under a savepoint. It returns the id's table and the savepoint; nil: the id is not new.
func (in *Inbox) insertTx(ctx context.Context, tx pgx.Tx, e event.Event) (where route, savepoint pgx.Tx, err error) {
	// The caller's timeouts apply. On the connection: an effect that calls ProcessTx changes no settings by that.
	s, err := stateOf(tx.Conn().QueryRow(ctx, in.q(sql.State), "", "", in.consumer, "", nil))
	if err == nil && s.Floor >= 0 {
		err = in.registeredAs(dedupNamed(s.Dedup))
	}
	if err != nil {
		return where, nil, fmt.Errorf("inbox: reading the state: %w", err)
	}
	statement := sqlInsertOneDay
	switch where = s.route(e.ID, in.cfg.windowDays, in.cfg.DaysAhead); where {
	case inAny:
		statement = sqlInsertOneAny
	case tooOld, tooFuture:
		return where, nil, &HaltError{Event: bare(e), Err: whyUndecidable(where, &e, *s, in.cfg.windowDays)}
	}
	if savepoint, err = tx.Begin(ctx); err != nil {
		return where, nil, fmt.Errorf("inbox: making a savepoint: %w", err)
	}
	content := sql.Content(&e)
	tag, err := savepoint.Exec(ctx, in.q(statement), in.consumer, e.ID.String(),
		strconv.FormatInt(content, 10))
	if err != nil {
		return where, nil, errors.Join(fmt.Errorf("%w: %w", errInsert, err), savepoint.Rollback(ctx))
	}
	if tag.RowsAffected() == 0 {
		known, err := in.there(ctx, savepoint, []uuid.UUID{e.ID}, false)
		if err == nil && otherContent(known[e.ID], content) {
			err = &HaltError{Event: bare(e), Err: outcome.Terminal(CodeOtherContent, otherEvent(e.ID))}
		}
		return where, nil, errors.Join(err, savepoint.Rollback(ctx))
	}
	return where, savepoint, nil
}

// asideTx runs after the id was inserted. If e is parked already or its key is parked, asideTx returns the outcome; in
// the second case it adds e to the key's list, whatever the list's length. Otherwise it returns Undecided.
func (in *Inbox) asideTx(ctx context.Context, tx pgx.Tx, e event.Event, where route) (Outcome, error) {
	var open bool
	if err := tx.QueryRow(ctx, in.q(sqlOpen), in.consumer).Scan(&open); err != nil || !open {
		if err != nil {
			err = fmt.Errorf("inbox: looking for what is parked: %w", err)
		}
		return Undecided, err
	}
	p := &planned{ids: []planID{{id: e.ID, content: sql.Content(&e), route: where, isNew: true}}, inserted: 1}
	a, f := in.setAside(ctx, tx, p, []event.Event{e}, false)
	if f != nil {
		return Undecided, f.err
	}
	return a.outcomes[0], nil // Undecided: the event was not set aside
}
