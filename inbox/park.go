package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/outcome"
)

// Codes of parked events and halted partitions, in addition to those of [outcome.Terminal].
const (
	// CodeFailed: the effect failed MaxAttempts times with an unclassified error, or returned an [outcome.Terminal]
	// without a code.
	CodeFailed = "failed"
	// CodePanicked: the same, and the last run panicked.
	CodePanicked = "panicked"
	// CodeUnknown: the effect returned [outcome.Unknown] for longer than MaxRetryFor: its work may have happened.
	CodeUnknown = "outcome_unknown"
	// CodeUnavailable: the effect returned [outcome.Retryable] for longer than MaxRetryFor.
	CodeUnavailable = "unavailable"
	// CodeTooOld: the id is older than the ids that are remembered, so the event may have been applied. It is
	// quarantined.
	CodeTooOld = "too_old"
	// CodeTooFarAhead: the day of the id is too far in the future: the clock that made the id is wrong. The event is
	// quarantined.
	CodeTooFarAhead = "too_far_ahead"
	// CodeMaybePublished: the event may have been published under another number, see [ByWatermark]. It is parked like
	// a failed event.
	CodeMaybePublished = "maybe_published"
	// CodeOtherContent: another event has the id. The event is quarantined under an id of its own.
	CodeOtherContent = "other_content"
	// CodeReplayed: the event was published under another number, see [ByWatermark]. It is quarantined.
	CodeReplayed = "replayed"
	// CodeOldNumbering: the event belongs to an old numbering, see [ByWatermark]. It is quarantined.
	CodeOldNumbering = "old_numbering"
	// CodeNoNumber: the event has no number, see [ByWatermark]. It is quarantined; if no event of its partition has a
	// number, the partition halts.
	CodeNoNumber = "no_number"
	// CodeNewNumbering: the event's numbering is newer than its partition's, see [ByWatermark]. The partition halts
	// until an operator accepts the numbering.
	CodeNewNumbering = "new_numbering"
	// CodeOffsetsBack: the event's offset is decided, but its record is later than all decided records, see [ByOffset].
	// The partition halts.
	CodeOffsetsBack = "offsets_went_back"
	// CodeNumbered: a relay wrote the event, and relays repeat events, see [ByOffset]. The partition halts.
	CodeNumbered = "written_by_a_relay"
	// CodeListFull: the list of the event's key has Config.ParkedPerKey events. The event is not parked: its partition
	// halts.
	CodeListFull = "list_full"
	// CodeRejected: the database rejects a statement, for example because a right is missing. The partition is marked
	// as halted but keeps retrying.
	CodeRejected = "rejected"
)

// codeOf returns the machine-readable code of an error.
func codeOf(err error) string {
	switch of, code := outcome.Of(err); of {
	case outcome.ClassTerminal:
		return cmp.Or(code, CodeFailed)
	case outcome.ClassRetryable:
		return CodeUnavailable
	case outcome.ClassUnknown:
		return CodeUnknown
	}
	if _, ok := errors.AsType[*panicError](err); ok {
		return CodePanicked
	}
	return CodeFailed
}

// park parks an event that finally failed, in one transaction. It first inserts the id: an existing row means that the
// event was applied after all. It then locks the mark of the key, adds the event to the list, and deletes the id: a
// waiting event has no row of its own.
func (in *Inbox) park(ctx context.Context, e *event.Event, cause error, attempts int, at *assignment,
	target *progressTarget,
) (Outcome, *failure) {
	events := []event.Event{*e}
	p, f := in.dedup.plan(events, at, true)
	if f != nil {
		return Undecided, f
	}
	outcome := Duplicate
	f = in.transact(ctx, p, at, target, func(conn *pgx.Conn, _ bool) (_ did, f *failure) {
		switch {
		case p.undecidable > 0: // its day left the window during the retries
			a, f := in.setAside(ctx, conn, p, events, in.cfg.ParkedPerKey > 0)
			if f != nil {
				return did{}, f
			}
			outcome = a.outcomes[0]
			return did{wrote: a.written > 0}, nil
		case p.inserted > 0:
			outcome, f = in.parkNew(ctx, conn, e, p.ids[0].route, cause, attempts)
		}
		return did{}, f
	})
	if f != nil {
		return Undecided, f
	}
	if outcome == Parked {
		in.tellParked(bare(*e), cause, attempts)
	}
	return outcome, nil
}

// parkNew adds an event to its list after the open transaction inserted its id. An id that is parked already is a
// duplicate.
func (in *Inbox) parkNew(ctx context.Context, conn *pgx.Conn, e *event.Event, where route, cause error, attempts int) (
	Outcome, *failure,
) {
	id := uuidArray([]uuid.UUID{e.ID})
	failed := func(err error) (Outcome, *failure) {
		return Undecided, in.classify(ctx, fmt.Errorf("inbox: parking event %s: %w", e.ID, err))
	}
	found, err := conn.Query(ctx, in.q(sqlOpenIDs), in.consumer, id)
	if err != nil {
		return failed(err)
	}
	open, err := readContents(found)
	if err != nil {
		return failed(err)
	}
	outcome := Duplicate
	switch content, is := open[e.ID]; {
	case is && otherContent(content, sql.Content(e)):
		return Undecided, &failure{kind: conflict, err: otherEvent(e.ID)} // the next run finds it
	case !is:
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
		list.add(e, e.ID, hash, kindFailed, code, message, attempts)
		tag, err := conn.Exec(ctx, in.q(sqlPark), list.args(in.consumer)...)
		if err == nil && tag.RowsAffected() == 0 {
			err = takenError("inbox_parked", 1)
		}
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

// hold creates or finds the mark of a key and locks it, so that no releaser removes it before the event is in the list.
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
