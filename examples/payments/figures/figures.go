// Package figures has the metrics of payments for Prometheus. The demo shows none, and compiles without them.
package figures

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/effectonce/effectonce/idempotency/telemetry"
)

// Prometheus returns OpenTelemetry's metrics of keys, guard and recovery, and what shows them to Prometheus, under the
// names that deploy/grafana and deploy/prometheus/idempotency.yml have.
func Prometheus() (*telemetry.Telemetry, http.Handler, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return nil, nil, err
	}
	m, err := telemetry.New(metric.NewMeterProvider(metric.WithReader(exporter)))
	return m, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), err
}
