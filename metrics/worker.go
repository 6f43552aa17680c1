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

// Worker has the metrics of a consumer and its inbox. Make one with [NewWorker].
type Worker struct {
	inbox    inboxMetrics
	consumer consumerMetrics
}

type inboxMetrics struct {
	outcomes, retries, failed, released *prometheus.CounterVec
	halts, failures, cleaned            prometheus.Counter
	transaction                         prometheus.Histogram
	maintained, sampled                 prometheus.Gauge
	gauges                              gauges // of inboxSamples
	daysEnd                             atomic.Pointer[time.Time]
}

type consumerMetrics struct {
	generations, outages, lost, replaced, forgotten, repeated, reapplied, resumed prometheus.Counter
	handle                                                                        prometheus.Histogram
	status                                                                        *status
}

// NewWorker registers the metrics of a worker. consumerName is the inbox's consumer, and becomes the label "consumer".
// It fails if the metrics of this consumer are registered already.
func NewWorker(to prometheus.Registerer, consumerName string) (*Worker, error) {
	to = prometheus.WrapRegistererWith(prometheus.Labels{"consumer": consumerName}, to)
	m := &Worker{}
	s := &set{to: to, subsystem: "inbox"}
	m.inbox.register(s)
	c := &set{to: to, subsystem: "consumer", errs: s.errs}
	m.consumer.register(c)
	return m, c.err()
}

func (f *inboxMetrics) register(s *set) {
	f.outcomes = s.counters("events_total", "Processed events, by outcome (applied, duplicate, skipped, parked, "+
		"quarantined).", "outcome",
		inbox.Applied.String(), inbox.Duplicate.String(), inbox.Skipped.String(), inbox.Parked.String(),
		inbox.Quarantined.String())
	f.retries = s.counters("retries_total", "Transactions that were rolled back and retried, by reason.", "reason",
		"conflict", "away", "rejected", "commit unknown", "day missing", "retryable", "unknown", "failed", "split",
		"skip")
	f.failed = s.counters("failed_events_total", "Events whose effect failed finally, by the error's code.",
		"code")
	f.released = s.counters("released_events_total", "Effects of released events, by outcome (applied, duplicate, "+
		"skipped, parked).", "outcome",
		inbox.Applied.String(), inbox.Duplicate.String(), inbox.Skipped.String(), inbox.Parked.String())
	f.halts = s.counter("halts_total", "Halts of partitions.")
	f.transaction = s.histogram("transaction_seconds", "Duration of a transaction that processed events, with its "+
		"COMMIT.")
	f.failures = s.counter("maintenance_failures_total", "Maintenance passes that failed.")
	f.cleaned = s.counter("cleaned_rows_total", "Rows of inbox_message_any that this process deleted after the window.")
	f.maintained = s.gauge("maintained_timestamp_seconds", "Time of this process's last complete maintenance pass; 0 "+
		"before the first.")
	f.gauges = s.sampleGauges(inboxSamples(inbox.Sample{}))
	f.sampled = s.gauge("sampled_timestamp_seconds", "Time of the last read of the database's metrics, which is every "+
		"10 s.")
	s.gaugeFunc("ahead_seconds", "Time until the end of the last daily partition; 0 before it is known.",
		func() float64 {
			end := f.daysEnd.Load()
			if end == nil {
				return 0
			}
			return time.Until(*end).Seconds()
		})
}

func (f *consumerMetrics) register(s *set) {
	f.generations = s.counter("generations_total", "Assignments of partitions to this process by the group.")
	f.outages = s.counter("outages_total", "Outages of Kafka that have begun.")
	f.lost = s.counter("lost_records_total", "Records that Kafka deleted before they were read.")
	f.replaced = s.counter("replaced_logs_total", "Times that a partition's log ended before the processed offset: "+
		"the topic was created again or truncated.")
	f.repeated = s.counter("repeated_events_total", "Duplicates below the offset that the database has processed: the "+
		"group's offset was lower.")
	f.reapplied = s.counter("reapplied_events_total", "Events applied below the offset that the database has "+
		"processed: their ids were missing.")
	f.forgotten = s.counter("forgotten_events_total", "Events applied below the group's committed offset: the "+
		"database was restored.")
	f.resumed = s.counter("resumed_partitions_total", "Halted partitions that were resumed.")
	s.gauge("started_timestamp_seconds", "Time at which this process began: a worker that something ends again and "+
		"again shows in its changes.").SetToCurrentTime()
	f.handle = s.histogram("handle_seconds", "Duration of the handler for one batch, retries and waits included.")
	f.status = newStatus(s)
	s.register(f.status)
}

