package inbox_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// TestP9_2_RepeatAmongNewOnes: where no repeat is expected, one comes all the same: at the beginning, in the middle and
// at the end of a batch, of this partition or decided by another process meanwhile. Each event is applied once.
func TestP9_2_RepeatAmongNewOnes(t *testing.T) {
	t.Parallel()
	for name, foreign := range map[string]bool{"days": false, "any": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			trusted := 0 // transactions whose session has taken events for new
			h := w.inbox(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
				var is bool
				if err := tx.QueryRow(ctx, "select exists (select from pg_prepared_statements where statement like "+
					"'%insert new ones%')").Scan(&is); err != nil {
					return err
				}
				if is {
					trusted++
				}
				return writeAll(ctx, tx, events)
			})
			var all []event.Event
			for round := range 12 {
				events := stretch(10*round, 10)
				if foreign {
					for i := range events {
						events[i].ID = uuid.New()
					}
				}
				want := repeat(inbox.Applied, 10)
				fresh := slices.Clone(events)
				if at := []int{0, 5, 9}[round%3]; round >= 3 {
					before := all[len(all)-1-round]
					events[at].ID, events[at].Payload, want[at] = before.ID, before.Payload, inbox.Duplicate
					fresh = slices.Delete(fresh, at, at+1)
				}
				same(t, "outcomes", handle(t, h, events), want)
				all = append(all, fresh...)
			}
			same(t, "effects", w.effects(), ids(all))
			if trusted == 0 {
				t.Error("no transaction took its events for new")
			}
		})
	}
}

// TestP9_2_TwinsTakeTheirEventsForNew: two processes have one partition for a while, and both expect no repeats.
func TestP9_2_TwinsTakeTheirEventsForNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all []event.Event
	handlers := [2]inbox.Handler{w.inbox(inbox.Config{}).Batch(writeAll), w.inbox(inbox.Config{}).Batch(writeAll)}
	for i, h := range handlers {
		events := stretch(10*i, 10)
		same(t, "alone", handle(t, h, events), repeat(inbox.Applied, 10))
		all = append(all, events...)
	}
	for round := range 10 {
		events := stretch(20+10*round, 10)
		all = append(all, events...)
		var applied [2]int
		var wg sync.WaitGroup
		for i, h := range handlers {
			wg.Go(func() {
				out, err := h.Handle(t.Context(), events)
				if err != nil {
					t.Error(err)
				}
				for _, o := range out {
					if o == inbox.Applied {
						applied[i]++
					}
				}
			})
		}
		wg.Wait()
		if applied[0]+applied[1] != 10 {
			t.Errorf("round %d: %v of 10 events were applied", round, applied)
		}
	}
	same(t, "effects", w.effects(), ids(all))
}
