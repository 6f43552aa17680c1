package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
		behind, stuck, unknown, err := lagging(ctx, client, c.Partitions)
		switch {
		case err != nil:
			f.failed(check, err)
			continue
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
		case len(unknown) == 0:
			f.ok(check, "no record older than a minute waits in %d partitions", len(c.Partitions))
		}
		if len(unknown) > 0 {
			f.add(Fail, check, "the database does not know "+strings.Join(unknown, ", "),
				"No worker has begun these partitions of a topic that the consumer reads, or their rows were deleted. "+
					"Their events wait.",
				"Start its workers, or look at their logs: a worker that gets a partition makes its row at once.")
		}
	}
}

// lagging counts the records that are older than waitsLong and not decided, and names the partitions where nothing
// moves either, and those with such records that the database does not know. Those that have halted are told elsewhere.
func lagging(ctx context.Context, client *kafka.Client, partitions []operator.PartitionState) (behind int64,
	stuck, unknown []string, err error,
) {
	before := time.Now().Add(-waitsLong)
	logs, err := readLogs(ctx, client, topicsOf(partitions), kafka.FirstOffsetOf, kafka.LastOffsetOf,
		func(partition int) kafka.OffsetRequest { return kafka.TimeOffsetOf(partition, before) })
	if err != nil {
		return 0, nil, nil, err
	}
	for _, p := range partitions {
		at := place{p.Topic, int(p.Partition)}
		log := logs[at]
		delete(logs, at)
		until := old(log)
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
				p.From, log.LastOffset, p.Unmoved.Round(time.Second), p.Attempts, trying))
		}
	}
	for at, log := range logs {
		if n := old(log) - log.FirstOffset; n > 0 {
			unknown = append(unknown, fmt.Sprintf("%s/%d (%d records older than a minute)", at.topic, at.partition, n))
		}
	}
	slices.Sort(unknown)
	return behind, stuck, unknown, nil
}

// old is the end of a log's records that are older than waitsLong.
func old(log kafka.PartitionOffsets) int64 {
	for offset := range log.Offsets {
		if offset >= 0 {
			return offset
		}
	}
	return log.LastOffset // no record is younger
}

// Ends are the ends of the logs of partitions, in their order.
func Ends(ctx context.Context, conn Kafka, partitions []operator.PartitionState) ([]int64, error) {
	client, closeIdle := conn.Client(10 * time.Second)
	defer closeIdle()
	logs, err := readLogs(ctx, client, topicsOf(partitions), kafka.LastOffsetOf)
	if err != nil {
		return nil, err
	}
	ends := make([]int64, len(partitions))
	for i, p := range partitions {
		ends[i] = logs[place{p.Topic, int(p.Partition)}].LastOffset
	}
	return ends, nil
}

func topicsOf(partitions []operator.PartitionState) []string {
	topics := map[string]bool{}
	for _, p := range partitions {
		topics[p.Topic] = true
	}
	return slices.Sorted(maps.Keys(topics))
}

type place struct {
	topic     string
	partition int
}

// readLogs asks for offsets of all partitions of topics.
func readLogs(ctx context.Context, client *kafka.Client, topics []string,
	asks ...func(partition int) kafka.OffsetRequest,
) (map[place]kafka.PartitionOffsets, error) {
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, err
	}
	var errs []error
	list := map[string][]kafka.OffsetRequest{}
	for _, t := range meta.Topics {
		if t.Error != nil {
			errs = append(errs, fmt.Errorf("topic %s: %w", t.Name, t.Error))
		}
		for _, p := range t.Partitions {
			for _, ask := range asks {
				list[t.Name] = append(list[t.Name], ask(p.ID))
			}
		}
	}
	if len(errs) > 0 || len(list) == 0 {
		return nil, errors.Join(errs...)
	}
	return offsets(ctx, client, list)
}

// offsets asks for offsets of partitions.
func offsets(ctx context.Context, client *kafka.Client, topics map[string][]kafka.OffsetRequest) (
	map[place]kafka.PartitionOffsets, error,
) {
	res, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: topics})
	if err != nil {
		return nil, err
	}
	var errs []error
	found := map[place]kafka.PartitionOffsets{}
	for topic, partitions := range res.Topics {
		for _, p := range partitions {
			if p.Error != nil {
				errs = append(errs, fmt.Errorf("%s/%d: %w", topic, p.Partition, p.Error))
			}
			found[place{topic, p.Partition}] = p
		}
	}
	return found, errors.Join(errs...)
}
