package relay_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// walBench runs a relay that owns every lane. settled receives the size of each settle.
func walBench(b *testing.B, to relay.Publisher, feed relay.Feed, change ...func(*relay.Config)) (db *pgtest.DB,
	settled chan int, stop func(),
) {
	b.Helper()
	db = pgtest.NewDatabase(b, migrations.Outbox)
	if _, err := operator.SetUpWAL(b.Context(), db.Pool, ""); err != nil {
		b.Fatal(err)
	}
	settled = make(chan int, 10_000)
	cfg := relay.Config{
		Feed: feed, Logger: quiet(),
		Observer: relay.Observer{Settled: func(n, _ int, _ time.Duration) { settled <- n }},
	}
	for _, c := range change {
		c(&cfg)
	}
	r, err := relay.New(db.Pool, to, cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	if feed == relay.FeedWAL {
		pgtest.AwaitSQL(b, db, `select count(*) = 32 from outbox_streamed`)
	}
	return db, settled, func() {
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		if _, err := operator.DropWAL(b.Context(), db.Pool, ""); err != nil {
			b.Fatal(err)
		}
	}
}

// gated publishes once its gate is open.
type gated struct {
	sync.RWMutex
	to relay.Publisher
}

func (g *gated) Publish(ctx context.Context, events []event.Event) []error {
	g.RLock()
	defer g.RUnlock()
	return g.to.Publish(ctx, events)
}

// BenchmarkSource drains 200,000 events to Kafka, from the table and from the WAL. Transactions of 100 events wrote
// them while the relay could not publish.
func BenchmarkSource(b *testing.B) {
	for name, feed := range map[string]relay.Feed{"table": relay.FeedTable, "wal": relay.FeedWAL} {
		b.Run(name, func(b *testing.B) {
			const events = 200_000
			topic := kafkatest.Topic(b, 8, nil)
			kafka, err := publisher.NewKafka(kafkatest.Brokers(b), publisher.Config{Logger: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = kafka.Close() }()
			to := &gated{to: kafka}
			db, settled, stop := walBench(b, to, feed)
			for b.Loop() {
				b.StopTimer()
				to.Lock()
				db.Exec(b, `do $$ begin for i in 1..2000 loop
					insert into outbox_event (topic, key, type, payload) select '`+topic+
					`', 'k' || (random() * 100000)::int, 'T',
						convert_to(repeat(md5(g::text), 16), 'UTF8') from generate_series(1, 100) g;
					commit;
				end loop; end $$`)
				b.StartTimer()
				to.Unlock()
				for n := 0; n < events; n += <-settled {
				}
			}
			b.ReportMetric(events*float64(b.N)/b.Elapsed().Seconds(), "events/s")
			b.StopTimer()
			stop()
		})
	}
}

// timed records the age of each acked event, by the time in nanoseconds in its payload.
type timed struct {
	to   *publisher.Kafka
	mu   sync.Mutex
	took []time.Duration
}

func (p *timed) Route(ctx context.Context, topic string) (func(e *event.Event) int32, error) {
	return p.to.Route(ctx, topic)
}

func (p *timed) Publish(ctx context.Context, events []event.Event) []error {
	verdicts := p.to.Publish(ctx, events)
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range events {
		if n, err := strconv.ParseInt(string(events[i].Payload), 10, 64); err == nil && verdicts[i] == nil {
			p.took = append(p.took, now.Sub(time.Unix(0, n)))
		}
	}
	return verdicts
}

// BenchmarkLatency measures the time from before an insert to the broker's ack, at 1,000 events per second, from the
// table and from the WAL.
func BenchmarkLatency(b *testing.B) {
	for name, feed := range map[string]relay.Feed{"table": relay.FeedTable, "wal": relay.FeedWAL} {
		b.Run(name, func(b *testing.B) {
			const writers, each = 4, 1500
			topic := kafkatest.Topic(b, 8, nil)
			kafka, err := publisher.NewKafka(kafkatest.Brokers(b), publisher.Config{Logger: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = kafka.Close() }()
			to := &timed{to: kafka}
			db, settled, stop := walBench(b, to, feed)
			for b.Loop() {
				var wg sync.WaitGroup
				for w := range writers {
					wg.Go(func() {
						tick := time.NewTicker(writers * time.Millisecond)
						defer tick.Stop()
						for range each {
							<-tick.C
							_, err := db.Pool.Exec(b.Context(),
								`insert into outbox_event (topic, key, type, payload) values ($1, $2, 'T', $3)`,
								topic, strconv.Itoa(w), strconv.AppendInt(nil, time.Now().UnixNano(), 10))
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				for n := 0; n < writers*each; n += <-settled {
				}
			}
			stop()
			slices.Sort(to.took)
			at := func(share float64) float64 {
				return float64(to.took[int(float64(len(to.took)-1)*share)].Microseconds()) / 1000
			}
			b.ReportMetric(at(0.5), "p50-ms")
			b.ReportMetric(at(0.99), "p99-ms")
		})
	}
}
