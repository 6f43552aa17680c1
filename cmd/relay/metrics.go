package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// metrics are the figures of one run. docs/operations.md lists them; a test compares the two.
type metrics struct {
	registry *prometheus.Registry

	claimed, discarded, published, attempts, settled, failures, unacked, taken, lost prometheus.Counter
	parked, behind, releasedEvents, held, drained                                    prometheus.Counter
	closed                                                                           prometheus.Gauge
	claimTime, publishTime, settleTime, requestTime                                  prometheus.Histogram
	lanes, backlogEvents, backlogOldest, backlogAt                                   prometheus.Gauge
	outage                                                                           *prometheus.GaugeVec
	outages, acked, ackedBytes, requests                                             *prometheus.CounterVec

	mu   sync.Mutex
	gone map[string]error // what is away, and why
}

const namespace, subsystem = "effectonce", "relay"

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), gone: map[string]error{}}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.claimed = m.counter("claimed_events_total", "Events of claims, those of a repeated claim again.")
	m.discarded = m.counter("discarded_events_total", "Claimed events that somebody deleted before they were settled.")
	m.published = m.counter("published_events_total", "Events that the publisher acknowledged.")
	m.attempts = m.counter("publish_attempts_total", "Rounds of publishing, one per claim when nothing is sent twice.")
	m.settled = m.counter("settled_events_total", "Events deleted from the outbox after they were acknowledged.")
	m.failures = m.counter("publish_failures_total", "Rounds of publishing that left events without an acknowledgement.")
	m.unacked = m.counter("unacked_events_total", "Events that such rounds left; they are sent again.")
	m.taken = m.counter("lanes_taken_total", "Lanes that this relay began to own.")
	m.lost = m.counter("lanes_lost_total", "Lanes that another relay took, or whose owner was in doubt.")
	m.parked = m.counter("parked_events_total", "Events that Kafka refused for certain, and those behind them, put into outbox_parked.")
	m.behind = m.counter("parked_behind_events_total", "New events of parked keys, put behind them.")
	m.releasedEvents = m.counter("released_events_total", "Events published out of outbox_parked.")
	m.held = m.counter("held_events_total", "Events put into outbox_held, because their partition does not answer or their topic is refused.")
	m.drained = m.counter("drained_events_total", "Events published out of outbox_held.")
	m.closed = m.gauge("closed_partitions", "Partitions that do not answer and topics that are refused, whose events this relay holds.")
	m.claimTime = m.histogram("claim_seconds", "Time of a claim, its commit included.")
	m.publishTime = m.histogram("publish_seconds", "Time to publish a claim, repetitions included.")
	m.settleTime = m.histogram("settle_seconds", "Time to settle a claim.")
	m.requestTime = m.histogram("kafka_request_seconds", "Time of an acknowledged request to Kafka.")
	m.lanes = m.gauge("lanes_owned", "Lanes that this relay owns; 0 is a standby.")
	m.backlogEvents = m.gauge("backlog_events", "Events in the outbox, counted up to 100000.")
	m.backlogOldest = m.gauge("backlog_oldest_seconds", "Age of the oldest event in the outbox; 0 when there is none.")
	m.backlogAt = m.gauge("backlog_sampled_timestamp_seconds", "When the backlog was last measured, every 10 s when Postgres answers.")
	m.outage = prometheus.NewGaugeVec(options("outage", "1 while the system (postgres, kafka) does not answer as it should."), []string{"system"})
	m.outages = m.counters("outages_total", "Outages that began.", "system")
	m.acked = m.counters("kafka_acked_events_total", "Events that Kafka acknowledged.", "topic")
	m.ackedBytes = m.counters("kafka_acked_bytes_total", "Bytes of acknowledged requests, compressed.", "topic")
	m.requests = m.counters("kafka_requests_total", "Requests to Kafka by result (acked, failed).", "result")
	m.registry.MustRegister(m.outage)
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "build_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": version()},
	})
	info.Set(1)
	m.registry.MustRegister(info)
	// Those with labels exist from the start, or a rate over them would miss the first change.
	for _, system := range []string{"postgres", "kafka"} {
		m.outage.WithLabelValues(system).Set(0)
		m.outages.WithLabelValues(system)
	}
	m.requests.WithLabelValues("acked")
	m.requests.WithLabelValues("failed")
	return m
}

