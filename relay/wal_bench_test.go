package relay_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/kafkatest"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// walBench is a relay that reads the WAL, with every lane handed over, and what it settles.
func walBench(b *testing.B, to relay.Publisher, source relay.Source, change ...func(*relay.Config)) (db *pgtest.DB, settled chan int, stop func()) {
	b.Helper()
	db = pgtest.NewDatabase(b, migrations.Outbox)
	if _, err := relay.SetUpWAL(b.Context(), db.Pool, ""); err != nil {
		b.Fatal(err)
	}
	settled = make(chan int, 10_000)
	cfg := relay.Config{Source: source, Logger: quiet(), Observer: relay.Observer{Settled: func(n int, _ time.Duration) { settled <- n }}}
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
	if source == relay.SourceWAL {
		pgtest.AwaitSQL(b, db, `select count(*) = 32 from outbox_streamed`)
	}
	return db, settled, func() {
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		if _, err := relay.GiveUpEmitted(b.Context(), db.Pool, ""); err != nil {
			b.Fatal(err)
		}
		if _, err := relay.DropWAL(b.Context(), db.Pool, ""); err != nil {
			b.Fatal(err)
		}
	}
}

// gated publishes once it may.
type gated struct {
	sync.RWMutex
	to relay.Publisher
}

func (g *gated) Publish(ctx context.Context, events []event.Event) []error {
	g.RLock()
	defer g.RUnlock()
	return g.to.Publish(ctx, events)
}

// BenchmarkSource drains 200,000 events to Kafka that transactions of 100 wrote while nothing could be published, from the table
// and from the WAL.
func BenchmarkSource(b *testing.B) {
	for name, source := range map[string]relay.Source{"table": relay.SourceTable, "wal": relay.SourceWAL} {
		b.Run(name, func(b *testing.B) {
			const events = 200_000
			topic := kafkatest.Topic(b, 8, nil)
			kafka, err := publisher.NewKafka(kafkatest.Brokers(b), publisher.Config{Logger: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = kafka.Close() }()
			to := &gated{to: kafka}
			db, settled, stop := walBench(b, to, source)
			for b.Loop() {
				b.StopTimer()
				to.Lock()
				db.Exec(b, `do $$ begin for i in 1..2000 loop
					insert into outbox_event (topic, key, type, payload) select '`+topic+`', 'k' || (random() * 100000)::int, 'T',
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

// timed notes how long ago an acked event was made, by the nanoseconds in its payload.
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

// BenchmarkLatency is from before an insert to the broker's ack, at 1,000 events a second, from the table and from the WAL.
func BenchmarkLatency(b *testing.B) {
	for name, source := range map[string]relay.Source{"table": relay.SourceTable, "wal": relay.SourceWAL} {
		b.Run(name, func(b *testing.B) {
			const writers, each = 4, 1500
			topic := kafkatest.Topic(b, 8, nil)
			kafka, err := publisher.NewKafka(kafkatest.Brokers(b), publisher.Config{Logger: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = kafka.Close() }()
			to := &timed{to: kafka}
			db, settled, stop := walBench(b, to, source)
			for b.Loop() {
				var wg sync.WaitGroup
				for w := range writers {
					wg.Go(func() {
						tick := time.NewTicker(writers * time.Millisecond)
						defer tick.Stop()
						for range each {
							<-tick.C
							_, err := db.Pool.Exec(b.Context(), `insert into outbox_event (topic, key, type, payload) values ($1, $2, 'T', $3)`,
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

// counted acks everything, and says how much.
type counted chan int

func (c counted) Publish(_ context.Context, events []event.Event) []error {
	c <- len(events)
	return make([]error, len(events))
}

// BenchmarkEmit is events of 512 bytes from the producer's transaction to the publisher, appended or emitted: the processor time of the
// producer's backend, and how much WAL an event makes, with its deletion. Beside other work on the server the latter says nothing.
func BenchmarkEmit(b *testing.B) {
	for name, do := range map[string]func(context.Context, pgx.Tx, ...event.Event) error{"append": outbox.Append, "emit": outbox.Emit} {
		for _, each := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/n=%d", name, each), func(b *testing.B) {
				to := make(counted, 100_000)
				settled := make(chan int, 100_000)
				db, _, stop := walBench(b, to, relay.SourceWAL, func(c *relay.Config) {
					c.Emitted, c.Observer = true, relay.Observer{Settled: func(n int, _ time.Duration) { settled <- n }}
				})
				events := make([]event.Event, each)
				for i := range events {
					events[i] = event.Event{Topic: "t", Key: strconv.Itoa(i), Type: "T", Payload: bytes.Repeat([]byte("0123456789abcdef"), 32)}
				}
				conn := db.Connect(b)
				transaction := func() {
					if err := pgx.BeginFunc(b.Context(), conn, func(tx pgx.Tx) error { return do(b.Context(), tx, events...) }); err != nil {
						b.Fatal(err)
					}
				}
				place := func() (lsn, ns int64) {
					err := conn.QueryRow(b.Context(), `select (pg_current_wal_insert_lsn() - '0/0')::bigint, split_part(pg_read_file('/proc/self/schedstat'), ' ', 1)::bigint`).Scan(&lsn, &ns)
					if err != nil {
						b.Fatal(err)
					}
					return lsn, ns
				}
				transaction()
				lsn, ns := place()
				for b.Loop() {
					transaction()
				}
				_, spent := place()
				for n := 0; n < each*(b.N+1); n += <-to {
				}
				if name == "append" {
					for n := 0; n < each*(b.N+1); n += <-settled {
					}
				}
				end, _ := place()
				total := float64(each * b.N)
				b.ReportMetric(total/b.Elapsed().Seconds(), "events/s")
				b.ReportMetric(float64(spent-ns)/1000/total, "server-µs/event")
				b.ReportMetric(float64(end-lsn)/total, "wal-B/event")
				stop()
			})
		}
	}
}
