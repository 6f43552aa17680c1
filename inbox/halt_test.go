package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// begun assigns partition 3 to a handler and begins it as a consumer does: at the handler's progress, or at 0.
func begun(t *testing.T, h inbox.Handler, log uuid.UUID) (next int64) {
	t.Helper()
	assigned(h)
	at, err := h.Progress(t.Context(), "payments", 3)
	if next = at.Next; err == nil && next < 0 {
		next = 0
		err = h.Begin(t.Context(), "payments", 3, 0, inbox.Beginning{Log: log, Partitions: 4, Reason: "a test"})
	}
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// forgetAll is a restore, in place, to a backup from before the consumer read anything.
const forgetAll = "set local session_replication_role = replica; delete from inbox_message; " +
	"delete from inbox_message_any; delete from inbox_watermark; delete from inbox_progress; delete from effect"

// TestP9_2_RestoredUnderAnEventThatHalts: a database is restored, in place, under a worker that an event then halts.
// The partition begins where the database is: a row at the halting event would say that all before it is decided.
func TestP9_2_RestoredUnderAnEventThatHalts(t *testing.T) {
	t.Parallel()
	const unregister, away = "; delete from inbox_consumer", "alter table inbox_parked%s rename to inbox_parked%s"
	for name, c := range map[string]struct {
		cfg  inbox.Config
		fail bool
		lose string
	}{
		"halted":                 {inbox.Config{OnFailure: inbox.Halt, MaxAttempts: 1}, true, ""},
		"rejected":               {inbox.Config{}, false, "; " + fmt.Sprintf(away, "", "_away")},
		"before the first start": {inbox.Config{}, false, unregister},
		"by offset, unknown":     {inbox.Config{Dedup: inbox.ByOffset}, false, unregister},
		"by offset":              {inbox.Config{Dedup: inbox.ByOffset}, false, ""}, // and nothing halts
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, log, e, fails := newWorld(t), uuid.New(), keyed("a", "b", "c", "d"), false
			ctx, enough := context.WithCancel(t.Context())
			defer enough()
			c.cfg.Observer.Retried = func(i inbox.RetriedInfo) {
				if i.Attempt >= 10 { // at the latest it is noted by now
					enough()
				}
			}
			h := w.inbox(c.cfg).Each(func(ctx context.Context, tx pgx.Tx, one event.Event) error {
				if fails {
					_, err := tx.Exec(ctx, "select * from not_there")
					return err
				}
				return write(ctx, tx, one)
			})
			begun(t, h, log)
			same(t, "before", handle(t, h, e[:2]), repeat(inbox.Applied, 2))
			inbox.KeepProgressFresh(h) // it is not due
			w.Exec(t, forgetAll+c.lose)
			fails = c.fail
			out, err := h.Handle(ctx, e[2:])
			if _, ok := errors.AsType[*inbox.DatabaseChangedError](err); !ok {
				t.Errorf("outcomes %v, error %v, want a DatabaseChangedError", out, err)
			}
			if n := pgtest.One[int](t, w.DB, "select count(*) from inbox_progress"); n > 0 {
				t.Errorf("the database has a progress of %v again", w.progress())
			}
			if name == "rejected" {
				w.Exec(t, fmt.Sprintf(away, "_away", ""))
			}
			fails = false
			same(t, "again", handle(t, h, e[begun(t, h, log):]), repeat(inbox.Applied, 4))
			same(t, "effects", w.effects(), ids(e))
		})
	}
}

