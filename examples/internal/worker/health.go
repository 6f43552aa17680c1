package worker

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/service"
)

// observe counts what the inbox does, and passes it on to the observer that is there.
func observe(reg prometheus.Registerer, before inbox.Observer) inbox.Observer {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "effectonce_worker_events_total",
		Help: "Events decided, by outcome.",
	}, []string{"outcome"})
	retries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "effectonce_worker_retries_total",
		Help: "Transactions that were rolled back and run again, by reason.",
	}, []string{"reason"})
	reg.MustRegister(events, retries)
	after := before
	after.Handled = func(i inbox.HandledInfo) {
		events.WithLabelValues(inbox.Applied.String()).Add(float64(i.Applied))
		events.WithLabelValues(inbox.Duplicate.String()).Add(float64(i.Duplicate))
		events.WithLabelValues(inbox.Skipped.String()).Add(float64(i.Skipped))
		if before.Handled != nil {
			before.Handled(i)
		}
	}
	after.Retried = func(i inbox.RetriedInfo) {
		retries.WithLabelValues(i.Reason).Inc()
		if before.Retried != nil {
			before.Retried(i)
		}
	}
	return after
}

// health answers for the worker. A Kafka that is away leaves it ready: nobody else could do the work either.
func health(db *pgxpool.Pool, c *consumer.Consumer, reg *prometheus.Registry) service.Health {
	gauge := func(name, help string, of func(s consumer.Status) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return of(c.Status()) }))
	}
	gauge("effectonce_worker_halted_partitions", "Partitions that stopped until somebody acts.",
		func(s consumer.Status) float64 { return float64(len(s.Halted())) })
	gauge("effectonce_worker_lag", "Records of this worker's partitions that are not decided yet.", func(s consumer.Status) float64 {
		lag := int64(0)
		for _, p := range s.Partitions {
			lag += max(0, p.Lag)
		}
		return float64(lag)
	})
	return service.Health{
		Registry: reg,
		Ready:    func(ctx context.Context) error { return db.Ping(ctx) },
		Moving: func() error {
			if halted := c.Status().Halted(); len(halted) > 0 {
				h := halted[0]
				return fmt.Errorf("%d partitions are halted, the first is %s/%d at offset %d, event %s", len(halted), h.Topic, h.ID, h.Offset, h.EventID)
			}
			return nil
		},
	}
}
