package main

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/effectonce/effectonce/metrics"
)

// fleetMetrics are the metrics of a run with many outboxes. An outbox's metrics have the label outbox, and are shown
// while it is awake.
type fleetMetrics struct {
	fleet    *fleet
	registry *prometheus.Registry

	mu  sync.Mutex
	all map[*member]*memberMetrics // of outboxes that were ever awake
}

func newFleetMetrics(f *fleet) *fleetMetrics {
	m := &fleetMetrics{fleet: f, registry: newRegistry(), all: map[*member]*memberMetrics{}}
	m.registry.MustRegister(m)
	return m
}

// Describe sends nothing: labels differ from outbox to outbox.
func (*fleetMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (f *fleetMetrics) Collect(to chan<- prometheus.Metric) {
	const info, awake, failing = "effectonce_outbox_info", "effectonce_outbox_awake", "effectonce_outbox_failing"
	awakes := prometheus.NewDesc(awake, "1 while a relay of this process works on the outbox, 0 while it is asleep.",
		[]string{"outbox"}, nil)
	failures := prometheus.NewDesc(failing, "1 while the outbox cannot be checked or served.", []string{"outbox"},
		nil)
	if f.fleet.unlisted.Load() != nil {
		to <- prometheus.MustNewConstMetric(failures, prometheus.GaugeValue, 1, "the list of outboxes")
	}
	for _, m := range f.fleet.served() {
		labels := prometheus.Labels{"outbox": m.name}
		for name, value := range m.labels {
			labels[name] = value
		}
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc(info, "Always 1; with the labels of the outbox.", nil,
			labels), prometheus.GaugeValue, 1)
		is, fails := m.state()
		to <- prometheus.MustNewConstMetric(awakes, prometheus.GaugeValue, number(is), m.name)
		to <- prometheus.MustNewConstMetric(failures, prometheus.GaugeValue, number(fails), m.name)
	}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// of shows an outbox's metrics. Counters continue from their last values.
func (f *fleetMetrics) of(m *member) (*memberMetrics, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.all[m]; known != nil {
		return known, known.show()
	}
	made := &memberMetrics{Registerer: f.registry}
	figures, err := metrics.NewRelay(prometheus.WrapRegistererWith(prometheus.Labels{"outbox": m.name}, made))
	made.runMetrics = &runMetrics{Relay: figures, registry: f.registry}
	f.all[m] = made
	return made, err
}

// drop forgets a removed outbox.
func (f *fleetMetrics) drop(m *member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, m)
}

// memberMetrics are the metrics of an outbox.
type memberMetrics struct {
	prometheus.Registerer
	*runMetrics
	made []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (m *memberMetrics) Register(c prometheus.Collector) error {
	m.made = append(m.made, c)
	return m.Registerer.Register(c)
}

func (m *memberMetrics) show() error {
	for _, c := range m.made {
		if err := m.Registerer.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *memberMetrics) hide() {
	for _, c := range m.made {
		m.Registerer.Unregister(c)
	}
}
