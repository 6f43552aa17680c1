package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/inbox/operator"
)

// ask asks for an offset of each partition.
func ask(ctx context.Context, client *kafka.Client, partitions []operator.PartitionState, level kafka.IsolationLevel,
	of func(partition int) kafka.OffsetRequest,
) (map[place]kafka.PartitionOffsets, error) {
	if len(partitions) == 0 {
		return nil, nil
	}
	list := map[string][]kafka.OffsetRequest{}
	for _, p := range partitions {
		list[p.Topic] = append(list[p.Topic], of(int(p.Partition)))
	}
	return offsets(ctx, client, list, level)
}

// old returns the ends of the records that are older than lateAfter, and than soon.
func old(log kafka.PartitionOffsets) (older, aged int64) {
	newer := slices.Sorted(maps.Keys(log.Offsets)) // the first records that are newer; -1: none is
	older, aged = log.LastOffset, log.LastOffset
	if n := len(newer); n > 0 && newer[0] >= 0 {
		older, aged = newer[0], newer[n-1]
	} else if n > 1 {
		older = newer[1]
	}
	return older, aged
}

// Ends returns the ends of partitions' logs, in their order. An unknown end is -1, and the error says why; the others
// are valid all the same.
func Ends(ctx context.Context, conn Kafka, partitions []operator.PartitionState) ([]int64, error) {
	client, closeIdle := conn.Client(10 * time.Second)
	defer closeIdle()
	logs, wrong, err := readLogs(ctx, client, partitions, kafka.LastOffsetOf)
	ends := make([]int64, len(partitions))
	for i, p := range partitions {
		ends[i] = -1
		if log, ok := logs[place{p.Topic, int(p.Partition)}]; ok {
			ends[i] = log.LastOffset
		}
	}
	for i, one := range wrong {
		if g, ok := errors.AsType[*goneError](one); ok {
			wrong[i] = fmt.Errorf("%w: %s", one, g.advice(""))
		}
	}
	return ends, errors.Join(append(wrong, err)...)
}

// MaySkip returns an error unless the log of a partition reaches up to an offset.
func MaySkip(ctx context.Context, conn Kafka, topic string, partition int32, to int64) error {
	ends, err := Ends(ctx, conn, []operator.PartitionState{{Topic: topic, Partition: partition}})
	switch {
	case err != nil:
		return fmt.Errorf("where %s/%d ends is not known: %w", topic, partition, err)
	case to > ends[0]:
		return fmt.Errorf("%s/%d ends at offset %d: what comes until %d was never written, and would not be handled",
			topic, partition, ends[0], to)
	}
	return nil
}

// place is a partition, or a topic with the partition -1.
type place struct {
	topic     string
	partition int
}

func (p place) String() string {
	if p.partition < 0 {
		return "topic " + p.topic
	}
	return fmt.Sprintf("%s/%d", p.topic, p.partition)
}

// goneError is a topic or a partition that the database knows and Kafka lacks.
type goneError struct{ place }

func (g *goneError) Error() string { return g.String() + " does not exist any more" }

// advice says what to do; of is a condition on the rows.
func (g *goneError) advice(of string) string {
	rows := fmt.Sprintf("%stopic = '%s'", of, g.topic)
	if g.partition >= 0 {
		rows += fmt.Sprintf(" and partition = %d", g.partition)
	}
	return "Records that it held behind the progress in its rows are gone without effect. If it was deleted by " +
		"mistake, create it again. If no worker reads it any more, delete its rows: delete from inbox_progress " +
		"where " + rows
}

// readLogs asks for offsets of all partitions of the topics of partitions. wrong lists those without an answer, and
// why.
func readLogs(ctx context.Context, client *kafka.Client, partitions []operator.PartitionState,
	asks ...func(partition int) kafka.OffsetRequest,
) (found map[place]kafka.PartitionOffsets, wrong []error, err error) {
	sizes := map[string]int{}
	for _, p := range partitions {
		sizes[p.Topic] = -1 // unknown
	}
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: slices.Sorted(maps.Keys(sizes))})
	if err != nil || len(sizes) == 0 {
		return nil, nil, err
	}
	list := map[string][]kafka.OffsetRequest{}
	for _, t := range meta.Topics {
		switch at := (place{t.Name, -1}); {
		case errors.Is(t.Error, kafka.UnknownTopicOrPartition):
			wrong = append(wrong, &goneError{at})
			continue
		case t.Error != nil:
			wrong = append(wrong, fmt.Errorf("%v: %w", at, t.Error))
			continue
		}
		sizes[t.Name] = len(t.Partitions)
		for _, p := range t.Partitions {
			if p.Error != nil || p.Leader.Host == "" { // it would fail the request for all
				wrong = append(wrong, fmt.Errorf("%v: %w", place{t.Name, p.ID}, kafka.LeaderNotAvailable))
				continue
			}
			for _, ask := range asks {
				list[t.Name] = append(list[t.Name], ask(p.ID))
			}
		}
	}
	vanished := map[place]bool{}
	for _, p := range partitions {
		at := place{p.Topic, int(p.Partition)}
		if n := sizes[p.Topic]; n >= 0 && at.partition >= n && !vanished[at] {
			vanished[at] = true
			wrong = append(wrong, &goneError{at})
		}
	}
	if len(list) == 0 {
		return nil, wrong, nil
	}
	found, err = offsets(ctx, client, list, kafka.ReadUncommitted)
	for at, p := range found {
		if p.Error != nil {
			wrong, err = append(wrong, fmt.Errorf("%v: %w", at, p.Error)), nil
			delete(found, at)
		}
	}
	return found, wrong, err
}

// offsets asks for offsets of partitions.
func offsets(ctx context.Context, client *kafka.Client, topics map[string][]kafka.OffsetRequest,
	level kafka.IsolationLevel,
) (map[place]kafka.PartitionOffsets, error) {
	res, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: topics, IsolationLevel: level})
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
