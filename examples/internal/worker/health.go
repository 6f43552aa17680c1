package worker

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/internal/service"
)

// stalledAfter is how long records may wait while nothing is decided, before /healthz/moving answers 503. The alert
// EffectonceConsumerStalled has the same.
const stalledAfter = 2 * time.Minute

// health answers for the worker. A Kafka that is away leaves it ready: nobody else could do the work either.
func health(db *DB, c *consumer.Consumer, reg *prometheus.Registry) service.Health {
	return service.Health{
		Registry: reg,
		Ready:    db.Ready,
		Moving:   func() error { return moving(c.Status()) },
	}
}

// moving is nil unless something waits for a person, or nothing was decided for too long.
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
			handling = fmt.Sprintf("the handler of %s has had its batch for %v", p,
				time.Since(since).Round(time.Second))
		}
	}
	return fmt.Errorf("nothing was decided for %v although %d records wait: %s",
		time.Since(s.StalledSince).Round(time.Second), lag, handling)
}
