package inbox_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// benchWorld has the default window, and so 22 days.
func benchWorld(b *testing.B) (*world, *inbox.Inbox) {
	b.Helper()
	w := newWorld(b)
	w.Exec(b, "create table ledger (id bigint generated always as identity primary key, entry_type text not null, "+
		"source_payment_id uuid not null, amount bigint not null, unique (entry_type, source_payment_id))")
	in, err := inbox.New(w.Pool, "ledger", inbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	if err := in.Prepare(b.Context()); err != nil {
		b.Fatal(err)
	}
	return w, in
}

func credit(ctx context.Context, tx pgx.Tx, e event.Event) error {
	_, err := tx.Exec(ctx, "insert into ledger (entry_type, source_payment_id, amount) values ('credit', $1, 100) on "+
		"conflict do nothing", e.ID.String())
	return err
}

func creditAll(ctx context.Context, tx pgx.Tx, events []event.Event) error {
	ids := make([]string, len(events))
	for i := range events {
		ids[i] = events[i].ID.String()
	}
	_, err := tx.Exec(ctx, "insert into ledger (entry_type, source_payment_id, amount) select 'credit', id::uuid, "+
		"100 from unnest($1::text[]) id on conflict do nothing", ids)
	return err
}

// stream handles b.N events in batches, from four goroutines, and reports events per second.
func stream(b *testing.B, h inbox.Handler, size int, next func(n int) []event.Event) {
	b.Helper()
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				n := int(min(int64(size), left.Add(-int64(size))+int64(size)))
				if n <= 0 {
					return
				}
				if _, err := h.Handle(b.Context(), next(n)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkBatch500(b *testing.B) {
	_, in := benchWorld(b)
	stream(b, in.Batch(creditAll), 500, some)
}

func BenchmarkEachIn500(b *testing.B) {
	_, in := benchWorld(b)
	stream(b, in.Each(credit), 500, some)
}

// BenchmarkPlainEachIn500 has the same effects in the same transactions, without this package.
func BenchmarkPlainEachIn500(b *testing.B) {
	w, _ := benchWorld(b)
	stream(b, inbox.HandlerFunc(func(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
		return nil, pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
			for _, e := range events {
				if err := credit(ctx, tx, e); err != nil {
					return err
				}
			}
			return nil
		})
	}), 500, some)
}

// BenchmarkOneByOne is the baseline of the batches: a transaction per event.
func BenchmarkOneByOne(b *testing.B) {
	_, in := benchWorld(b)
	stream(b, in.Each(credit), 1, some)
}

// BenchmarkPlainOneByOne is BenchmarkOneByOne without this package.
func BenchmarkPlainOneByOne(b *testing.B) {
	w, in := benchWorld(b)
	_ = in
	stream(b, inbox.HandlerFunc(plain{w}.Handle), 1, some)
}

type plain struct{ *world }

func (p plain) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	for _, e := range events {
		err := pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, "insert into inbox_message (consumer_name, message_id) values ('ledger', $1) on "+
				"conflict do nothing", e.ID.String())
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

func BenchmarkDuplicates500(b *testing.B) {
	_, in := benchWorld(b)
	seen := some(500)
	h := in.Batch(creditAll)
	if _, err := h.Handle(b.Context(), seen); err != nil {
		b.Fatal(err)
	}
	stream(b, h, 500, func(n int) []event.Event { return seen[:n] })
}

// BenchmarkPlainBatch500 is the lower bound of a batch: one insert of ids, one effect, one commit.
func BenchmarkPlainBatch500(b *testing.B) {
	w, _ := benchWorld(b)
	stream(b, inbox.HandlerFunc(plainBatch{w}.Handle), 500, some)
}

type plainBatch struct{ *world }

func (p plainBatch) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	ids := make([]string, len(events))
	for i := range events {
		ids[i] = events[i].ID.String()
	}
	return nil, pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into inbox_message (consumer_name, message_id) select 'ledger', id::uuid from "+
			"unnest($1::text[]) id on conflict do nothing", ids)
		if err != nil {
			return err
		}
		return creditAll(ctx, tx, events)
	})
}
