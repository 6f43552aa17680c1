// Package figures has the metrics of a worker for Prometheus. The demo shows none, and compiles without them.
package figures

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/metrics"
)

// Prometheus is for [worker.Config].Figures.
func Prometheus(name string, in *inbox.Observer, c *consumer.Observer) (worker.Figures, error) {
	registry := prometheus.NewRegistry()
	m, err := metrics.NewWorker(registry, name)
	if err != nil {
		return worker.Figures{}, err
	}
	*in, *c = metrics.Both(m.Inbox(), *in), metrics.Both(m.Consumer(), *c)
	return worker.Figures{Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), Run: m.Run}, nil
}
