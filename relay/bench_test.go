package relay_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// discard acks everything.
type discard struct{}

func (discard) Publish(_ context.Context, events []event.Event) []error {
	return make([]error, len(events))
}

// BenchmarkDrain measures claims and settles, with a publisher that acks at once.
func BenchmarkDrain(b *testing.B) {
	const events = 100_000
	db := pgtest.NewDatabase(b, migrations.Outbox)
	settled := make(chan int, 1000)
	cfg := relay.Config{Logger: quiet(), Observer: relay.Observer{Settled: func(n, _ int, _ time.Duration) {
		settled <- n
	}}}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		db.Exec(b,
			`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || (random() * 100000)::int,
				'T',
			convert_to(repeat(md5(g::text), 16), 'UTF8') from generate_series(1, $1) g`, events)
		db.Exec(b, `vacuum analyze outbox_event`)
		r, err := relay.New(db.Pool, discard{}, cfg)
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		b.StartTimer()
		go func() { done <- r.Run(ctx) }()
		for n := 0; n < events; n += <-settled {
		}
		b.StopTimer()
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// deadPartition acks everything but the events of one of eight partitions.
type deadPartition struct {
	b    *broker
	dead atomic.Int32 // -1: none
}

func (d *deadPartition) Route(context.Context, string) (func(e *event.Event) int32, error) {
	return d.b.partition, nil
}

func (d *deadPartition) Publish(_ context.Context, events []event.Event) []error {
	verdicts := make([]error, len(events))
	dead := d.dead.Load()
	for i := range events {
		if d.b.partition(&events[i]) == dead {
			verdicts[i] = errAway
		}
	}
	return verdicts
}

// BenchmarkDeadPartition drains 100,000 events to eight partitions, of which none or one is closed. The difference in
// events per second of the others is the cost of holding.
func BenchmarkDeadPartition(b *testing.B) {
	for name, dead := range map[string]int32{"none": -1, "one": 3} {
		b.Run(name, func(b *testing.B) {
			const events = 100_000
			db := pgtest.NewDatabase(b, migrations.Outbox)
			to := &deadPartition{b: newBroker(8)}
			to.dead.Store(dead)
			moved := make(chan int, 10_000)
			count := func(n int) { moved <- n }
			cfg := relay.Config{Logger: quiet(), HoldAfter: time.Millisecond, Observer: relay.Observer{
				Settled: func(n, _ int, _ time.Duration) { count(n) }, Held: func(_ string, _ int32, n int) {
					count(n)
				},
			}}
			r, err := relay.New(db.Pool, to, cfg)
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			add := func(n int) {
				db.Exec(b,
					`insert into outbox_event (topic, key, type, payload) select 'payments',
						'k' || (random() * 100000)::int, 'T',
					convert_to(repeat(md5(g::text), 16), 'UTF8') from generate_series(1, $1) g`, n)
			}
			drain := func(n int) {
				for ; n > 0; n -= <-moved {
				}
			}
			add(1000)
			drain(1000)
			for b.Loop() {
				b.StopTimer()
				add(events)
				b.StartTimer()
				drain(events)
			}
			b.ReportMetric(events*7/8*float64(b.N)/b.Elapsed().Seconds(), "others/s")
			cancel()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
