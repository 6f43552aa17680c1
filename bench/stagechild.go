package main

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// stageJob says which steps of the chain a child runs, and for how long: until each has had Events events, the first
// tenth of which is not measured, or, when there is a Seconds, for so long after warmUp.
type stageJob struct {
	Append, Relay, Consume bool
	Rate                   float64 // appended events a second; 0: as fast as it goes
	PerAppend, Producers   int
	Events                 int
	Seconds                float64
	FetchBytes, Batch      int // of the consumer; 0: its default
	Consumer               string
}

// warmUp precedes a measurement by time: connections, plans, the assignment of the group.
const warmUp = 2 * time.Second

// stageAnswer is the work and resource use of a child's steps during the measurement.
type stageAnswer struct {
	Seconds                                          float64
	Appended, Settled, Handled                       int
	Transactions, Claims, Requests, Batches, Fetches int
	Client, Postgres, Kafka                          float64 // CPU seconds
	WAL, DatabaseNet, KafkaNet                       float64 // bytes
	AppendMS, ClaimMS, PublishMS, SettleMS, HandleMS float64 // medians
	Publish50, Publish99, Apply50, Apply99           float64 // milliseconds since the begin of an event's append
}

// stages is the state of a child.
type stages struct {
	job
	pool                                   *pgxpool.Pool
	database, kafka, fetching              traffic
	appended, settled, handled             atomic.Int64
	requests                               atomic.Int64
	appends, claims, publishes             timings
	settles, handles, toPublished, toApply timings
	mu                                     sync.Mutex
	// by partition: the appends of the events that an effect has run for
	begun    map[int32][]time.Time
	assigned chan struct{}
	once     sync.Once
}

