package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

const (
	inboxBatch = 500 // events of a call of Handle, as the consumer's default
	nameBatch  = "Batch, 500 a transaction, 4 partitions"
	nameTwice  = "duplicates only, 500 a transaction, 4 partitions"
)

// inboxKind is one way to handle a stream of messages.
type inboxKind struct {
	name          string
	h             inbox.Handler
	events        []event.Event
	size, callers int  // events a call, and calls at a time
	keep          bool // begin with what the kind before has left
}

// inboxCase: a ledger entry for each message, once. A batch effect against a transaction for each message, by this inbox
// and written by hand, on 1, 8 and 32 connections.
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
	rep.note("inbox", fmt.Sprintf("one ledger row for each message; %d messages in batches of %d, %d one by one", o.inboxBatched, inboxBatch, o.inboxSingle))
	plain := handlerFunc(s.plainOne)
	many, single := newEvents(o.inboxBatched), newEvents(o.inboxSingle)
	kinds := []inboxKind{
		{nameBatch, in.Batch(creditAll), many, inboxBatch, 4, false},
		{nameTwice, in.Batch(creditAll), many, inboxBatch, 4, true},
		{"Batch, 500 a transaction, 1 partition", in.Batch(creditAll), many, inboxBatch, 1, false},
	}
	for _, n := range []int{1, 8, 32} {
		kinds = append(kinds, inboxKind{single1(n), in.Each(credit), single, 1, n, false}, inboxKind{plain1(n), plain, single, 1, n, false})
	}
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
	for _, n := range []int{1, 8, 32} {
		rep.ratio("inbox", nameBatch, single1(n), 10)
		rep.ratio("inbox", nameBatch, plain1(n), 10)
	}
	rep.atLeast("inbox", nameBatch, 30_000)
	rep.atLeast("inbox", nameTwice, 100_000)
	return nil
}

func single1(callers int) string {
	return fmt.Sprintf("Each, one a transaction, %d at a time", callers)
}

func plain1(callers int) string {
	return fmt.Sprintf("by hand, one a transaction, %d at a time", callers)
}

func newEvents(n int) []event.Event {
	out := make([]event.Event, n)
	for i := range out {
		out[i] = event.Event{ID: event.NewID(), Topic: "payments", Key: fmt.Sprintf("acc-%d", i%keys), Type: "PaymentCreated", Time: time.Now()}
	}
	return out
}

// stream hands the events out in calls of size to callers at a time, and returns how long that took.
func stream(ctx context.Context, h inbox.Handler, all []event.Event, size, callers int) (seconds float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	started := time.Now()
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				from := int(next.Add(int64(size))) - size
				if from >= len(all) {
					return
				}
				if _, err := h.Handle(ctx, all[from:min(from+size, len(all))]); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return since(started), context.Cause(ctx)
}

func credit(ctx context.Context, tx pgx.Tx, e event.Event) error {
	_, err := tx.Exec(ctx, queryCredit, e.ID)
	return err
}

func creditAll(ctx context.Context, tx pgx.Tx, events []event.Event) error {
	ids := make([]uuid.UUID, len(events))
	for i := range events {
		ids[i] = events[i].ID
	}
	_, err := tx.Exec(ctx, queryCreditAll, ids)
	return err
}

type handlerFunc func(ctx context.Context, events []event.Event) ([]inbox.Outcome, error)

func (f handlerFunc) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	return f(ctx, events)
}

// plainOne is the pattern as a service writes it by hand: insert the id, run the effect when it is new, commit.
func (s *stack) plainOne(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	for _, e := range events {
		err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, queryPlainInbox, e.ID)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			return credit(ctx, tx, e)
		})
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}
