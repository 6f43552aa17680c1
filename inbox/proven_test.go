package inbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// TestP9_1_ProgressProvesOldRepeats: a group was set back past the window, so that events come again whose ids are
// forgotten. Those below the progress of the same log were decided, and are dropped. All others are quarantined: nobody
// can tell.
func TestP9_1_ProgressProvesOldRepeats(t *testing.T) {
	t.Parallel()
	const next = 7 // the progress: below it lie 0 to 4, which are too old by now, and 5 and 6
	log := uuid.New()
	D, Q, A := inbox.Duplicate, inbox.Quarantined, inbox.Applied
	all := append(repeat(D, next), Q, A)
	from := func(n int) []inbox.Outcome { // only the events from n on are proven
		return append(append(repeat(Q, n), repeat(D, next-n)...), Q, A)
	}
	for name, c := range map[string]struct {
		begins  inbox.Beginning // of the first process
		between func(w *world)
		again   inbox.Beginning
		want    []inbox.Outcome // nil: the progress is lost
		policy  inbox.FailurePolicy
	}{
		"decided":        {again: inbox.Beginning{Log: log, Decided: next}, want: all},
		"halting":        {again: inbox.Beginning{Log: log, Decided: next}, want: repeat(D, next), policy: inbox.Halt},
		"no certain log": {want: from(5)},
		"of another log": {again: inbox.Beginning{Log: uuid.New(), Decided: next}, want: from(5)},
		"it began later": {
			begins: inbox.Beginning{Offset: 2}, again: inbox.Beginning{Log: log, Decided: next}, want: from(2),
		},
		"skipped": {again: inbox.Beginning{Log: log, Decided: next}, want: from(1), between: func(w *world) {
			w.Exec(w.t, "update inbox_progress set from_offset = 1, to_offset = 1, accounted = 1, "+
				"updated_at = now() - interval '2 minutes'")
			w.Exec(w.t, "update inbox_consumer set programs = '{}'")
			if _, err := w.operator().SkipTo(w.t.Context(), "payments", 3, 3, "they are bad"); err != nil {
				w.t.Fatal(err)
			}
			w.Exec(w.t, "update inbox_progress set from_offset = 7, to_offset = 7, accounted = 7")
		}},
		"offsets are missing": {
			again: inbox.Beginning{Log: log, Decided: next}, want: from(5),
			between: func(w *world) { w.Exec(w.t, "update inbox_progress set accounted = accounted - 1") },
		},
		"the progress goes back": {again: inbox.Beginning{Log: log, Decided: next}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Exec(t, "insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', "+
				"current_date - 30, 10)")
			cfg := inbox.Config{Window: 10 * oneDay, DaysAhead: 1, OnFailure: c.policy}
			in := w.inbox(cfg)
			begin := func(h inbox.Handler, next int64, b inbox.Beginning) {
				t.Helper()
				assigned(h)
				if _, err := h.Progress(t.Context(), "payments", 3); err != nil {
					t.Fatal(err)
				}
				if err := h.Begin(t.Context(), "payments", 3, next, b); err != nil {
					t.Fatal(err)
				}
			}
			e := some(9)
			for i := range e {
				if e[i].Key = ""; i < 5 || i == next {
					e[i].ID = idAt(w.noon(-8))
				}
			}
			h := in.Each(write)
			c.begins.Log = log
			begin(h, c.begins.Offset, c.begins)
			first := e[c.begins.Offset:next]
			same(t, "at first", handle(t, h, first), repeat(A, len(first)))
			h.Revoked(t.Context(), "payments", 3)
			w.shrink(4)
			if err := in.Maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
			if w.exists(w.table(-8)) {
				t.Fatal("the day was not dropped")
			}
			if c.between != nil {
				c.between(w)
			}
			h = w.inbox(cfg).Each(write)
			assigned(h)
			if c.again.Decided > 0 {
				begin(h, -1, c.again)
			}
			switch {
			case c.want == nil:
				same(t, "one", handle(t, h, e[:1]), repeat(D, 1))
				w.Exec(t, "update inbox_progress set from_offset = 5, to_offset = 5, accounted = 5")
				out, err := h.Handle(t.Context(), e[1:])
				if _, ok := errors.AsType[*inbox.DatabaseChangedError](err); !ok {
					t.Errorf("outcomes %v, error %v, want a DatabaseChangedError", out, err)
				}
				return
			case c.policy == inbox.Halt:
				out, err := h.Handle(t.Context(), e)
				halted(t, err, e[next].ID)
				same(t, "again", out[:next], c.want)
				return
			}
			same(t, "again", handle(t, h, e), c.want)
			applied := slices.Concat(first, e[next+1:])
			same(t, "effects", w.effects(), ids(applied))
			if got, want := len(w.parked()), len(slices.DeleteFunc(slices.Clone(c.want),
				func(o inbox.Outcome) bool { return o != Q })); got != want {
				t.Errorf("%d events parked, want %d", got, want)
			}
		})
	}
}

// TestP9_5_ReadingAgainMovesNothingBack: repeats that the progress proves move it nowhere, so that it proves as much to
// the next process. An effect that runs all the same, for its id is not there, may kill its process like any other:
// the range is written before.
func TestP9_5_ReadingAgainMovesNothingBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var during [3]int64
	h := w.inbox(inbox.Config{}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		during = w.progress()
		return write(ctx, tx, e)
	})
	log := uuid.New()
	begin := func(next, decided int64) {
		t.Helper()
		assigned(h)
		if _, err := h.Progress(t.Context(), "payments", 3); err != nil {
			t.Fatal(err)
		}
		if err := h.Begin(t.Context(), "payments", 3, next, inbox.Beginning{Log: log, Decided: decided}); err != nil {
			t.Fatal(err)
		}
	}
	e := some(12)
	begin(0, 0)
	handle(t, h, e[:10])
	h.Revoked(t.Context(), "payments", 3)
	w.Exec(t, "set local effectonce.inbox = 'forget'; delete from inbox_message where message_id = '"+
		e[7].ID.String()+"'")
	begin(-1, 10)
	same(t, "repeats", handle(t, h, e[:4]), repeat(inbox.Duplicate, 4))
	if now := w.progress(); now != [3]int64{10, 10, 0} {
		t.Errorf("repeats advanced the progress to %v", now)
	}
	begin(-1, 10) // another process
	same(t, "outcomes", handle(t, h, e[4:8]), append(repeat(inbox.Duplicate, 3), inbox.Applied))
	if during != [3]int64{4, 8, 0} {
		t.Errorf("during the effect: %v", during)
	}
	same(t, "the rest", handle(t, h, e[8:]), append(repeat(inbox.Duplicate, 2), repeat(inbox.Applied, 2)...))
	if now := w.progress(); now[0] < 8 {
		t.Errorf("the progress is %v", now)
	}
}
