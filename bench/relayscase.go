package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay"
)

const (
	nameHandOver = "hand-over on shutdown"
	nameTakeOver = "take-over after a kill"
	defaultLease = 15 * time.Second
	// longLease keeps the lanes with relays that are stopped (SIGSTOP) while the outbox is filled.
	longLease = 2 * time.Minute
)

// relaysCase compares two and four relay processes with one, on the same events; then it measures how long events wait
// when one of two relays is stopped, and when it is killed.
func relaysCase(ctx context.Context, s *stack, o options, rep *report) error {
	lease := o.live.lease
	if lease == 0 {
		lease = defaultLease
	}
	rep.note("relays", fmt.Sprintf("%d events, drained by one, two or four relays that already share the lanes. "+
		"Then one of two relays ends, at %d events per second: p50 is the time from its signal until the other owns "+
		"every lane and has published from each lane that it took. The lease is %v", o.live.relayEvents, flowRate,
		lease))
	payload := payloads(distinct)
	var shareDifferences []float64
	names := []string{"one relay", "two relays", "four relays"}
	for turn := range o.repeats + 1 {
		for i, name := range names {
			f, differ, err := s.drainShared(ctx, o, 1<<i, false, payload)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			f.Case, f.Name, f.Turn = "relays", name, turn
			rep.add(f)
			if turn > 0 && i > 0 {
				shareDifferences = append(shareDifferences, float64(differ))
			}
		}
	}
	rep.ratio("relays", names[1], names[0], 1)
	rep.ratio("relays", names[2], names[0], 1)
	rep.atMost("relays", "lanes of one relay more than of another, at most, during a drain", 1, shareDifferences)
	for _, one := range []struct {
		name        string
		signal      syscall.Signal
		first, last int // turns
		atMost      time.Duration
		unit        string
	}{
		{nameHandOver, syscall.SIGTERM, 0, o.repeats, time.Second, "s"},
		// a lease each: no warm-up
		{nameTakeOver, syscall.SIGKILL, 1, o.live.relayKills, lease + time.Second, "s (lease + 1 s)"},
	} {
		for turn := one.first; turn <= one.last; turn++ {
			f, err := s.handOver(ctx, o, one.signal, lease)
			if err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
			f.Case, f.Name, f.Turn = "relays", one.name, turn
			rep.add(f)
			rep.printf("    %.2f s", f.Seconds)
		}
		rep.atMost("relays", one.name+", "+one.unit, one.atMost.Seconds(),
			rep.pick("relays", one.name, func(f figure) float64 { return f.Seconds }))
	}
	return nil
}

// warmEvents is the number of events per relay before the measurement, so that connections, plans and heaps are warm.
const warmEvents = 40_000

// drainShared starts n relays and, when they have shared the lanes and are warm, pauses them (SIGSTOP) while the outbox
// is filled. The time is from SIGCONT to the last settle. differ is the largest difference of their shares meanwhile.
// With wal, one relay reads the events from the WAL.
func (s *stack) drainShared(ctx context.Context, o options, n int, wal bool, payload [][]byte) (f figure, differ int,
	err error,
) {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return f, 0, err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyOutbox); err != nil {
		return f, 0, err
	}
	relays, stop, err := s.background(n, job{
		URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Pumps: o.pumps, ClaimEvents: o.claimEvents,
		Compression: o.compression, Lease: longLease, WAL: wal,
	})
	if err != nil {
		return f, 0, err
	}
	defer stop()
	if wal {
		err = s.awaitReader(ctx, true)
	} else {
		err = s.awaitShares(ctx, n)
	}
	if err != nil {
		return f, 0, err
	}
	events := o.live.relayEvents
	warm := n * min(warmEvents, events/4)
	if err := s.warm(ctx, topic, warm, payload); err != nil {
		return f, 0, err
	}
	if err := signalAll(relays, syscall.SIGSTOP); err != nil {
		return f, 0, err
	}
	filling, cancel := context.WithTimeout(ctx, longLease/2)
	defer cancel()
	if err := s.fill(filling, topic, events, payload); err != nil {
		return f, 0, err
	}
	written, err := s.wal(ctx)
	if err != nil {
		return f, 0, err
	}
	own := -cpuOfAll(relays)
	before, began := serverCPU(), time.Now()
	if err := signalAll(relays, syscall.SIGCONT); err != nil {
		return f, 0, err
	}
	if differ, err = s.awaitPublished(ctx, topic, warm+events); err != nil {
		return f, 0, err
	}
	f = figure{Events: events}
	f.CPU = (own + cpuOfAll(relays)) * 1e6 / float64(events)
	var last time.Time
	settled := 0
	for _, b := range relays {
		a, err := b.end()
		if err != nil {
			return f, 0, err
		}
		if a.LastSettle.After(last) {
			last = a.LastSettle
		}
		settled += a.Settled
		f.PeakKiB = max(f.PeakKiB, a.PeakKiB)
	}
	if settled != warm+events {
		return f, 0, fmt.Errorf("the relays settled %d of %d events", settled, warm+events)
	}
	after, err := s.wal(ctx)
	if err != nil {
		return f, 0, err
	}
	used := serverCPU().minus(before)
	f.PostgresCPU, f.KafkaCPU = used.postgres*1e6/float64(events), used.kafka*1e6/float64(events)
	f.Seconds, f.WALBytes = last.Sub(began).Seconds(), float64(after-written)/float64(events)
	f.Rate = float64(events) / f.Seconds
	return f, differ, s.left(ctx)
}

