package consumer

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

// checkRetention logs an error for each topic that keeps records for the handler's window of ids or longer. It does not
// stop the consumer: the retention of a topic may change at any time, and events older than the window are quarantined,
// so none is applied twice unnoticed.
func (c *Consumer) checkRetention(ctx context.Context, topics []string) {
	window := c.handler.Window()
	if window <= 0 {
		return
	}
	keeps, err := c.retentions(ctx, topics)
	if err != nil {
		if ctx.Err() == nil {
			c.cfg.Logger.Info("the topics' retention cannot be compared with the inbox's window: grant "+
				"DescribeConfigs on them to have it checked", "error", err)
		}
		return
	}
	for topic, r := range keeps {
		if r < 0 || r >= window {
			c.cfg.Logger.Error("a topic keeps records for longer than the inbox remembers ids: events older than the "+
				"window are quarantined when they are read again",
				"topic", topic, "retention", retentionText(r), "window", window,
				"do", "raise inbox.Config.Window above retention.ms plus the longest outage, or lower retention.ms; "+
					"set inbox.Config.AllowShortWindow if this is intended")
		}
	}
}

func retentionText(d time.Duration) string {
	if d < 0 {
		return "for ever"
	}
	return d.String()
}

// retentions returns how long each topic keeps its records by time. Negative means for ever.
func (c *Consumer) retentions(ctx context.Context, topics []string) (map[string]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*netTimeout)
	defer cancel()
	req := &kafka.DescribeConfigsRequest{}
	for _, topic := range topics {
		req.Resources = append(req.Resources, kafka.DescribeConfigRequestResource{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			ConfigNames: []string{"retention.ms", "cleanup.policy"},
		})
	}
	res, err := c.client.kafka().DescribeConfigs(ctx, req)
	if err != nil {
		return nil, err
	}
	keeps := map[string]time.Duration{}
	for _, r := range res.Resources {
		if r.Error != nil {
			return nil, fmt.Errorf("topic %s: %w", r.ResourceName, r.Error)
		}
		for _, e := range r.ConfigEntries {
			switch e.ConfigName {
			case "retention.ms":
				ms, err := strconv.ParseInt(e.ConfigValue, 10, 64)
				if err != nil {
					return nil, fmt.Errorf("topic %s: retention.ms is %q", r.ResourceName, e.ConfigValue)
				}
				const most = int64(1<<63-1) / int64(time.Millisecond)
				if _, compacted := keeps[r.ResourceName]; !compacted {
					keeps[r.ResourceName] = time.Duration(min(ms, most)) * time.Millisecond
				}
			case "cleanup.policy":
				if !strings.Contains(e.ConfigValue, "delete") {
					keeps[r.ResourceName] = -1 // compaction only: each key keeps its last record
				}
			}
		}
	}
	return keeps, nil
}
