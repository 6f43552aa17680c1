package metrics

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/inbox"
)

// Worker has the figures of a consumer and its inbox. Make one with [NewWorker].
type Worker struct {
	inbox    inboxFigures
	consumer consumerFigures
}

type inboxFigures struct {
	outcomes, retries, failed, released *prometheus.CounterVec
	halts, failures, cleaned            prometheus.Counter
	transaction                         prometheus.Histogram
	maintained, sampled                 prometheus.Gauge
	figures                             gauges // those of sampleFigures
	daysEnd                             atomic.Pointer[time.Time]
}

type consumerFigures struct {
	generations, outages, lost, replaced, forgotten, repeated, reapplied, resumed prometheus.Counter
	handle                                                                        prometheus.Histogram
	from                                                                          *status
}

// NewWorker registers the figures of a worker; consumerName is the inbox's, and the label "consumer" of each figure. It
// fails when the names are taken with the same consumer.
func NewWorker(to prometheus.Registerer, consumerName string) (*Worker, error) {
	to = prometheus.WrapRegistererWith(prometheus.Labels{"consumer": consumerName}, to)
	m := &Worker{}
	s := &set{to: to, subsystem: "inbox"}
	m.inbox.register(s)
	c := &set{to: to, subsystem: "consumer", errs: s.errs}
	m.consumer.register(c)
	return m, c.err()
}

func (f *inboxFigures) register(s *set) {
	f.outcomes = s.counters("events_total", "Events decided, by outcome (applied, duplicate, skipped, parked, "+
		"quarantined).", "outcome",
		inbox.Applied.String(), inbox.Duplicate.String(), inbox.Skipped.String(), inbox.Parked.String(),
		inbox.Quarantined.String())
	f.retries = s.counters("retries_total", "Transactions that were rolled back and run again, by reason.", "reason",
		"conflict", "away", "rejected", "commit unknown", "day missing", "retryable", "failed", "split", "skip")
	f.failed = s.counters("failed_events_total", "Events whose effect finally failed, by the code of the error.",
		"code")
	f.released = s.counters("released_events_total", "Runs of released events, by outcome (applied, duplicate, "+
		"skipped, parked).", "outcome",
		inbox.Applied.String(), inbox.Duplicate.String(), inbox.Skipped.String(), inbox.Parked.String())
	f.halts = s.counter("halts_total", "Times that an event halted its partition.")
	f.transaction = s.histogram("transaction_seconds", "Time of a transaction that decided events, from its begin to "+
		"the answer to COMMIT.")
	f.failures = s.counter("maintenance_failures_total", "Passes of maintenance that were not complete.")
	f.cleaned = s.counter("cleaned_rows_total", "Rows of inbox_message_any that this process deleted after the window.")
	f.maintained = s.gauge("maintained_timestamp_seconds", "When this process last completed a pass of maintenance; "+
		"0 before the first.")
	f.figures = s.figures(sampleFigures(inbox.Sample{}))
	f.sampled = s.gauge("sampled_timestamp_seconds", "When the figures about the database were read, every 10 s when "+
		"Postgres answers.")
	s.gaugeFunc("ahead_seconds", "Time until the last day ends that has a partition for its ids; 0 before it is known.",
		func() float64 {
			end := f.daysEnd.Load()
			if end == nil {
				return 0
			}
			return time.Until(*end).Seconds()
		})
}

func (f *consumerFigures) register(s *set) {
	f.generations = s.counter("generations_total", "Times that the group assigned partitions to this process.")
	f.outages = s.counter("outages_total", "Outages of Kafka that began.")
	f.lost = s.counter("lost_records_total", "Records that Kafka removed before they were read.")
	f.replaced = s.counter("replaced_logs_total", "Times that the log of a partition ended before what was decided "+
		"of it: the topic was made again or cut off.")
	f.repeated = s.counter("repeated_events_total", "Events dropped below the offset that the database had decided "+
		"already: the group was behind it.")
	f.reapplied = s.counter("reapplied_events_total", "Events applied below the offset that the database had decided "+
		"already: their ids were not there.")
	f.forgotten = s.counter("forgotten_events_total", "Events that were applied although the group had committed "+
		"them: the database was restored.")
	f.resumed = s.counter("resumed_partitions_total", "Halted partitions that went on.")
	f.handle = s.histogram("handle_seconds", "Time of the handler for one batch, retries and waits included.")
	f.from = newStatus(s)
	s.register(f.from)
}

// Inbox is for the inbox's Config.
func (m *Worker) Inbox() inbox.Observer {
	f := &m.inbox
	return inbox.Observer{
		Handled: func(i inbox.HandledInfo) {
			f.outcomes.WithLabelValues(inbox.Applied.String()).Add(float64(i.Applied))
			f.outcomes.WithLabelValues(inbox.Duplicate.String()).Add(float64(i.Duplicate))
			f.outcomes.WithLabelValues(inbox.Skipped.String()).Add(float64(i.Skipped))
			f.outcomes.WithLabelValues(inbox.Parked.String()).Add(float64(i.Parked))
			f.outcomes.WithLabelValues(inbox.Quarantined.String()).Add(float64(i.Quarantined))
			f.transaction.Observe(i.Took.Seconds())
		},
		Retried:  func(i inbox.RetriedInfo) { f.retries.WithLabelValues(i.Reason).Inc() },
		Halted:   func(*inbox.HaltError) { f.halts.Inc() },
		Parked:   func(i inbox.ParkedInfo) { f.failed.WithLabelValues(i.Code).Inc() },
		Released: func(i inbox.ReleasedInfo) { f.released.WithLabelValues(i.Outcome.String()).Inc() },
		Maintained: func(i inbox.MaintainedInfo) {
			f.cleaned.Add(float64(i.Cleaned))
			if i.Err != nil {
				f.failures.Inc()
				return
			}
			f.maintained.SetToCurrentTime()
		},
	}
}

