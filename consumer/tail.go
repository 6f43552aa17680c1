package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/sleep"
)

// Tail reads the last events of each partition of a topic, at most last of each. It joins no group and advances no
// offset. It leaves out records of aborted transactions, and times that the broker set (message.timestamp.type
// LogAppendTime), which may be those of a copy: Position.Timestamp is zero then. Tail uses only the settings of cfg for
// connecting and reading: Dial, TLS, SASL, IDHeader, FetchBytes and MaxBatchBytes. A topic that does not exist is an
// error.
func Tail(ctx context.Context, brokers []string, topic string, last int, cfg Config) ([]event.Event, error) {
	if last < 1 {
		return nil, fmt.Errorf("consumer: Tail of %d events: want at least 1", last)
	}
	if cfg.Group == "" {
		cfg.Group = "effectonce-tail" // used as the client id only
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := newClient(&cfg, brokers, []string{topic})
	defer c.close()
	ends, err := c.ends(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("consumer: the offsets of topic %s: %w", topic, err)
	}
	var events []event.Event
	for _, end := range ends {
		some, err := c.tail(ctx, &cfg, topic, end, last)
		if err != nil {
			return nil, fmt.Errorf("consumer: the end of %s/%d: %w", topic, end.Partition, err)
		}
		events = append(events, some...)
	}
	return events, nil
}

// ends returns the first offset and the end of each partition.
func (c *client) ends(ctx context.Context, topic string) ([]kafka.PartitionOffsets, error) {
	meta, err := c.kafka().Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	var ask []kafka.OffsetRequest
	for _, t := range meta.Topics {
		if t.Error != nil {
			return nil, t.Error
		}
		for _, p := range t.Partitions {
			ask = append(ask, kafka.FirstOffsetOf(p.ID), kafka.LastOffsetOf(p.ID))
		}
	}
	if len(ask) == 0 {
		return nil, kafka.UnknownTopicOrPartition
	}
	res, err := c.kafka().ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		topic: ask,
	}})
	if err != nil {
		return nil, err
	}
	for _, p := range res.Topics[topic] {
		if p.Error != nil {
			return nil, fmt.Errorf("partition %d: %w", p.Partition, ofKnownTopic(p.Error))
		}
	}
	return res.Topics[topic], nil
}

// ofKnownTopic replaces the answer of a broker that does not know yet of a partition of a topic that exists.
func ofKnownTopic(err error) error {
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		return kafka.NotLeaderForPartition
	}
	return err
}

// tail reads one partition, from last offsets before its end or from its beginning.
func (c *client) tail(ctx context.Context, cfg *Config, topic string, end kafka.PartitionOffsets, last int) (
	[]event.Event, error,
) {
	dec := newDecoder(topic, int32(end.Partition), cfg.IDHeader, cfg.MaxBatchBytes)
	dec.ownTimes = true
	var events []event.Event
	for offset := max(end.FirstOffset, end.LastOffset-int64(last)); offset < end.LastOffset; {
		answer, err := c.fetch(ctx, cfg, &fetchRequest{
			topic: topic, partition: int32(end.Partition), offset: offset, epoch: -1,
			maxBytes: int32(cfg.FetchBytes),
		})
		if err != nil {
			return nil, ofKnownTopic(err)
		}
		if answer.highWatermark < 0 { // above the client's quota
			if sleep.For(ctx, answer.throttle) != nil {
				return nil, errors.Join(errors.New("stopped"), ctx.Err())
			}
			continue
		}
		txns, from := &transactions{pending: answer.aborted}, offset
		for rest := answer.records; len(rest) > 0; {
			var c chunk
			if c, rest, err = dec.next(rest, offset, cfg.FetchBytes, txns); err != nil {
				return nil, err
			}
			events, offset = append(events, c.events...), c.next
		}
		switch {
		case offset > from:
		case 0 <= answer.stable && answer.stable <= offset && offset < answer.highWatermark:
			return events, nil // an open transaction: records after it cannot be read yet
		default:
			return nil, kafka.OffsetNotAvailable // a new leader does not know yet that they are committed
		}
		if ctx.Err() != nil {
			return nil, errors.Join(errors.New("stopped"), ctx.Err())
		}
	}
	return events, nil
}