// TestP9_2_RestoredUnderAQuietPartition: a database loses the progress of a partition that has no events, which has
// decided some, or was only begun, or halts. Resumed, which a consumer polls, says so, as often as it is asked; so does
// the next event.
func TestP9_2_RestoredUnderAQuietPartition(t *testing.T) {
	t.Parallel()
	const back = "update inbox_progress set from_offset = 1, to_offset = 1"
	for name, c := range map[string]struct {
		lose  string
		again bool // it was assigned again, and no event came since
		halts bool
		want  bool
	}{
		"nothing is lost": {"select", false, false, false}, "nor when it is begun": {"select", true, false, false},
		"gone": {forgetAll, false, false, true}, "back": {back, false, false, true},
		"gone when begun": {forgetAll, true, false, true}, "back when begun": {back, true, false, true},
		"halted": {forgetAll, false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, log, e := newWorld(t), uuid.New(), keyed("a", "b", "c", "d", "e")
			in := w.halting(inbox.Config{MaxAttempts: 1})
			h := in.Each(func(ctx context.Context, tx pgx.Tx, one event.Event) error {
				if c.halts && one.Position.Offset == 3 {
					return errBad
				}
				return write(ctx, tx, one)
			})
			begun(t, h, log)
			same(t, "before", handle(t, h, e[:3]), repeat(inbox.Applied, 3))
			if c.again {
				begun(t, h, log)
			}
			if c.halts {
				_, err := h.Handle(t.Context(), e[3:])
				halted(t, err, e[3].ID)
			}
			w.Exec(t, c.lose)
			for range 2 {
				resumed, err := h.Resumed(t.Context(), "payments", 3)
				_, lost := errors.AsType[*inbox.DatabaseChangedError](err)
				if lost != c.want || resumed == (c.want || c.halts) {
					t.Errorf("resumed %t, error %v, want a DatabaseChangedError: %t", resumed, err, c.want)
				}
			}
			if c.halts || !c.want {
				return
			}
			inbox.ProgressIsDue(h)
			if _, err := h.Handle(t.Context(), e[3:]); err == nil {
				t.Error("the next event is decided as if nothing were lost")
			}
		})
	}
}

// TestLostProgressDelaysNoOther: one partition's progress is lost. That of another is written as soon as it is idle,
// and the loss is still there for the consumer to see.
func TestLostProgressDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.inbox(inbox.Config{})
	h, both := in.Each(write), [2][]event.Event{some(4), some(4)}
	for i := range both[1] {
		both[1][i].Position.Partition = 4
	}
	for p, e := range both {
		h.Assigned("payments", int32(3+p))
		handle(t, h, e[:2])
		inbox.KeepProgressFresh(h)
		handle(t, h, e[2:])
	}
	w.Exec(t, "delete from inbox_progress where partition = 3")
	inbox.ProgressIsDue(h)
	for range 2 {
		if err := inbox.WriteIdleProgress(t.Context(), in); err != nil {
			t.Errorf("the next time is later: %v", err)
		}
	}
	if n := pgtest.One[int](t, w.DB, "select from_offset from inbox_progress where partition = 4"); n != 4 {
		t.Errorf("the progress of the other partition is %d", n)
	}
	if _, err := h.Resumed(t.Context(), "payments", 3); err == nil {
		t.Error("the loss is not seen")
	}
}

// TestP9_2_RestoredWhileItBegins: the database loses the progress between the answer that a consumer begins by, and the
// record of it.
func TestP9_2_RestoredWhileItBegins(t *testing.T) {
	t.Parallel()
	w, e := newWorld(t), keyed("a", "b")
	h := w.inbox(inbox.Config{}).Each(write)
	begun(t, h, uuid.New())
	handle(t, h, e)
	h.Revoked(t.Context(), "payments", 3)
	if next := begun(t, h, uuid.New()); next != 2 {
		t.Fatalf("it begins at %d", next)
	}
	w.Exec(t, forgetAll)
	err := h.Begin(t.Context(), "payments", 3, -1, inbox.Beginning{Log: uuid.New(), Partitions: 4})
	if _, ok := errors.AsType[*inbox.DatabaseChangedError](err); !ok {
		t.Errorf("error %v, want a DatabaseChangedError", err)
	}
	if now := w.progress(); now != [3]int64{} {
		t.Errorf("the progress is %v", now)
	}
}
