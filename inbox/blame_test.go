package inbox_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// TestP9_4_DoomIsNotPassedOn: an event finally failed, and while those before it are decided, one of them fails for the first
// time. It is run again, and not parked for the other's failure.
func TestP9_4_DoomIsNotPassedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "b", "c")
	runs := map[uuid.UUID]int{}
	h := w.inbox(inbox.Config{}).Each(func(ctx context.Context, tx pgx.Tx, ev event.Event) error {
		switch runs[ev.ID]++; {
		case ev.ID == e[2].ID:
			return inbox.Terminal("refused", errBad)
		case ev.ID == e[0].ID && runs[ev.ID] == 2:
			return errBad // once
		}
		return write(ctx, tx, ev)
	})
	same(t, "outcomes", handle(t, h, e), []inbox.Outcome{inbox.Applied, inbox.Applied, inbox.Parked})
	same(t, "effects", w.effects(), ids(e[:2]))
	same(t, "parked", w.parked(), []string{"failed refused " + e[2].ID.String()})
}
