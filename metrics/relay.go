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

// Relay has the metrics of one relay. Make one with [NewRelay].
type Relay struct {
	counts relayCounts
	state  relayState
	relay  atomic.Pointer[relay.Relay] // set by Run

	mu   sync.Mutex
	away map[string]error // by system
}

// relayCounts are the metrics that the Observers' callbacks change.
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

// relayState are the metrics that are read from the database every SampleEvery.
type relayState struct {
	gauges  gauges               // of relaySamples
	lanes   *prometheus.GaugeVec // age of the oldest event of each lane
	sampled prometheus.Gauge
}

// NewRelay registers the metrics of a relay. It fails if their names are registered already.
func NewRelay(to prometheus.Registerer) (*Relay, error) {
	s := &set{to: to, subsystem: "relay"}
	m := &Relay{away: map[string]error{}}
	m.counts.register(s)
	m.state.register(s)
	s.gaugeFunc("stalled_seconds", "Time for which events have waited without any being settled; 0 if none waits.",
		func() float64 {
			if r := m.relay.Load(); r != nil {
				return r.Stalled().Seconds()
			}
			return 0
		})
	return m, s.err()
}

func (c *relayCounts) register(s *set) {
	c.claimed = s.counter("claimed_events_total", "Claimed events; a repeated claim counts again.")
	c.discarded = s.counter("discarded_events_total", "Claimed events that were deleted before they were settled.")
	c.published = s.counter("published_events_total", "Events that the publisher acknowledged.")
	c.attempts = s.counter("publish_attempts_total", "Publish attempts, one per claim if nothing is sent twice.")
	c.settled = s.counter("settled_events_total", "Events deleted from the outbox after they were acknowledged.")
	c.failures = s.counter("publish_failures_total", "Publish attempts that left events without an acknowledgement.")
	c.unacked = s.counter("unacked_events_total", "Events without an acknowledgement; they are sent again.")
	c.taken = s.counter("lanes_taken_total", "Lanes that this relay took over.")
	c.lost = s.counter("lanes_lost_total", "Lanes that another relay took over, or whose owner became unknown.")
	c.held = s.counter("held_events_total", "Events moved to outbox_held, because their partition does not answer or "+
		"their topic is refused.")
	c.drained = s.counter("drained_events_total", "Events published from outbox_held.")
	c.parked = s.counter("parked_events_total", "Events that Kafka refused, and later ones of their keys in the same "+
		"claim, moved to outbox_parked.")
	c.behind = s.counter("parked_behind_events_total", "New events of parked keys, moved to outbox_parked.")
	c.released = s.counter("released_events_total", "Events published from outbox_parked.")
	c.closed = s.gauge("closed_partitions", "Partitions and topics whose events this relay currently holds.")
	c.due = s.counter("due_events_total", "Scheduled events that were due and moved to the outbox.")
	c.belowFloor = s.counter("below_floor_events_total", "Events found below the floor: a bug. They are published, "+
		"but maybe out of order.")
	c.claimTime = s.histogram("claim_seconds", "Duration of a claim with its commit.")
	c.publishTime = s.histogram("publish_seconds", "Duration of publishing a claim, retries included.")
	c.settleTime = s.histogram("settle_seconds", "Duration of settling a claim.")
	c.requestTime = s.histogram("kafka_request_seconds", "Duration of an acknowledged request to Kafka.")
	c.lanes = s.gauge("lanes_owned", "Lanes that this relay owns; 0 for a standby.")
	c.outage = s.gauges("outage", "1 during an outage of the system (postgres, kafka).", "system",
		"postgres", "kafka")
	c.outages = s.counters("outages_total", "Outages that have begun.", "system", "postgres", "kafka")
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
	g.lanes = s.gauges("lane_oldest_seconds", "Age of the oldest event of each lane; 0 if there is none.", "lane",
		lanes...)
	g.sampled = s.gauge("sampled_timestamp_seconds", "Time of the last read of the database's metrics, which is every "+
		"10 s.")
	g.gauges = s.sampleGauges(relaySamples(relay.Sample{}))
}

