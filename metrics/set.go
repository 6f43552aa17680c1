package metrics

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// SampleEvery is the interval of reading metrics from the database.
const SampleEvery = 10 * time.Second

const namespace = "effectonce"

// buckets of every histogram, in seconds: from a local commit to an overloaded broker.
func buckets() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
}

// set makes and registers metrics of one subsystem.
type set struct {
	to        prometheus.Registerer
	subsystem string
	errs      []error
}

func (s *set) options(name, help string) prometheus.GaugeOpts {
	return prometheus.GaugeOpts{Namespace: namespace, Subsystem: s.subsystem, Name: name, Help: help}
}

func (s *set) register(c prometheus.Collector) {
	if err := s.to.Register(c); err != nil {
		s.errs = append(s.errs, err)
	}
}

// err returns the errors of all registrations.
func (s *set) err() error {
	if len(s.errs) == 0 {
		return nil
	}
	return fmt.Errorf("metrics: registering: use another registry for a second relay or worker, or labels with "+
		"prometheus.WrapRegistererWith: %w", errors.Join(s.errs...))
}

func (s *set) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts(s.options(name, help)))
	s.register(c)
	return c
}

// counters makes counters with one label. The counters of values start at 0, so that a rate includes the first
// increment.
func (s *set) counters(name, help, label string, values ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts(s.options(name, help)), []string{label})
	for _, v := range values {
		c.WithLabelValues(v)
	}
	s.register(c)
	return c
}

func (s *set) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(s.options(name, help))
	s.register(g)
	return g
}

func (s *set) gauges(name, help, label string, values ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(s.options(name, help), []string{label})
	for _, v := range values {
		g.WithLabelValues(v)
	}
	s.register(g)
	return g
}

func (s *set) gaugeFunc(name, help string, value func() float64) {
	s.register(prometheus.NewGaugeFunc(s.options(name, help), value))
}

func (s *set) histogram(name, help string) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: s.subsystem, Name: name, Help: help, Buckets: buckets(),
	})
	s.register(h)
	return h
}

// sample is a gauge and its value.
type sample struct {
	name, help string
	value      float64
}

// gauges are the gauges of a list of samples, in its order.
type gauges []prometheus.Gauge

func (s *set) sampleGauges(list []sample) (g gauges) {
	for _, f := range list {
		g = append(g, s.gauge(f.name, f.help))
	}
	return g
}

func (g gauges) set(list []sample) {
	for i, f := range list {
		g[i].Set(f.value)
	}
}

// poll calls do at once and then every SampleEvery, until ctx ends.
func poll(ctx context.Context, do func(ctx context.Context)) {
	ticker := time.NewTicker(SampleEvery)
	defer ticker.Stop()
	for {
		callCtx, cancel := context.WithTimeout(ctx, SampleEvery)
		do(callCtx)
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
