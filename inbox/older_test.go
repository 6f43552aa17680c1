package inbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestTablesOlderThanTheProgram: a program is deployed before its migration, whose guard would take the COMMITs of the
// inbox for those of effects. Nothing is decided or parked, the error names the migration, and after it all is applied.
func TestTablesOlderThanTheProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	guard := pgtest.One[string](t, w.DB, "select pg_get_functiondef('inbox_guard()'::regprocedure)")
	w.Exec(t, strings.Replace(guard, "commit and no chain", "commit as it was", 1))
	runs := 0
	events := some(3)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	cfg := inbox.Config{MaxAttempts: 1, Observer: inbox.Observer{Retried: func(inbox.RetriedInfo) { giveUp() }}}
	h := w.inbox(cfg).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		runs++
		return writeAll(ctx, tx, events)
	})
	out, err := h.Handle(ctx, events)
	if err == nil || !strings.Contains(err.Error(), "older than this program: run `relay migrate`") {
		t.Errorf("%v", err)
	}
	same(t, "outcomes", out, repeat(inbox.Undecided, 3))
	if runs > 0 {
		t.Errorf("the effect ran %d times", runs)
	}
	w.Exec(t, guard)
	same(t, "after the migration", handle(t, h, events), repeat(inbox.Applied, 3))
	same(t, "effects", w.effects(), ids(events))
}
