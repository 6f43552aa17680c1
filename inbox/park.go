package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
)

// Codes of parked events, beside those of [Terminal].
const (
	// CodeFailed: its effect failed MaxAttempts times with an error of no class.
	CodeFailed = "failed"
	// CodePanicked: the same, and the last time it panicked.
	CodePanicked = "panicked"
	// CodeUnavailable: its effect answered [Retryable] for longer than MaxRetryFor.
	CodeUnavailable = "unavailable"
	// CodeTooOld: its id is older than what is remembered, so nobody can tell whether it was applied. It is
	// quarantined.
	CodeTooOld = "too_old"
	// CodeTooFarAhead: its id is of a day too far in the future: the clock that made it is broken. It is quarantined.
	CodeTooFarAhead = "too_far_ahead"
	// CodeMaybePublished: it may have been published under another number, see [ByWatermark]. It is parked as if it had
	// failed.
	CodeMaybePublished = "maybe_published"
	// CodeReplayed: it was published under another number, see [ByWatermark]. It is quarantined.
	CodeReplayed = "replayed"
	// CodeOldNumbering: it is of a numbering that its partition has left, see [ByWatermark]. It is quarantined.
	CodeOldNumbering = "old_numbering"
	// CodeNoNumber: it carries no number, see [ByWatermark]. It is quarantined; where its partition has no event with
	// one, it halts that.
	CodeNoNumber = "no_number"
	// CodeNewNumbering: its numbering is newer than its partition's, see [ByWatermark]. Its partition halts until an
	// operator accepts it.
	CodeNewNumbering = "new_numbering"
	// CodeOffsetsBack: its offset is decided, and its time is later than whatever was, see [ByOffset]. Its partition
	// halts.
	CodeOffsetsBack = "offsets_went_back"
	// CodeNumbered: a relay wrote it, which repeats events, see [ByOffset]. Its partition halts.
	CodeNumbered = "written_by_a_relay"
	// CodeListFull: the list of its key is at Config.ParkedPerKey. It is not parked: its partition halts.
	CodeListFull = "list_full"
	// CodeRejected: the database rejects a statement of the inbox, for want of a right, say. Its partition is noted as
	// halted and tries again all the while.
	CodeRejected = "rejected"
)

// codeOf is an error in a machine's words.
func codeOf(err error) string {
	if code, ok := TerminalCode(err); ok {
		return code
	}
	if _, ok := errors.AsType[*retryableError](err); ok {
		return CodeUnavailable
	}
	if _, ok := errors.AsType[*panicError](err); ok {
		return CodePanicked
	}
	return CodeFailed
}

// park sets an event aside that finally failed, in one transaction: its id first, for a row that is there says that it
// was applied after all; the mark of its key, held; the list; and the id goes again, for what waits leaves no row.
func (in *Inbox) park(ctx context.Context, e *event.Event, cause error, attempts int, at *assignment,
	target *progressTarget,
) (Outcome, *failure) {
	events := []event.Event{*e}
	p, f := in.dedup.plan(events, at, true)
	if f != nil {
		return Undecided, f
	}
	outcome := Duplicate
	f = in.transact(ctx, p, at, target, func(conn *pgx.Conn, _ bool) (wrote bool, f *failure) {
		switch {
		case p.refused > 0: // its day left the window while it failed
			a, f := in.setAside(ctx, conn, p, events, in.cfg.ParkedPerKey > 0)
			if f != nil {
				return false, f
			}
			outcome = a.outcomes[0]
			return a.written > 0, nil
		case p.inserted > 0:
			outcome, f = in.parkNew(ctx, conn, e, p.ids[0].place, cause, attempts)
		}
		return false, f
	})
	if f != nil {
		return Undecided, f
	}
	if outcome == Parked {
		in.tellParked(bare(*e), cause, attempts)
	}
	return outcome, nil
}

// parkNew lists an event whose id the open transaction has just inserted. An id that is open is decided.
func (in *Inbox) parkNew(ctx context.Context, conn *pgx.Conn, e *event.Event, where place, cause error, attempts int) (
	Outcome, *failure,
) {
	id := uuidArray([]uuid.UUID{e.ID})
	failed := func(err error) (Outcome, *failure) {
		return Undecided, in.classify(ctx, fmt.Errorf("inbox: parking event %s: %w", e.ID, err))
	}
	tag, err := conn.Exec(ctx, in.q(sqlOpenIDs), in.consumer, id)
	if err != nil {
		return failed(err)
	}
	outcome := Duplicate
	if tag.RowsAffected() == 0 {
		var list rows
		var hash []byte
		outcome = Parked
		code, message := codeOf(cause), cause.Error()
		if in.cfg.OnFailure == ParkKey {
			hash = sql.KeyHash(e.Tenant, e.Topic, e.Key)
		}
		if hash != nil {
			if f := in.hold(ctx, conn, e, hash, code, message); f != nil {
				return Undecided, f
			}
		}
		list.add(e, hash, kindFailed, code, message, attempts)
		_, err := conn.Exec(ctx, in.q(sqlPark), list.args(in.consumer)...)
		if err != nil {
			return failed(err)
		}
	}
	if statement := forgets(where); statement != "" {
		if _, err = conn.Exec(ctx, in.q(statement), in.consumer, id); err != nil {
			return failed(err)
		}
	}
	return outcome, nil
}

// hold makes the mark of a key or finds it, and locks it, so that no releaser removes it before the event is listed.
func (in *Inbox) hold(ctx context.Context, conn *pgx.Conn, e *event.Event, hash []byte, code, message string) *failure {
	_, err := conn.Exec(ctx, in.q(sqlMark), in.consumer, hash, []byte(e.Tenant), e.Topic, []byte(e.Key),
		storable(code, 255), storable(message, 2000))
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: marking a key: %w", err))
	}
	tag, err := conn.Exec(ctx, in.q(sqlMarks), in.consumer, [][]byte{hash})
	switch {
	case err != nil:
		return in.classify(ctx, fmt.Errorf("inbox: holding the mark of a key: %w", err))
	case tag.RowsAffected() == 0:
		return &failure{kind: conflict, err: errors.New("inbox: the mark of a key went while an event was parked")}
	}
	return nil
}

func (in *Inbox) tellParked(e event.Event, cause error, attempts int) {
	in.log.Error("inbox: an event finally failed and is parked; later events of its key go behind it",
		append(failureAttrs(&e, cause), "code", codeOf(cause), "attempts", attempts)...)
	if do := in.cfg.Observer.Parked; do != nil {
		do(ParkedInfo{Event: e, Code: codeOf(cause), Attempts: attempts, Err: cause})
	}
}
