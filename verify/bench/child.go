package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
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

// childArg makes this program read a job from standard input, run it, and write the answer to standard output.
const childArg = "child"

// job says which steps of the chain a child runs, and for how long: until each has had Events events, the first tenth
// of which is not measured unless the start is Cold; for Seconds after warmUp; or, a relay alone, until SIGTERM.
type job struct {
	URL                    string
	Brokers                []string
	Topic                  string
	Append, Relay, Consume bool
	Events                 int
	Cold                   bool
	Seconds                float64
	Rate                   float64 // appended events a second; 0: as fast as it goes
	PerAppend, Producers   int
	Pumps, ClaimEvents     int           // of the relay; 0: its default
	Lease                  time.Duration // of the relay; 0: its default
	WAL                    bool          // the relay reads the WAL
	FetchBytes, Batch      int           // of the consumer; 0: its default
	Consumer               string
	Answer                 string // the file to answer in; empty: the standard output
}

// warmUp precedes a measurement by time: connections, plans, the assignment of the group.
const warmUp = 2 * time.Second

// answer is the work and resource use of a child's steps during the measurement.
type answer struct {
	Seconds                                          float64
	Appended, Settled, Handled                       int
	Transactions, Claims, Batches, Fetches           int
	Client, Postgres, Kafka                          float64 // CPU seconds
	Allocations                                      float64
	WAL, DatabaseNet, KafkaNet                       float64 // bytes
	AppendMS, ClaimMS, PublishMS, SettleMS, HandleMS float64 // medians
	Publish50, Publish99, Apply50, Apply99           float64 // milliseconds since the begin of an event's append
	LastSettle                                       time.Time
	PeakKiB                                          int64 // VmHWM; 0 where there is no /proc
}

// command returns a new process of this program for a job.
func command(ctx context.Context, j job) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in, err := json.Marshal(j)
	cmd := exec.CommandContext(ctx, self, childArg)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	return cmd, err
}

// child runs a job in a new process, so that its CPU and memory are measured separately.
func child(ctx context.Context, j job) (a answer, err error) {
	cmd, err := command(ctx, j)
	if err != nil {
		return a, err
	}
	out, err := cmd.Output()
	if err != nil {
		return a, fmt.Errorf("the child process: %w", err)
	}
	return a, json.Unmarshal(out, &a)
}

func childMain(ctx context.Context, in io.Reader, out io.Writer) error {
	var j job
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return err
	}
	a, err := runJob(ctx, j)
	if err != nil {
		return err
	}
	a.PeakKiB = peakOf("self")
	if j.Answer != "" {
		text, err := json.Marshal(a)
		return errors.Join(err, os.WriteFile(j.Answer, text, 0o600))
	}
	return json.NewEncoder(out).Encode(a)
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// stages is the state of a child.
type stages struct {
	job
	pool                                   *pgxpool.Pool
	database, kafka, fetching              traffic
	appended, settled, handled, lastSettle atomic.Int64
	appends, claims, publishes             timings
	settles, handles, toPublished, toApply timings
	mu                                     sync.Mutex
	// by partition: the appends of the events that an effect has run for
	begun    map[int32][]time.Time
	assigned chan struct{}
	once     sync.Once
}

