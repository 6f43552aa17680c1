package worker

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/internal/service"
)

// stalledAfter is how long records may wait without any being processed before /healthz/moving answers 503. The alert
// EffectonceConsumerStalled has the same threshold.
const stalledAfter = 2 * time.Minute

// health returns the worker's health. The worker stays ready while Kafka is away: no other worker could replace it.
func health(db *DB, c *consumer.Consumer, reg *prometheus.Registry) service.Health {
	return service.Health{
		Registry: reg,
		Ready:    db.Ready,
		Moving:   func() error { return moving(c.Status()) },
	}
}

// moving returns an error if a partition is halted or no record was processed for stalledAfter.
func moving(s consumer.Status) error {
	if halted := s.Halted(); len(halted) > 0 {
		h := halted[0]
		return fmt.Errorf("%d partitions are halted, the first is %s/%d at offset %d, event %s", len(halted), h.Topic,
			h.ID, h.Offset, h.EventID)
	}
	if s.StalledSince.IsZero() || time.Since(s.StalledSince) < stalledAfter {
		return nil
	}
	var lag int64
	handling := "no handler runs"
	for _, p := range s.Partitions {
		lag += max(p.Lag, 0)
		if since := p.HandlingSince; !since.IsZero() {
			handling = fmt.Sprintf("the handler of %s has been running for %v", p,
				time.Since(since).Round(time.Second))
		}
	}
	return fmt.Errorf("no record was processed for %v although %d records wait: %s",
		time.Since(s.StalledSince).Round(time.Second), lag, handling)
}
