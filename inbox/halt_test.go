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
		"by offset":              {inbox.Config{Dedup: inbox.ByOffset}, false, unregister},
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
