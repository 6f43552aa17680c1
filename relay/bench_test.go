package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// discard acks everything.
type discard struct{}

func (discard) Publish(_ context.Context, events []event.Event) []error {
	return make([]error, len(events))
}

// BenchmarkDrain is the relay's and the database's part of a drain: claim and settle, with nothing to publish to.
func BenchmarkDrain(b *testing.B) {
	const events = 100_000
	db := pgtest.NewDatabase(b, migrations.Outbox)
	settled := make(chan int, 1000)
	cfg := relay.Config{Logger: quiet(), Observer: relay.Observer{Settled: func(n int, _ time.Duration) { settled <- n }}}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		db.Exec(b, `insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || (random() * 100000)::int, 'T',
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