// Consumer is for the consumer's Config.
func (m *Worker) Consumer() consumer.Observer {
	f := &m.consumer
	return consumer.Observer{
		Assigned: func(int32, []consumer.Partition) { f.generations.Inc() },
		Handled: func(_ consumer.Partition, _ int, _ []inbox.Outcome, took time.Duration) {
			f.handle.Observe(took.Seconds())
		},
		Resumed:   func(consumer.Partition) { f.resumed.Inc() },
		Forgotten: func(g consumer.ForgottenRange) { f.forgotten.Add(float64(g.Applied)) },
		Repeated: func(_ consumer.Partition, dropped, applied int) {
			f.repeated.Add(float64(dropped))
			f.reapplied.Add(float64(applied))
		},
		Lost: func(l consumer.LostRange) {
			if l.From == l.To {
				f.replaced.Inc()
			}
			f.lost.Add(float64(l.To - l.From))
		},
		Outage: func(up bool, _ error) {
			if !up {
				f.outages.Inc()
			}
		},
	}
}

// Run asks the inbox for its figures every [SampleEvery] until ctx ends, and returns nil; what c is doing is read at
// each scrape. Either may be nil. What cannot be read keeps its last value.
func (m *Worker) Run(ctx context.Context, in *inbox.Inbox, c *consumer.Consumer) error {
	m.consumer.from.watch(c)
	if in == nil {
		<-ctx.Done()
		return nil
	}
	every(ctx, func(ctx context.Context) {
		if s, err := in.Sample(ctx); err == nil {
			m.inbox.set(s)
		}
	})
	return nil
}

// sampleFigures are what a Sample has for gauges.
func sampleFigures(s inbox.Sample) []figure {
	return []figure{
		{"parked_events", "Events that wait for a person, those behind another of their key included, counted " +
			"up to 100000.", float64(s.Parked)},
		{
			"parked_oldest_seconds", "For how long the oldest parked or quarantined event waits; 0 when there is none.",
			s.ParkedFor.Seconds(),
		},
		{
			"quarantined_events", "Events too old or too far in the future to be decided, counted up to 100000.",
			float64(s.Quarantined),
		},
		{"blocked_keys", "Keys whose events are parked.", float64(s.BlockedKeys)},
		{"releasing_keys", "Blocked keys that are being released.", float64(s.Releasing)},
		{"bounded_keys", "Blocked keys with so many events that their partition halts.", float64(s.AtBound)},
		{"halted_partitions", "Partitions that wait for a person, as the database has them.", float64(s.Halted)},
	}
}

func (f *inboxFigures) set(s inbox.Sample) {
	f.figures.set(sampleFigures(s))
	f.daysEnd.Store(&s.DaysEnd)
	f.sampled.SetToCurrentTime()
}

// status reads a consumer at each scrape: its partitions come and go.
type status struct {
	mu       sync.Mutex
	consumer *consumer.Consumer

	partitions, halted, down, stalled, lag, handling *prometheus.Desc
}

func newStatus(s *set) *status {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, s.subsystem, name), help, labels, nil)
	}
	return &status{
		partitions: desc("assigned_partitions", "Partitions of this process; 0 is a standby."),
		halted:     desc("halted_partitions", "Partitions of this process that stopped until somebody acts."),
		down:       desc("down", "1 while Kafka cannot be used."),
		stalled: desc("stalled_seconds", "For how long this process has decided nothing although records wait; 0 "+
			"while none do."),
		lag: desc("lag", "Records of a partition of this process that are not decided yet.", "topic",
			"partition"),
		handling: desc("handling_seconds", "For how long the handler has had its batch; 0 when it has none.", "topic",
			"partition"),
	}
}

func (s *status) watch(c *consumer.Consumer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumer = c
}

// Describe implements prometheus.Collector.
func (s *status) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.partitions, s.halted, s.down, s.stalled, s.lag, s.handling} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *status) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	c := s.consumer
	s.mu.Unlock()
	if c == nil {
		return
	}
	st := c.Status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	down := 0.0
	if st.Down {
		down = 1
	}
	gauge(s.partitions, float64(len(st.Partitions)))
	gauge(s.halted, float64(len(st.Halted())))
	gauge(s.down, down)
	gauge(s.stalled, age(st.StalledSince))
	for _, p := range st.Partitions {
		id := strconv.Itoa(int(p.ID))
		if p.Lag >= 0 {
			gauge(s.lag, float64(p.Lag), p.Topic, id)
		}
		gauge(s.handling, age(p.HandlingSince), p.Topic, id)
	}
}

// age is 0 for the zero time.
func age(since time.Time) float64 {
	if since.IsZero() {
		return 0
	}
	return time.Since(since).Seconds()
}
