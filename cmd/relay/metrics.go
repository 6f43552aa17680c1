package main

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/effectonce/effectonce/metrics"
)

// runMetrics are the metrics of one run: the relay's, which docs/metrics.md lists, and those of the runtime and the
// process.
type runMetrics struct {
	*metrics.Relay
	registry *prometheus.Registry
}

func newRunMetrics() (*runMetrics, error) {
	registry := newRegistry()
	m, err := metrics.NewRelay(registry)
	return &runMetrics{Relay: m, registry: registry}, err
}

// newRegistry has the metrics of the process.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "effectonce", Subsystem: "relay", Name: "build_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": version()},
	})
	info.Set(1)
	registry.MustRegister(info)
	return registry
}

// away names the servers that do not answer, for /healthz/moving; "" if all answer.
func (f *runMetrics) away() string {
	err := f.Away()
	if err == nil {
		return ""
	}
	return "; " + strings.ReplaceAll(err.Error(), "\n", "; ")
}
