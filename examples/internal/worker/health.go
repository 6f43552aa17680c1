package worker

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/internal/service"
)

// health answers for the worker. A Kafka that is away leaves it ready: nobody else could do the work either.
func health(db *pgxpool.Pool, c *consumer.Consumer, reg *prometheus.Registry) service.Health {
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