// relaySamples are the gauges of a Sample.
func relaySamples(s relay.Sample) []sample {
	wal := cmp.Or(s.WAL, &relay.WALStatus{}) // zero without a WAL feed
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
	return []sample{
		{"backlog_events", "Events in the outbox, counted up to 100000.", float64(s.Backlog)},
		{
			"backlog_oldest_seconds", "Age of the oldest event in the outbox; 0 if there is none.",
			s.Oldest.Seconds(),
		},
		{"outbox_lanes_owned", "Lanes, out of 32, that any relay owns.", float64(s.Owned)},
		{"members", "Live relays of this outbox.", float64(s.Members)},
		{"outbox_held_events", "Held events, because their partition or topic does not accept them or is paused; " +
			"counted up to 100000.", float64(s.Held)},
		{
			"outbox_held_partitions", "Partitions and topics with held events, without paused topics.",
			float64(s.HeldPartitions),
		},
		{
			"outbox_held_oldest_seconds", "Time for which the oldest event has been held; 0 if there is none.",
			s.HeldFor.Seconds(),
		},
		{"outbox_parked_events", "Events that wait for an operator, those behind a refused one included; counted " +
			"up to 100000.", float64(s.Parked)},
		{"outbox_parked_keys", "Keys whose events are parked.", float64(s.ParkedKeys)},
		{"outbox_releasing_keys", "Parked keys that are being released.", float64(s.Releasing)},
		{
			"outbox_parked_oldest_seconds", "Time for which the oldest parked key has been in its state; 0 if none.",
			s.ParkedFor.Seconds(),
		},
		{"outbox_scheduled_events", "Scheduled events, counted up to 100000.", float64(s.Scheduled)},
		{
			"outbox_scheduled_late_seconds", "Time for which the first scheduled event has been due; 0 if none is due.",
			s.ScheduledLate.Seconds(),
		},
		{"outbox_paused_topics", "Topics that an operator has paused.", float64(s.PausedTopics)},
		{
			"outbox_paused_oldest_seconds", "Time for which the first topic has been paused; 0 if there is none.",
			s.PausedFor.Seconds(),
		},
		{
			"outbox_archive_stray_events", "Estimate of archived events outside of daily partitions.",
			float64(s.ArchiveStray),
		},
		{"wal_lanes", "Lanes, out of 32, that are published from the WAL.", float64(wal.Lanes)},
		{
			"wal_slot_active", "1 while a relay reads the replication slot; 0 if none does or there is no slot.",
			active,
		},
		{
			"wal_lag_bytes", "WAL between the replication slot's confirmed position and the current one.",
			float64(wal.LagBytes),
		},
		{"wal_lag_seconds", "Time since a WAL position was last confirmed; about 10 s if there is nothing to " +
			"confirm.", wal.LagTime.Seconds()},
		{"wal_held_bytes", "WAL that Postgres keeps for the replication slot.", float64(wal.HeldBytes)},
		{"wal_safe_bytes", "WAL that may be written before the replication slot may be lost; -1: no limit, or " +
			"no slot.", safe},
		{"xmin_age_transactions", "Age of the oldest snapshot or transaction of the database, in transactions; -1 " +
			"if the role may not read it.", float64(s.XminAge)},
		{"oldest_transaction_seconds", "Age of the oldest visible transaction with a snapshot; -1 if the role may " +
			"not read it.", oldest},
	}
}

// Observer returns the Observer for the relay's Config.
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

// Publisher returns the Observer for the Config of the relay's publisher.
func (m *Relay) Publisher() publisher.Observer {
	c := &m.counts
	return publisher.Observer{
		Produced: func(p publisher.ProducedInfo) {
			c.requests.WithLabelValues("acked").Inc()
			c.acked.WithLabelValues(p.Topic).Add(float64(p.Events))
			c.ackedBytes.WithLabelValues(p.Topic).Add(float64(p.Bytes))
			c.requestTime.Observe(p.Took.Seconds())
		},
		Failed: func(publisher.FailedInfo) { c.requests.WithLabelValues("failed").Inc() },
	}
}

func (m *Relay) setOutage(system string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.away, system)
		m.counts.outage.WithLabelValues(system).Set(0)
		return
	}
	m.away[system] = err
	m.counts.outage.WithLabelValues(system).Set(1)
	m.counts.outages.WithLabelValues(system).Inc()
}

// Away returns the errors of the systems with an outage, or nil.
func (m *Relay) Away() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, system := range []string{"postgres", "kafka"} {
		if err := m.away[system]; err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", system, err))
		}
	}
	return errors.Join(errs...)
}

// Run reads the metrics of r's outbox every [SampleEvery] until ctx ends, and returns nil. After an error the
// metrics keep their last values; sampled_timestamp_seconds shows their age.
func (m *Relay) Run(ctx context.Context, r *relay.Relay) error {
	m.relay.Store(r)
	poll(ctx, func(ctx context.Context) {
		if r.Asleep() { // nothing has changed
			m.state.sampled.SetToCurrentTime()
			return
		}
		// With an error the sample is incomplete.
		if s, err := r.Sample(ctx); err == nil {
			m.state.set(s)
		}
	})
	return nil
}

func (g *relayState) set(s relay.Sample) {
	g.gauges.set(relaySamples(s))
	for lane, age := range s.Lanes {
		g.lanes.WithLabelValues(strconv.Itoa(lane)).Set(age.Seconds())
	}
	g.sampled.SetToCurrentTime()
}
