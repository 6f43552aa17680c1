package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

// KafkaTopic is a topic in Kafka.
type KafkaTopic struct {
	Cluster    string           `json:"cluster"` // id; empty: the brokers do not say
	Partitions []KafkaPartition `json:"partitions"`
}

// KafkaPartition is one partition of a KafkaTopic.
type KafkaPartition struct {
	Partition int    `json:"partition"`
	Leader    string `json:"leader"` // id and address; empty: it has none
	Replicas  int    `json:"replicas"`
	InSync    int    `json:"in_sync"`
	End       int64  `json:"end"` // of its log; -1: not known
	// Groups has the committed offset of each requested group; -1: none.
	Groups map[string]int64 `json:"groups"`
}

// ReadTopic reads a topic, and the offsets of groups. With an error it returns what is known all the same.
func ReadTopic(ctx context.Context, conn Kafka, name string, groups []string) (t KafkaTopic, err error) {
	client, closeIdle := conn.Client(10 * time.Second)
	defer closeIdle()
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{name}})
	if err != nil {
		return t, err
	}
	t.Cluster = meta.ClusterID
	if len(meta.Topics) != 1 || meta.Topics[0].Error != nil {
		err := error(kafka.UnknownTopicOrPartition)
		if len(meta.Topics) == 1 {
			err = meta.Topics[0].Error
		}
		return t, fmt.Errorf("topic %s: %w", name, err)
	}
	var led []kafka.OffsetRequest // a partition without a leader would fail the request for all
	for _, p := range meta.Topics[0].Partitions {
		one := KafkaPartition{
			Partition: p.ID, Replicas: len(p.Replicas), InSync: len(p.Isr), End: -1, Groups: map[string]int64{},
		}
		if p.Error == nil && p.Leader.Host != "" {
			address := net.JoinHostPort(p.Leader.Host, strconv.Itoa(p.Leader.Port))
			one.Leader = fmt.Sprintf("%d, %s", p.Leader.ID, address)
			led = append(led, kafka.LastOffsetOf(p.ID))
		}
		t.Partitions = append(t.Partitions, one)
	}
	slices.SortFunc(t.Partitions, func(a, b KafkaPartition) int { return a.Partition - b.Partition })
	var errs []error
	if len(led) > 0 {
		ends, err := offsets(ctx, client, map[string][]kafka.OffsetRequest{name: led}, kafka.ReadUncommitted)
		errs = append(errs, err)
		for i := range t.Partitions {
			if end, ok := ends[place{name, t.Partitions[i].Partition}]; ok && err == nil {
				t.Partitions[i].End = end.LastOffset
			}
		}
	}
	for _, group := range groups {
		errs = append(errs, committed(ctx, client, name, group, t.Partitions))
	}
	return t, errors.Join(errs...)
}

// committed fills in the offsets of a group.
func committed(ctx context.Context, client *kafka.Client, topic, group string, partitions []KafkaPartition) error {
	ids := make([]int, len(partitions))
	for i, p := range partitions {
		ids[i] = p.Partition
	}
	res, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: ids},
	})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		return fmt.Errorf("group %s: %w", group, err)
	}
	for _, p := range res.Topics[topic] {
		i := slices.Index(ids, p.Partition)
		if i < 0 {
			continue
		}
		partitions[i].Groups[group] = p.CommittedOffset
		if p.Error != nil {
			err = fmt.Errorf("group %s, partition %d: %w", group, p.Partition, p.Error)
		}
	}
	return err
}
