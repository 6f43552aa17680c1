package consumer

import "github.com/segmentio/kafka-go"

// LeaderSees makes the leader of a group see only some of the partitions that there are.
func LeaderSees(c *Consumer, see func([]kafka.Partition) []kafka.Partition) { c.seen = see }