// runJob runs the steps and measures.
func runJob(ctx context.Context, j job) (a answer, err error) {
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
	if j.Events == 0 && j.Seconds == 0 {
		return s.untilTold(ctx)
	}
	run := func(what func(ctx context.Context) error) {
		running.Go(func() {
			if err := what(ctx); ctx.Err() == nil {
				cancel(errors.Join(errors.New("a step ended"), err))
			}
		})
	}
	if j.Consume {
		run(s.consume)
		select {
		case <-s.assigned:
		case <-ctx.Done():
			return a, context.Cause(ctx)
		}
	}
	payload := payloads(distinct)
	before, err := s.counters(ctx)
	if err != nil {
		return a, err
	}
	if j.Relay {
		run(s.relay)
	}
	if j.Append {
		running.Go(func() {
			if err := s.produce(ctx, payload); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	begins := func() error { return s.awaitEvents(ctx, j.Events/10) }
	ends := func() error { return s.awaitEvents(ctx, j.Events) }
	if j.Seconds > 0 {
		begins = func() error { return pause(ctx, warmUp) }
		ends = func() error { return pause(ctx, time.Duration(j.Seconds*float64(time.Second))) }
	}
	if !j.Cold {
		if err := begins(); err != nil {
			return a, err
		}
		if before, err = s.counters(ctx); err != nil {
			return a, err
		}
		s.resetTimings()
	}
	if err := ends(); err != nil {
		return a, err
	}
	after, err := s.counters(ctx)
	return s.between(before, after), err
}

// untilTold runs a relay until SIGTERM.
func (s *stages) untilTold(ctx context.Context) (a answer, err error) {
	if err := s.relay(ctx); err != nil {
		return a, err
	}
	if ctx.Err() == nil {
		return a, errors.New("the relay ended by itself")
	}
	return answer{
		Client: selfCPU(), Settled: int(s.settled.Load()), LastSettle: time.Unix(0, s.lastSettle.Load()),
	}, nil
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
	for s.Append && s.appended.Load() < n || s.Relay && s.settled.Load() < n || s.Consume && s.handled.Load() < n {
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// moment is the value of every counter at a time.
type moment struct {
	at                                               time.Time
	cpu, allocations                                 float64
	servers                                          usage
	wal                                              int64
	database, kafka, appended, settled, handled, ask int64
}

func (s *stages) counters(ctx context.Context) (m moment, err error) {
	err = s.pool.QueryRow(ctx, queryWAL).Scan(&m.wal)
	m.at, m.cpu, m.servers, m.allocations = time.Now(), selfCPU(), serverCPUOf(os.Getppid()), allocations()
	m.database, m.kafka, m.ask = s.database.bytes.Load(), s.kafka.bytes.Load()+s.fetching.bytes.Load(),
		s.fetching.writes.Load()
	m.appended, m.settled, m.handled = s.appended.Load(), s.settled.Load(), s.handled.Load()
	return m, err
}

func (s *stages) resetTimings() {
	for _, t := range []*timings{
		&s.appends, &s.claims, &s.publishes, &s.settles, &s.handles, &s.toPublished, &s.toApply,
	} {
		t.take()
	}
}

func (s *stages) between(from, to moment) answer {
	used := to.servers.minus(from.servers)
	a := answer{
		Seconds: to.at.Sub(from.at).Seconds(), Appended: int(to.appended - from.appended),
		Settled: int(to.settled - from.settled), Handled: int(to.handled - from.handled),
		Fetches: int(to.ask - from.ask), Client: to.cpu - from.cpu,
		Allocations: to.allocations - from.allocations,
		Postgres:    used.postgres, Kafka: used.kafka, WAL: float64(to.wal - from.wal),
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
	if s.Rate > 0 {
		period = time.Duration(float64(s.PerAppend*s.Producers) / s.Rate * float64(time.Second))
	}
	started := time.Now()
	var left atomic.Int64
	left.Store(int64(s.Events))
	failed := make(chan error, s.Producers)
	var all sync.WaitGroup
	for p := range s.Producers {
		all.Go(func() {
			due := started.Add(period * time.Duration(p) / time.Duration(s.Producers))
			for ; ; due = due.Add(period) {
				if s.Events > 0 && left.Add(-int64(s.PerAppend)) < 0 {
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
	batch := events(s.Topic, s.PerAppend, payload)
	for i := range batch {
		batch[i].Time = began
	}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, batch...) })
	s.appends.add(time.Since(began))
	s.appended.Add(int64(len(batch)))
	return err
}

func (s *stages) relay(ctx context.Context) error {
	kafka, err := publisher.NewKafka(s.Brokers, publisher.Config{Dial: s.kafka.dial, Logger: quiet()})
	if err != nil {
		return err
	}
	defer func() { _ = kafka.Close() }()
	var to relay.Publisher = kafka
	if s.Append {
		to = &timedPublisher{kafka, s}
	}
	feed := relay.FeedTable
	if s.WAL {
		feed = relay.FeedWAL
	}
	r, err := relay.New(s.pool, to, relay.Config{
		Schema: "public", Feed: feed, Pumps: s.Pumps, ClaimEvents: s.ClaimEvents, Lease: s.Lease,
		Logger: quiet(), Observer: relay.Observer{
			Claimed:   func(_, _ int, took time.Duration) { s.claims.add(took) },
			Published: func(_, _ int, took time.Duration) { s.publishes.add(took) },
			Settled: func(n, _ int, took time.Duration) {
				s.settled.Add(int64(n))
				s.settles.add(took)
				s.lastSettle.Store(time.Now().UnixNano())
			},
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
	in, err := inbox.New(s.pool, s.Consumer, inbox.Config{Schema: "public", Logger: quiet()})
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
		FetchBytes: s.FetchBytes, Batch: s.Batch, Start: consumer.StartEarliest, // a name for each measurement
		Dial: s.fetching.dial, Logger: quiet(),
		Observer: consumer.Observer{
			Assigned: func(a consumer.AssignedInfo) {
				if len(a.Partitions) > 0 {
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
func (s *stages) committed(h consumer.HandledInfo) {
	now := time.Now()
	s.mu.Lock()
	times := s.begun[h.ID]
	delete(s.begun, h.ID)
	s.mu.Unlock()
	ages := make([]time.Duration, len(times))
	for i, t := range times {
		ages[i] = now.Sub(t)
	}
	s.toApply.add(ages...)
	s.handles.add(h.Took)
	s.handled.Add(int64(h.Events))
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
	return len(all), milliseconds(percentile(all, 0.5)), milliseconds(percentile(all, 0.99))
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
