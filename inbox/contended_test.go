package inbox_test

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// TestP9_3_ConflictsShrinkABatch: the more events a transaction has, the more rows it shares with other partitions.
// After two conflicts in a row its events are halved. The next batch begins with that size, and it grows again without
// conflicts.
func TestP9_3_ConflictsShrinkABatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	most := 2 // events that a transaction may have without a conflict
	var sizes []int
	lost := 0 // in a row
	enough, stop := context.WithCancel(t.Context())
	defer stop()
	h := w.inbox(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		sizes = append(sizes, len(events))
		if len(events) > most {
			if lost++; lost > 6 {
				stop()
			}
			_, err := tx.Exec(ctx, "do $$ begin raise exception 'deadlock' using errcode = '40P01'; end $$")
			return err
		}
		lost = 0
		return writeAll(ctx, tx, events)
	})
	events := some(500)
	for i, batch := range slices.Collect(slices.Chunk(events, 20)) {
		if i == 10 {
			most = 20
		}
		out, err := h.Handle(enough, batch)
		if err != nil {
			t.Fatalf("runs of %v events, and no end: %v", sizes, err)
		}
		same(t, "outcomes", out, repeat(inbox.Applied, len(batch)))
		if i == 0 {
			same(t, "sizes", sizes[:4], []int{20, 20, 10, 5})
			sizes = sizes[:0]
		}
		if i == 1 {
			same(t, "sizes of the second batch", sizes, slices.Repeat([]int{2}, 10))
		}
	}
	if last := sizes[len(sizes)-1]; last < 4 {
		t.Errorf("without conflicts a transaction still has %d events", last)
	}
	same(t, "effects", w.effects(), ids(events))
}

// TestP9_5_LiveProcessClosesItsRange: a rebalance or a deploy interrupts the first batch after an assignment. The
// process lives on and removes the range, so that the next owner need not run its events one at a time and counted.
func TestP9_5_LiveProcessClosesItsRange(t *testing.T) {
	t.Parallel()
	w, events := newWorld(t), some(500)
	in := w.inbox(inbox.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := in.Batch(func(ctx context.Context, _ pgx.Tx, _ []event.Event) error {
		cancel()
		return ctx.Err()
	})
	assigned(h)
	if _, err := h.Handle(ctx, events); err == nil {
		t.Fatal("the batch was not interrupted")
	}
	if w.progress() != [3]int64{} {
		t.Errorf("the progress is %v", w.progress())
	}
	runs := 0
	next := w.inbox(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		runs++
		return writeAll(ctx, tx, events)
	})
	assigned(next)
	same(t, "outcomes", handle(t, next, events), repeat(inbox.Applied, len(events)))
	if runs != 1 {
		t.Errorf("its successor took %d runs, want 1", runs)
	}
}
