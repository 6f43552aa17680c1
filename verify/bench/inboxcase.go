package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/sleep"
)

const (
	inboxBatch = 500 // events of a call of Handle, as the consumer's default
	nameBatch  = "Batch, 500 a transaction, 4 partitions"
	nameTwice  = "duplicates only, 500 a transaction, 4 partitions"
	nameMarked = "Batch ByWatermark, 500 a transaction, 4 partitions"
	markedOnly = "duplicates only ByWatermark, 500 a transaction, 4 partitions"
	noInbox    = "no inbox: the effect and a commit, 500 a transaction, 4 partitions"
	nameSlow   = "Each, an effect of 20 ms, 100 keys, 1 partition"
	nameWide   = "Each with Parallel 8, an effect of 20 ms, 100 keys, 1 partition"
)

// inboxKind is one way to handle a stream of messages.
type inboxKind struct {
	name          string
	h             inbox.Handler
	events        []event.Event
	size, callers int  // events a call, and calls at a time
	keep          bool // begin with what the kind before has left
}

// inboxCase inserts a ledger entry for each message, once. It compares a batch effect with a transaction per message,
// by this inbox and hand-written, on 1 and 32 connections; with the same batch by watermark, which keeps no row per
// message, and without an inbox; and a slow effect with the same in eight transactions at a time.
func inboxCase(ctx context.Context, s *stack, o options, rep *report) error {
	if _, err := s.db.Exec(ctx, queryLedgerTable); err != nil {
		return err
	}
	in, err := inbox.New(s.db, "ledger", inbox.Config{Schema: "public"})
	if err != nil {
		return err
	}
	if err := in.Prepare(ctx); err != nil {
		return err
	}
	marked, err := inbox.New(s.db, "ledger-by-watermark", inbox.Config{Schema: "public", Dedup: inbox.ByWatermark})
	if err != nil {
		return err
	}
	wide, err := inbox.New(s.db, "ledger-in-parallel", inbox.Config{Schema: "public", Parallel: 8})
	if err != nil {
		return err
	}
	rep.note("inbox", fmt.Sprintf("One ledger row for each message: %d messages in batches of %d, and %d one by one",
		o.inboxBatched, inboxBatch, o.inboxSingle))
	plain := s.alone(plainOne)
	many, single := partitioned(o.inboxBatched, inboxBatch, 4), partitioned(o.inboxSingle, 1, 32)
	kinds := []inboxKind{
		{nameBatch, in.Batch(creditAll), many, inboxBatch, 4, false},
		{nameTwice, in.Batch(creditAll), many, inboxBatch, 4, true},
		{nameMarked, marked.Batch(creditAll), many, inboxBatch, 4, false},
		{markedOnly, marked.Batch(creditAll), many, inboxBatch, 4, true},
		{noInbox, inbox.HandlerFunc(s.plainAll), many, inboxBatch, 4, false},
		{"Batch, 500 a transaction, 1 partition", in.Batch(creditAll), many, inboxBatch, 1, false},
		{"Batch ByWatermark, 500 a transaction, 1 partition", marked.Batch(creditAll), many, inboxBatch, 1, false},
	}
	for _, n := range []int{1, 32} {
		kinds = append(kinds, inboxKind{single1(n), in.Each(credit), single, 1, n, false},
			inboxKind{plain1(n), plain, single, 1, n, false})
	}
	few := partitioned(inboxBatch, inboxBatch, 1)
	for i := range few {
		few[i].Key = fmt.Sprint(i % 100)
	}
	kinds = append(kinds, inboxKind{nameSlow, in.Each(slowly), few, inboxBatch, 1, false},
		inboxKind{nameWide, wide.Each(slowly), few, inboxBatch, 1, false})
	for turn := range o.repeats + 1 {
		for _, k := range kinds {
			if !k.keep {
				if _, err := s.db.Exec(ctx, queryEmptyInbox); err != nil {
					return err
				}
			}
			if err := s.exec(ctx, queryVacuumInbox, queryCheckpoint); err != nil {
				return err
			}
			before := serverCPU()
			seconds, err := stream(ctx, k.h, k.events, k.size, k.callers)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			n := float64(len(k.events))
			rep.add(figure{
				Case: "inbox", Name: k.name, Turn: turn, Events: len(k.events), Seconds: seconds, Rate: n / seconds,
				PostgresCPU: serverCPU().minus(before).postgres * 1e6 / n,
			})
		}
	}
	for _, n := range []int{1, 32} {
		rep.ratio("inbox", nameBatch, single1(n), 10)
		rep.ratio("inbox", nameBatch, plain1(n), 10)
	}
	rep.atLeast("inbox", nameBatch, 30_000)
	rep.atLeast("inbox", nameTwice, 100_000)
	rep.ratio("inbox", nameMarked, nameBatch, 1.3)
	rep.ratio("inbox", nameBatch, noInbox, 0.8)
	rep.ratio("inbox", nameMarked, noInbox, 0.95)
	rep.ratio("inbox", single1(1), plain1(1), 0.9)
	rep.ratio("inbox", single1(32), plain1(32), 0.9)
	rep.ratio("inbox", nameWide, nameSlow, 7)
	return nil
}