// stageChild runs the steps and measures.
func stageChild(ctx context.Context, j job) (a answer, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stages{job: j, begun: map[int32][]time.Time{}, assigned: make(chan struct{})}
	if s.pool, err = s.connect(ctx); err != nil {
		cancel(err)
		return a, err
	}
	defer s.pool.Close()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	run := func(what func(ctx context.Context) error) {
		running.Go(func() {
			if err := what(ctx); ctx.Err() == nil {
				cancel(errors.Join(errors.New("a step ended"), err))
			}
		})
	}
	if j.Stage.Consume {
		run(s.consume)
		select {
		case <-s.assigned:
		case <-ctx.Done():
			return a, context.Cause(ctx)
		}
	}
	payload := payloads(distinct)
	if j.Stage.Relay {
		run(s.relay)
	}
	if j.Stage.Append {
		running.Go(func() {
			if err := s.produce(ctx, payload); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	begins := func() error { return s.awaitEvents(ctx, j.Stage.Events/10) }
	ends := func() error { return s.awaitEvents(ctx, j.Stage.Events) }
	if j.Stage.Seconds > 0 {
		begins = func() error { return pause(ctx, warmUp) }
		ends = func() error { return pause(ctx, time.Duration(j.Stage.Seconds*float64(time.Second))) }
	}
	if err := begins(); err != nil {
		return a, err
	}
	before, err := s.counters(ctx)
	if err != nil {
		return a, err
	}
	s.resetTimings()
	if err := ends(); err != nil {
		return a, err
	}
	after, err := s.counters(ctx)
	a.Stage = s.between(before, after)
	return a, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// awaitEvents waits until every step has had that many events.
func (s *stages) awaitEvents(ctx context.Context, events int) error {
	n := int64(events)
	for s.Stage.Append && s.appended.Load() < n || s.Stage.Relay && s.settled.Load() < n || s.Stage.Consume &&
		s.handled.Load() < n {
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// moment is the value of every counter at a time.
type moment struct {
	at                                                         time.Time
	cpu                                                        float64
	servers                                                    usage
	wal                                                        int64
	database, kafka, appended, settled, handled, requests, ask int64
}

func (s *stages) counters(ctx context.Context) (m moment, err error) {
	err = s.pool.QueryRow(ctx, queryWAL).Scan(&m.wal)
	m.at, m.cpu, m.servers = time.Now(), selfCPU(), serverCPUOf(os.Getppid())
	m.database, m.kafka, m.ask = s.database.bytes.Load(), s.kafka.bytes.Load()+s.fetching.bytes.Load(),
		s.fetching.writes.Load()
	m.appended, m.settled, m.handled, m.requests = s.appended.Load(), s.settled.Load(), s.handled.Load(),
		s.requests.Load()
	return m, err
}

func (s *stages) resetTimings() {
	for _, t := range []*timings{
		&s.appends, &s.claims, &s.publishes, &s.settles, &s.handles, &s.toPublished,
		&s.toApply,
	} {
		t.take()
	}
}

func (s *stages) between(from, to moment) stageAnswer {
	used := to.servers.minus(from.servers)
	a := stageAnswer{
		Seconds: to.at.Sub(from.at).Seconds(), Appended: int(to.appended - from.appended),
		Settled: int(to.settled - from.settled), Handled: int(to.handled - from.handled),
		Requests: int(to.requests - from.requests), Fetches: int(to.ask - from.ask), Client: to.cpu - from.cpu,
		Postgres: used.postgres, Kafka: used.kafka, WAL: float64(to.wal - from.wal),
		DatabaseNet: float64(to.database - from.database), KafkaNet: float64(to.kafka - from.kafka),
	}
	a.Transactions, a.AppendMS, _ = s.appends.quantiles()
	a.Claims, a.ClaimMS, _ = s.claims.quantiles()
	_, a.PublishMS, _ = s.publishes.quantiles()
	_, a.SettleMS, _ = s.settles.quantiles()
	a.Batches, a.HandleMS, _ = s.handles.quantiles()
	_, a.Publish50, a.Publish99 = s.toPublished.quantiles()
	_, a.Apply50, a.Apply99 = s.toApply.quantiles()
	return a
}

func (s *stages) connect(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(s.URL)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 40
	cfg.ConnConfig.DialFunc = s.database.dial
	return pgxpool.NewWithConfig(ctx, cfg)
}

// produce appends from several goroutines, each on its own fixed schedule.
func (s *stages) produce(ctx context.Context, payload [][]byte) error {
	period := time.Duration(0)
	if s.Stage.Rate > 0 {
		period = time.Duration(float64(s.Stage.PerAppend*s.Stage.Producers) / s.Stage.Rate * float64(time.Second))
	}
	started := time.Now()
	var left atomic.Int64
	left.Store(int64(s.Stage.Events))
	failed := make(chan error, s.Stage.Producers)
	var all sync.WaitGroup
	for p := range s.Stage.Producers {
		all.Go(func() {
			due := started.Add(period * time.Duration(p) / time.Duration(s.Stage.Producers))
			for ; ; due = due.Add(period) {
				if s.Stage.Events > 0 && left.Add(-int64(s.Stage.PerAppend)) < 0 {
					return
				}
				if err := pause(ctx, time.Until(due)); err != nil {
					return
				}
				if err := s.appendSome(ctx, payload); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}

func (s *stages) appendSome(ctx context.Context, payload [][]byte) error {
	began := time.Now()
	batch := events(s.Topic, s.Stage.PerAppend, payload)
	for i := range batch {
		batch[i].Time = began
	}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, batch...) })
	s.appends.add(time.Since(began))
	s.appended.Add(int64(len(batch)))
	return err
}

func (s *stages) relay(ctx context.Context) error {
	kafka, err := publisher.NewKafka(s.Brokers, publisher.Config{
		Dial: s.kafka.dial, Logger: quiet(),
		Observer: publisher.Observer{
			Produced: func(string, int, int, int, time.Duration) { s.requests.Add(1) },
		},
	})
	if err != nil {
		return err
	}
	defer func() { _ = kafka.Close() }()
	r, err := relay.New(s.pool, &timedPublisher{kafka, s}, relay.Config{
		Schema: "public", Pumps: s.Pumps,
		ClaimEvents: s.ClaimEvents, Logger: quiet(), Observer: relay.Observer{
			Claimed:   func(_, _ int, took time.Duration) { s.claims.add(took) },
			Published: func(_, _ int, took time.Duration) { s.publishes.add(took) },
			Settled:   func(n, _ int, took time.Duration) { s.settled.Add(int64(n)); s.settles.add(took) },
		},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// timedPublisher notes the age of each event at its ack.
type timedPublisher struct {
	*publisher.Kafka
	s *stages
}

func (t *timedPublisher) Publish(ctx context.Context, events []event.Event) []error {
	verdicts := t.Kafka.Publish(ctx, events)
	now := time.Now()
	ages := make([]time.Duration, len(events))
	for i := range events {
		ages[i] = now.Sub(events[i].Time)
	}
	t.s.toPublished.add(ages...)
	return verdicts
}

func (s *stages) consume(ctx context.Context) error {
	in, err := inbox.New(s.pool, s.Stage.Consumer, inbox.Config{Schema: "public", Logger: quiet()})
	if err != nil {
		return err
	}
	if err := in.Prepare(ctx); err != nil {
		return err
	}
	effect := in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		times := make([]time.Time, len(events))
		for i := range events {
			times[i] = events[i].Time
		}
		s.mu.Lock()
		s.begun[events[0].Position.Partition] = times
		s.mu.Unlock()
		return creditAll(ctx, tx, events)
	})
	c, err := consumer.New(effect, s.Brokers, []string{s.Topic}, consumer.Config{
		FetchBytes: s.Stage.FetchBytes, Batch: s.Stage.Batch, Dial: s.fetching.dial, Logger: quiet(),
		Observer: consumer.Observer{
			Assigned: func(_ int32, all []consumer.Partition) {
				if len(all) > 0 {
					s.once.Do(func() { close(s.assigned) })
				}
			},
			Handled: s.committed,
		},
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// committed notes the age of events at the commit of their effect.
func (s *stages) committed(p consumer.Partition, n int, _ []inbox.Outcome, took time.Duration) {
	now := time.Now()
	s.mu.Lock()
	times := s.begun[p.ID]
	delete(s.begun, p.ID)
	s.mu.Unlock()
	ages := make([]time.Duration, len(times))
	for i, t := range times {
		ages[i] = now.Sub(t)
	}
	s.toApply.add(ages...)
	s.handles.add(took)
	s.handled.Add(int64(n))
}

// timings are durations that many goroutines add to.
type timings struct {
	mu  sync.Mutex
	all []time.Duration
}

func (t *timings) add(d ...time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, d...)
}

// take returns the sorted durations, and clears them.
func (t *timings) take() []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.all
	t.all = nil
	slices.Sort(all)
	return all
}

// quantiles returns the count, median and 99th percentile in milliseconds, and clears the durations.
func (t *timings) quantiles() (n int, p50, p99 float64) {
	all := t.take()
	if n = len(all); n == 0 {
		return 0, 0, 0
	}
	at := func(q float64) float64 { return all[min(int(q*float64(n)), n-1)].Seconds() * 1e3 }
	return n, at(0.5), at(0.99)
}

// traffic counts the bytes and writes of connections.
type traffic struct{ bytes, writes atomic.Int64 }

func (t *traffic) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &countedConn{conn, t}, nil
}

type countedConn struct {
	net.Conn
	t *traffic
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.t.bytes.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.t.bytes.Add(int64(n))
	c.t.writes.Add(1)
	return n, err
}
