package metrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// Relay has the figures of one relay. Make one with [NewRelay].
type Relay struct {
	counts relayCounts
	state  relayState
	relay  atomic.Pointer[relay.Relay] // set by Run

	mu   sync.Mutex
	gone map[string]error // what is away, and why
}

// relayCounts are moved by the relay's own callbacks.
type relayCounts struct {
	claimed, discarded, published, attempts, settled, failures, unacked, taken, lost, due, belowFloor prometheus.Counter
	held, drained, parked, behind, released                                                           prometheus.Counter
	claimTime, publishTime, settleTime,
	requestTime prometheus.Histogram
	lanes, closed prometheus.Gauge
	outage        *prometheus.GaugeVec
	outages, acked, ackedBytes,
	requests *prometheus.CounterVec
}

// relayState is what the database says every SampleEvery.
type relayState struct {
	figures gauges               // those of relayFigures
	lanes   *prometheus.GaugeVec // age of the oldest event of each
	sampled prometheus.Gauge
}

// NewRelay registers the figures of a relay. It fails when their names are taken.
func NewRelay(to prometheus.Registerer) (*Relay, error) {
	s := &set{to: to, subsystem: "relay"}
	m := &Relay{gone: map[string]error{}}
	m.counts.register(s)
	m.state.register(s)
	s.gaugeFunc("stalled_seconds", "For how long events have waited while none was settled; 0 when nothing waits.",
		func() float64 {
			if r := m.relay.Load(); r != nil {
				return r.Stalled().Seconds()
			}
			return 0
		})
	return m, s.err()
}

func (c *relayCounts) register(s *set) {
	c.claimed = s.counter("claimed_events_total", "Events of claims, those of a repeated claim again.")
	c.discarded = s.counter("discarded_events_total", "Claimed events that somebody deleted before they were settled.")
	c.published = s.counter("published_events_total", "Events that the publisher acknowledged.")
	c.attempts = s.counter("publish_attempts_total", "Rounds of publishing, one per claim when nothing is sent twice.")
	c.settled = s.counter("settled_events_total", "Events deleted from the outbox after they were acknowledged.")
	c.failures = s.counter("publish_failures_total", "Rounds of publishing that left events without an "+
		"acknowledgement.")
	c.unacked = s.counter("unacked_events_total", "Events that such rounds left; they are sent again.")
	c.taken = s.counter("lanes_taken_total", "Lanes that this relay began to own.")
	c.lost = s.counter("lanes_lost_total", "Lanes that another relay took, or whose owner was in doubt.")
	c.held = s.counter("held_events_total", "Events put into outbox_held: their partition does not answer, or their "+
		"topic is refused.")
	c.drained = s.counter("drained_events_total", "Events published out of outbox_held.")
	c.parked = s.counter("parked_events_total", "Events that Kafka refused for certain, and those behind them in "+
		"their claim, put into outbox_parked.")
	c.behind = s.counter("parked_behind_events_total", "New events of parked keys, put behind them.")
	c.released = s.counter("released_events_total", "Events published out of outbox_parked.")
	c.closed = s.gauge("closed_partitions", "Partitions, and topics as a whole, whose events this relay holds at the "+
		"moment.")
	c.due = s.counter("due_events_total", "Scheduled events that came due and were moved into the outbox.")
	c.belowFloor = s.counter("below_floor_events_total", "Events found where none can be: a bug, and their order is "+
		"not certain.")
	c.claimTime = s.histogram("claim_seconds", "Time of a claim, its commit included.")
	c.publishTime = s.histogram("publish_seconds", "Time to publish a claim, repetitions included.")
	c.settleTime = s.histogram("settle_seconds", "Time to settle a claim.")
	c.requestTime = s.histogram("kafka_request_seconds", "Time of an acknowledged request to Kafka.")
	c.lanes = s.gauge("lanes_owned", "Lanes that this relay owns; 0 is a standby.")
	c.outage = s.gauges("outage", "1 while the system (postgres, kafka) does not answer as it should.", "system",
		"postgres", "kafka")
	c.outages = s.counters("outages_total", "Outages that began.", "system", "postgres", "kafka")
	c.acked = s.counters("kafka_acked_events_total", "Events that Kafka acknowledged.", "topic")
	c.ackedBytes = s.counters("kafka_acked_bytes_total", "Bytes of acknowledged requests, compressed.", "topic")
	c.requests = s.counters("kafka_requests_total", "Requests to Kafka by result (acked, failed).", "result", "acked",
		"failed")
}