func single1(callers int) string {
	return fmt.Sprintf("Each, one a transaction, %d at a time", callers)
}

func plain1(callers int) string {
	return fmt.Sprintf("by hand, one a transaction, %d at a time", callers)
}

// partitioned returns n events in partitions as from a relay, each partition a stretch of whole batches with the
// numbers of 32 lanes.
func partitioned(n, size, partitions int) []event.Event {
	out, stretch := events("payments", n, [][]byte{nil}), stretchOf(n, size, partitions)
	for i := range out {
		out[i].Time = time.Now()
		out[i].Position = event.Position{
			Partition: int32(i / stretch), Offset: int64(i % stretch), Epoch: "5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.1",
			Lane: int16(i % 32), Seq: int64(i + 1),
		}
	}
	return out
}

// stretchOf returns the number of events for each of n, in whole batches.
func stretchOf(events, size, n int) int {
	batches := (events + size - 1) / size
	return (batches + n - 1) / n * size
}

// stream lets each caller handle a stretch of the events in calls of size, and returns the time.
func stream(ctx context.Context, h inbox.Handler, all []event.Event, size, callers int) (seconds float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	stretch := stretchOf(len(all), size, callers)
	started := time.Now()
	for c := range callers {
		wg.Go(func() {
			for from := c * stretch; from < min((c+1)*stretch, len(all)) && ctx.Err() == nil; from += size {
				if _, err := h.Handle(ctx, all[from:min(from+size, len(all))]); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	seconds = since(started)
	// As a consumer does at its end: another handler may take the partitions, and the tables may be emptied.
	partitions := map[int32]bool{}
	for i := range all {
		if p := all[i].Position.Partition; !partitions[p] {
			partitions[p] = true
			h.Revoked(ctx, all[i].Topic, p)
		}
	}
	return seconds, context.Cause(ctx)
}

func credit(ctx context.Context, tx pgx.Tx, e event.Event) error {
	_, err := tx.Exec(ctx, queryCredit, e.ID)
	return err
}

// slowly is an effect that waits for another system.
func slowly(ctx context.Context, tx pgx.Tx, e event.Event) error {
	if err := sleep.For(ctx, 20*time.Millisecond); err != nil {
		return err
	}
	return credit(ctx, tx, e)
}

func creditAll(ctx context.Context, tx pgx.Tx, events []event.Event) error {
	ids := make([]uuid.UUID, len(events))
	for i := range events {
		ids[i] = events[i].ID
	}
	_, err := tx.Exec(ctx, queryCreditAll, ids)
	return err
}

// plainAll is a worker without deduplication, the lower bound for a batch of effects.
func (s *stack) plainAll(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	return nil, pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return creditAll(ctx, tx, events) })
}

// alone is a worker without deduplication that runs an effect in a transaction for each event.
func (s *stack) alone(do inbox.Effect) inbox.Handler {
	return inbox.HandlerFunc(func(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
		for _, e := range events {
			if err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return do(ctx, tx, e) }); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
}

// plainOne is the hand-written pattern: insert the id, and run the effect if it is new.
func plainOne(ctx context.Context, tx pgx.Tx, e event.Event) error {
	tag, err := tx.Exec(ctx, queryPlainInbox, e.ID)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	return credit(ctx, tx, e)
}