// Inbox returns the Observer for the inbox's Config.
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

// Consumer returns the Observer for the consumer's Config.
func (m *Worker) Consumer() consumer.Observer {
	f := &m.consumer
	return consumer.Observer{
		Assigned:  func(consumer.AssignedInfo) { f.generations.Inc() },
		Handled:   func(h consumer.HandledInfo) { f.handle.Observe(h.Took.Seconds()) },
		Resumed:   func(consumer.Partition) { f.resumed.Inc() },
		Forgotten: func(g consumer.ForgottenRange) { f.forgotten.Add(float64(g.Applied)) },
		Repeated: func(r consumer.RepeatedInfo) {
			f.repeated.Add(float64(r.Dropped))
			f.reapplied.Add(float64(r.Applied))
		},
		Lost: func(l consumer.LostRange) {
			if l.From == l.To {
				f.replaced.Inc()
			}
			f.lost.Add(float64(l.To - l.From))
		},
		Outage: func(o consumer.OutageInfo) {
			if o.Err != nil {
				f.outages.Inc()
			}
		},
	}
}

// Run reads the inbox's metrics from the database every [SampleEvery] until ctx ends, and returns nil. The
// metrics of c are read at each scrape. in and c may be nil. After an error metrics keep their last values.
func (m *Worker) Run(ctx context.Context, in *inbox.Inbox, c *consumer.Consumer) error {
	m.consumer.status.watch(c)
	if in == nil {
		<-ctx.Done()
		return nil
	}
	poll(ctx, func(ctx context.Context) {
		if s, err := in.Sample(ctx); err == nil {
			m.inbox.set(s)
		}
	})
	return nil
}

// inboxSamples are the gauges of a Sample.
func inboxSamples(s inbox.Sample) []sample {
	return []sample{
		{"parked_events", "Events that wait for an operator, those behind another of their key included; counted " +
			"up to 100000.", float64(s.Parked)},
		{
			"parked_oldest_seconds", "Time for which the oldest parked or quarantined event has waited; 0 if none.",
			s.ParkedFor.Seconds(),
		},
		{
			"quarantined_events", "Events too old or too far in the future to be processed, counted up to 100000.",
			float64(s.Quarantined),
		},
		{"blocked_keys", "Keys whose events are parked.", float64(s.BlockedKeys)},
		{"releasing_keys", "Blocked keys that are being released.", float64(s.Releasing)},
		{"bounded_keys", "Blocked keys with so many events that their partition halts.", float64(s.AtBound)},
		{"halted_partitions", "Halted partitions, as the database has them.", float64(s.Halted)},
	}
}

func (f *inboxMetrics) set(s inbox.Sample) {
	f.gauges.set(inboxSamples(s))
	f.daysEnd.Store(&s.DaysEnd)
	f.sampled.SetToCurrentTime()
}

// status collects a consumer's metrics at each scrape, because its partitions change.
type status struct {
	mu       sync.Mutex
	consumer *consumer.Consumer

	partitions, halted, down, missing, stalled, lag, handling *prometheus.Desc
}

func newStatus(s *set) *status {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, s.subsystem, name), help, labels, nil)
	}
	return &status{
		partitions: desc("assigned_partitions", "Partitions of this process; 0 for a standby."),
		halted:     desc("halted_partitions", "Halted partitions of this process; they wait for an operator."),
		down:       desc("down", "1 during an outage of Kafka."),
		missing:    desc("missing_topics", "Topics that cannot be read, and of which nothing is consumed."),
		stalled: desc("stalled_seconds", "Time for which this process has processed nothing although records wait; 0 "+
			"if none waits."),
		lag: desc("lag", "Records of a partition of this process that are not processed yet.", "topic",
			"partition"),
		handling: desc("handling_seconds", "Time for which the handler has had its current batch; 0 if it has none.",
			"topic", "partition"),
	}
}

func (s *status) watch(c *consumer.Consumer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumer = c
}

// Describe implements prometheus.Collector.
func (s *status) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.partitions, s.halted, s.down, s.missing, s.stalled, s.lag, s.handling} {
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
	gauge(s.missing, float64(len(st.Missing)))
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