func (g *relayState) register(s *set) {
	lanes := make([]string, relay.Lanes)
	for i := range lanes {
		lanes[i] = strconv.Itoa(i)
	}
	g.lanes = s.gauges("lane_oldest_seconds", "Age of the oldest event of each lane; 0 when there is none.", "lane",
		lanes...)
	g.sampled = s.gauge("sampled_timestamp_seconds", "When the figures about the database were read, every 10 s when "+
		"Postgres answers.")
	g.figures = s.figures(relayFigures(relay.Sample{}))
}

// relayFigures are what a Sample has for gauges.
func relayFigures(s relay.Sample) []figure {
	wal := cmp.Or(s.WAL, &relay.WALStatus{}) // zero for an outbox whose WAL nobody reads
	active, safe, oldest := 0.0, -1.0, -1.0
	if wal.Active {
		active = 1
	}
	if wal.SafeBytes != nil {
		safe = float64(*wal.SafeBytes)
	}
	if s.OldestTransaction >= 0 {
		oldest = s.OldestTransaction.Seconds()
	}
	return []figure{
		{"backlog_events", "Events in the outbox, counted up to 100000.", float64(s.Backlog)},
		{
			"backlog_oldest_seconds", "Age of the oldest event in the outbox; 0 when there is none.",
			s.Oldest.Seconds(),
		},
		{"outbox_lanes_owned", "Lanes of 32 that have an owner, whichever relay.", float64(s.Owned)},
		{"members", "Relays of this outbox that are alive.", float64(s.Members)},
		{"outbox_held_events", "Events held because their partition or topic does not take them or is paused, " +
			"counted up to 100000.", float64(s.Held)},
		{"outbox_held_partitions", "Partitions, and topics as a whole, that events are held for; paused topics " +
			"left out.", float64(s.HeldPartitions)},
		{
			"outbox_held_oldest_seconds", "For how long the oldest of them is held; 0 when there is none.",
			s.HeldFor.Seconds(),
		},
		{"outbox_parked_events", "Events that wait for a person, those behind a refused one included, counted " +
			"up to 100000.", float64(s.Parked)},
		{"outbox_parked_keys", "Keys whose events are parked.", float64(s.ParkedKeys)},
		{"outbox_releasing_keys", "Parked keys that are being released.", float64(s.Releasing)},
		{
			"outbox_parked_oldest_seconds", "For how long the oldest parked key is in its state; 0 when there is none.",
			s.ParkedFor.Seconds(),
		},
		{"outbox_scheduled_events", "Events that wait for their time, counted up to 100000.", float64(s.Scheduled)},
		{
			"outbox_scheduled_late_seconds", "For how long the event that is due first has been due; 0 when none is.",
			s.ScheduledLate.Seconds(),
		},
		{"outbox_paused_topics", "Topics that an operator has paused.", float64(s.PausedTopics)},
		{
			"outbox_paused_oldest_seconds", "For how long the first of them is paused; 0 when there is none.",
			s.PausedFor.Seconds(),
		},
		{
			"outbox_archive_stray_events", "Archived events that are in no day, about: the days were not made in time.",
			float64(s.ArchiveStray),
		},
		{"wal_lanes", "Lanes of 32 that are published from the WAL.", float64(wal.Lanes)},
		{
			"wal_slot_active", "1 while a relay reads the replication slot, 0 while none does or there is none.",
			active,
		},
		{
			"wal_lag_bytes", "How much WAL lies behind the place that the replication slot stands at.",
			float64(wal.LagBytes),
		},
		{"wal_lag_seconds", "How long ago a place in the WAL was confirmed last; up to its heartbeat and a " +
			"little when there is nothing to confirm.", wal.LagTime.Seconds()},
		{"wal_held_bytes", "How much WAL Postgres keeps for the replication slot.", float64(wal.HeldBytes)},
		{"wal_safe_bytes", "How much may be written before the replication slot may be lost; -1: no limit, or " +
			"no slot.", safe},
		{"xmin_age_transactions", "How many transactions ago the oldest snapshot or transaction of the database " +
			"began; -1 when the role may not look.", float64(s.XminAge)},
		{"oldest_transaction_seconds", "How long ago the oldest visible transaction that holds a snapshot " +
			"began; -1 when the role may not look.", oldest},
	}
}

