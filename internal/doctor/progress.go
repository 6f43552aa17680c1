package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/inbox/operator"
)

// progress compares how far the database says that consumers are with the ends of their logs. It needs no group's name,
// and a group that is ahead of the database hides nothing.
func (f *findings) progress(ctx context.Context, conn Kafka, consumers []operator.ConsumerDiagnosis) {
	if conn == nil {
		return
	}
	client, closeIdle := conn.Client(10 * time.Second)
	defer closeIdle()
	for _, c := range consumers {
		if len(c.Partitions) == 0 {
			continue
		}
		check := "progress " + c.Consumer
		behind, stuck, err := lagging(ctx, client, c.Partitions)
		switch {
		case err != nil:
			f.failed(check, err)
		case len(stuck) > 0:
			f.add(Fail, check, "nothing has been decided for a minute in "+strings.Join(stuck, ", "),
				"Events wait there, and no effect is committed: no worker runs, it does not reach its database, or "+
					"the effect fails or hangs.",
				"The workers' logs say which.")
			f.run("inbox", "consumers", "--consumer", c.Consumer)
		case behind > 0:
			f.add(Warn, check, fmt.Sprintf("%d records older than a minute are not decided", behind),
				"Its workers go on, and are late.",
				"Look again in a minute. When it does not shrink: more workers, or larger batches; docs/scaling.md")
		default:
			f.ok(check, "no record older than a minute waits in %d partitions", len(c.Partitions))
		}
	}
}

// lagging counts the records that are older than waitsLong and not decided, and names the partitions where nothing
// moves either. Those that have halted are told elsewhere.
func lagging(ctx context.Context, client *kafka.Client, partitions []operator.PartitionState) (behind int64,
	stuck []string, err error,
) {
	topics := map[string][]kafka.OffsetRequest{}
	before := time.Now().Add(-waitsLong)
	for _, p := range partitions {
		if p.HaltedAt == nil {
			topics[p.Topic] = append(topics[p.Topic], kafka.TimeOffsetOf(int(p.Partition), before))
		}
	}
	young, err := offsets(ctx, client, topics)
	if err != nil {
		return 0, nil, err
	}
	for topic, ask := range topics {
		topics[topic] = slices.Clone(ask)
		for i := range ask {
			topics[topic][i] = kafka.LastOffsetOf(ask[i].Partition)
		}
	}
	ends, err := offsets(ctx, client, topics)
	if err != nil {
		return 0, nil, err
	}
	for _, p := range partitions {
		at := place{p.Topic, int(p.Partition)}
		until, ok := young[at]
		if !ok || until < 0 { // no record is younger
			until = ends[at]
		}
		if p.HaltedAt != nil || until <= p.From {
			continue
		}
		behind += until - p.From
		if p.Unmoved > waitsLong {
			trying := ""
			if p.TryingAt != nil {
				trying = ", an effect fails and is tried again"
			}
			stuck = append(stuck, fmt.Sprintf("%s/%d (at %d of %d for %v, counted runs: %d%s)", p.Topic, p.Partition,
				p.From, ends[at],
				p.Unmoved.Round(time.Second), p.Attempts, trying))
		}
	}
	return behind, stuck, nil
}

// Ends are the ends of the logs of partitions, in their order.
func Ends(ctx context.Context, conn Kafka, partitions []operator.PartitionState) ([]int64, error) {
	client, closeIdle := conn.Client(10 * time.Second)
	defer closeIdle()
	topics := map[string][]kafka.OffsetRequest{}
	for _, p := range partitions {
		topics[p.Topic] = append(topics[p.Topic], kafka.LastOffsetOf(int(p.Partition)))
	}
	at, err := offsets(ctx, client, topics)
	if err != nil {
		return nil, err
	}
	ends := make([]int64, len(partitions))
	for i, p := range partitions {
		ends[i] = at[place{p.Topic, int(p.Partition)}]
	}
	return ends, nil
}

type place struct {
	topic     string
	partition int
}

// offsets asks for one offset of each partition. One that has none, for the time that was asked for, is -1.
func offsets(ctx context.Context, client *kafka.Client, topics map[string][]kafka.OffsetRequest) (map[place]int64,
	error,
) {
	list := map[place]int64{}
	if len(topics) == 0 {
		return list, nil
	}
	res, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: topics})
	if err != nil {
		return nil, err
	}
	var errs []error
	for topic, partitions := range res.Topics {
		for _, p := range partitions {
			if p.Error != nil {
				errs = append(errs, fmt.Errorf("%s/%d: %w", topic, p.Partition, p.Error))
			}
			list[place{topic, p.Partition}] = p.LastOffset
			for offset := range p.Offsets {
				list[place{topic, p.Partition}] = offset
			}
		}
	}
	return list, errors.Join(errs...)
}