// warm lets the relays drain n events.
func (s *stack) warm(ctx context.Context, topic string, n int, payload [][]byte) error {
	// Not by fill, which truncates the tables that the relays use.
	err := inParallel(ctx, 1, n, 10_000, func(ctx context.Context, n int) error {
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			return outbox.Append(ctx, tx, events(topic, n, payload)...)
		})
	})
	if err != nil {
		return err
	}
	if _, err := s.awaitPublished(ctx, topic, n); err != nil {
		return err
	}
	// Let the last settles end and the floors rise: a process must not be paused within a transaction.
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	return s.left(ctx)
}

func cpuOfAll(relays []*background) (seconds float64) {
	for _, b := range relays {
		self, _ := cpuOf(b.process.PID())
		seconds += self
	}
	return seconds
}

func signalAll(relays []*background, sig os.Signal) error {
	for _, b := range relays {
		if err := b.process.Signal(sig); err != nil {
			return err
		}
	}
	return nil
}

// awaitPublished waits until a topic has want records, and meanwhile observes the shares of the lanes.
func (s *stack) awaitPublished(ctx context.Context, topic string, want int) (differ int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		shares, err := s.shares(ctx)
		if err != nil {
			return differ, err
		}
		differ = max(differ, unevenness(shares))
		got, err := s.records(ctx, topic)
		if err != nil || got >= int64(want) {
			return differ, err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return differ, fmt.Errorf("%d of %d events published: %w", got, want, err)
		}
	}
}

// records returns the number of records in a topic.
func (s *stack) records(ctx context.Context, topic string) (n int64, err error) {
	var ask []kafka.OffsetRequest
	for p := range partitions {
		ask = append(ask, kafka.LastOffsetOf(p))
	}
	res, err := s.kafka.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		topic: ask,
	}})
	if err != nil {
		return 0, err
	}
	for _, p := range res.Topics[topic] {
		n, err = n+p.LastOffset, errors.Join(err, p.Error)
	}
	return n, err
}

// flowRate is the rate of appends while a relay leaves.
const flowRate = 1000

// handOver starts two relays and a steady load, sends a signal to one relay, and measures the time until the other has
// published events of every lane that it took over.
func (s *stack) handOver(ctx context.Context, o options, sig syscall.Signal, lease time.Duration) (figure, error) {
	f := figure{Rate: flowRate}
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return f, err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyOutbox, queryVacuumOutbox); err != nil {
		return f, err
	}
	relays, stop, err := s.background(2, job{
		URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Pumps: o.pumps,
		Compression: o.compression, Lease: lease,
	})
	if err != nil {
		return f, err
	}
	defer stop()
	if err := s.awaitShares(ctx, 2); err != nil {
		return f, err
	}
	flowing, cancel := context.WithCancel(ctx)
	defer cancel()
	appended := make(chan error, 1)
	go func() { appended <- appendEvery(flowing, s.db, 10*time.Millisecond, topic, flowRate/100) }()
	if err := pause(ctx, 2*time.Second); err != nil { // both are at work
		return f, err
	}
	at := time.Now()
	if err := relays[0].process.Signal(sig); err != nil {
		return f, err
	}
	if err := s.awaitShares(ctx, 1); err != nil {
		return f, err
	}
	if err := pause(ctx, 2*time.Second); err != nil { // in which every lane gets events
		return f, err
	}
	cancel()
	if err := ignoreCanceled(<-appended); err != nil {
		return f, err
	}
	if sig != syscall.SIGKILL {
		if _, err := relays[0].end(); err != nil {
			return f, err
		}
	}
	a, err := relays[1].end()
	if err != nil {
		return f, err
	}
	took, err := lastPublished(a.Lanes, at)
	f.Seconds, f.Events = took.Seconds(), a.Settled
	f.P50 = milliseconds(took)
	return f, err
}

// lastPublished returns the time until a relay had published from every lane that it took after a moment.
func lastPublished(lanes []laneTurn, at time.Time) (took time.Duration, err error) {
	taken := slices.DeleteFunc(slices.Clone(lanes), func(l laneTurn) bool { return !l.Taken.After(at) })
	if len(taken) < relay.Lanes/4 {
		return 0, fmt.Errorf("only %d lanes changed hands", len(taken))
	}
	for _, l := range taken {
		if l.Published.IsZero() {
			return 0, errors.New("nothing was published from a lane that was taken over")
		}
		took = max(took, l.Published.Sub(at))
	}
	return took, nil
}

// appendEvery appends n events at every tick, until ctx ends.
func appendEvery(ctx context.Context, db *pgxpool.Pool, every time.Duration, topic string, n int) error {
	payload := payloads(1000)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			return outbox.Append(ctx, tx, events(topic, n, payload)...)
		})
		if err != nil {
			return err
		}
	}
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