// Observer is for the relay's Config.
func (m *Relay) Observer() relay.Observer {
	c := &m.counts
	return relay.Observer{
		Claimed: func(n, discarded int, took time.Duration) {
			c.claimed.Add(float64(n))
			c.discarded.Add(float64(discarded))
			c.claimTime.Observe(took.Seconds())
		},
		Published: func(n, attempts int, took time.Duration) {
			c.published.Add(float64(n))
			c.attempts.Add(float64(attempts))
			c.publishTime.Observe(took.Seconds())
		},
		Settled: func(n, discarded int, took time.Duration) {
			c.settled.Add(float64(n))
			c.discarded.Add(float64(discarded))
			c.settleTime.Observe(took.Seconds())
		},
		PublishFailed: func(n int, _ error) {
			c.failures.Inc()
			c.unacked.Add(float64(n))
		},
		Due: func(n int) { c.due.Add(float64(n)) },
		LaneTaken: func(int16, int64) {
			c.taken.Inc()
			c.lanes.Inc()
		},
		LaneLeft: func(_ int16, lost bool) {
			c.lanes.Dec()
			if lost {
				c.lost.Inc()
			}
		},
		Parked:     func(n int) { c.parked.Add(float64(n)) },
		Behind:     func(n int) { c.behind.Add(float64(n)) },
		Released:   func(n int) { c.released.Add(float64(n)) },
		Held:       func(_ string, _ int32, n int) { c.held.Add(float64(n)) },
		Drained:    func(n int) { c.drained.Add(float64(n)) },
		Closed:     func(string, int32, error) { c.closed.Inc() },
		Reopened:   func(string, int32, time.Duration) { c.closed.Dec() },
		BelowFloor: func(int16) { c.belowFloor.Inc() },
		Outage:     m.setOutage,
	}
}

// Publisher is for the Config of the relay's publisher.
func (m *Relay) Publisher() publisher.Observer {
	c := &m.counts
	return publisher.Observer{
		Produced: func(topic string, _, events, bytes int, took time.Duration) {
			c.requests.WithLabelValues("acked").Inc()
			c.acked.WithLabelValues(topic).Add(float64(events))
			c.ackedBytes.WithLabelValues(topic).Add(float64(bytes))
			c.requestTime.Observe(took.Seconds())
		},
		Failed: func(string, int, int, error) { c.requests.WithLabelValues("failed").Inc() },
	}
}

func (m *Relay) setOutage(system string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.gone, system)
		m.counts.outage.WithLabelValues(system).Set(0)
		return
	}
	m.gone[system] = err
	m.counts.outage.WithLabelValues(system).Set(1)
	m.counts.outages.WithLabelValues(system).Inc()
}

// Away says which systems do not answer as they should; nil when all do.
func (m *Relay) Away() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, system := range []string{"postgres", "kafka"} {
		if err := m.gone[system]; err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", system, err))
		}
	}
	return errors.Join(errs...)
}

// Run asks r for the figures of the outbox every [SampleEvery] until ctx ends, and returns nil. What cannot be read
// keeps its last value; sampled_timestamp_seconds tells.
func (m *Relay) Run(ctx context.Context, r *relay.Relay) error {
	m.relay.Store(r)
	every(ctx, func(ctx context.Context) {
		if r.Asleep() { // the figures are those of before
			m.state.sampled.SetToCurrentTime()
			return
		}
		// With an error there may be some figures, but not all of them.
		if s, err := r.Sample(ctx); err == nil {
			m.state.set(s)
		}
	})
	return nil
}

func (g *relayState) set(s relay.Sample) {
	g.figures.set(relayFigures(s))
	for lane, age := range s.Lanes {
		g.lanes.WithLabelValues(strconv.Itoa(lane)).Set(age.Seconds())
	}
	g.sampled.SetToCurrentTime()
}