func options(name, help string) prometheus.GaugeOpts {
	return prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
}

func (m *metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts(options(name, help)))
	m.registry.MustRegister(c)
	return c
}

func (m *metrics) counters(name, help, label string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts(options(name, help)), []string{label})
	m.registry.MustRegister(c)
	return c
}

func (m *metrics) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(options(name, help))
	m.registry.MustRegister(g)
	return g
}

func (m *metrics) histogram(name, help string) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	})
	m.registry.MustRegister(h)
	return h
}

// stalled adds the figure that is asked for at each scrape: it only reads two numbers in memory.
func (m *metrics) stalled(ask func() time.Duration) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(
		options("stalled_seconds", "For how long events have waited while none was settled; 0 when nothing waits."),
		func() float64 { return ask().Seconds() }))
}

func (m *metrics) backlog(events int64, oldest time.Duration) {
	m.backlogEvents.Set(float64(events))
	m.backlogOldest.Set(oldest.Seconds())
	m.backlogAt.SetToCurrentTime()
}

func (m *metrics) relay() relay.Observer {
	return relay.Observer{
		Claimed: func(n, discarded int, took time.Duration) {
			m.claimed.Add(float64(n))
			m.discarded.Add(float64(discarded))
			m.claimTime.Observe(took.Seconds())
		},
		Published: func(n, attempts int, took time.Duration) {
			m.published.Add(float64(n))
			m.attempts.Add(float64(attempts))
			m.publishTime.Observe(took.Seconds())
		},
		Settled: func(n int, took time.Duration) {
			m.settled.Add(float64(n))
			m.settleTime.Observe(took.Seconds())
		},
		PublishFailed: func(n int, _ error) {
			m.failures.Inc()
			m.unacked.Add(float64(n))
		},
		LaneTaken: func(int16, int64) {
			m.taken.Inc()
			m.lanes.Inc()
		},
		LaneLeft: func(_ int16, lost bool) {
			m.lanes.Dec()
			if lost {
				m.lost.Inc()
			}
		},
		Parked:   func(n int) { m.parked.Add(float64(n)) },
		Behind:   func(n int) { m.behind.Add(float64(n)) },
		Released: func(n int) { m.releasedEvents.Add(float64(n)) },
		Held:     func(_ string, _ int32, n int) { m.held.Add(float64(n)) },
		Drained:  func(n int) { m.drained.Add(float64(n)) },
		Closed:   func(string, int32, error) { m.closed.Inc() },
		Reopened: func(string, int32, time.Duration) { m.closed.Dec() },
		Outage:   m.setOutage,
	}
}

func (m *metrics) publisher() publisher.Observer {
	return publisher.Observer{
		Produced: func(topic string, _, events, bytes int, took time.Duration) {
			m.requests.WithLabelValues("acked").Inc()
			m.acked.WithLabelValues(topic).Add(float64(events))
			m.ackedBytes.WithLabelValues(topic).Add(float64(bytes))
			m.requestTime.Observe(took.Seconds())
		},
		Failed: func(string, int, int, error) { m.requests.WithLabelValues("failed").Inc() },
	}
}

func (m *metrics) setOutage(system string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.gone, system)
		m.outage.WithLabelValues(system).Set(0)
		return
	}
	m.gone[system] = err
	m.outage.WithLabelValues(system).Set(1)
	m.outages.WithLabelValues(system).Inc()
}

// away tells what does not answer, for /healthz/moving; "" when all does.
func (m *metrics) away() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := ""
	for _, system := range []string{"postgres", "kafka"} {
		if err := m.gone[system]; err != nil {
			text += fmt.Sprintf("; %s: %v", system, err)
		}
	}
	return text
}
