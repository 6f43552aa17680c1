package operator

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// TopicState is one topic of an outbox in detail. Held events are counted up to [relay.SampleLimit].
type TopicState struct {
	Topic
	// Cluster is the id of the Kafka cluster that the outbox publishes to; empty: it has published nothing yet.
	Cluster string          `json:"cluster"`
	HeldIn  []HeldPartition `json:"held_in"`
	// Publishing counts the topic's events between claim and settle, PublishingAll those of all topics.
	Publishing    int64 `json:"publishing"`
	PublishingAll int64 `json:"publishing_all"`
	// Uncertain: AcceptPartitions fails with ErrUncertain, unless anyway. WAL: a relay reads the WAL, and then every
	// acceptance begins a new incarnation of the numbering.
	Uncertain bool `json:"uncertain"`
	WAL       bool `json:"wal"`
}

// HeldUncertain counts the held events that AcceptPartitions calls uncertain: those of a partition, because later ones
// of their lanes may have been written, and those of the topic as a whole that may have been written themselves.
func (s TopicState) HeldUncertain() (n int64) {
	for _, p := range s.HeldIn {
		if p.Partition >= 0 {
			n += p.Events
		} else {
			n += p.MaybePublished
		}
	}
	return n
}

// TopicState reads one topic. It fails with ErrNoTopic for a topic that was never published to, is not paused, and has
// no held events.
func (o *Operator) TopicState(ctx context.Context, topic string) (s TopicState, err error) {
	s.Topic.Topic = topic
	err = o.db.QueryRow(ctx, o.q(sql.TopicState), topic).Scan(&s.Partitions, &s.PinnedAt, &s.PausedAt, &s.PausedBy,
		&s.Reason, &s.Cluster, &s.Publishing, &s.PublishingAll)
	if err == nil {
		s.HeldIn, err = audit.Read(ctx, o.db, pgx.RowToStructByPos[HeldPartition], o.q(sql.HeldOfTopic), topic,
			relay.SampleLimit)
	}
	if err == nil {
		var few int
		err = o.db.QueryRow(ctx, o.q(sql.Unsure), topic, 1).Scan(&s.Uncertain, &s.WAL, &few)
	}
	for _, p := range s.HeldIn {
		s.Held += p.Events
	}
	if err == nil && s.Partitions == 0 && s.PausedAt == nil && s.Held == 0 {
		err = ErrNoTopic
	}
	if err != nil {
		return TopicState{}, fmt.Errorf("relay: reading topic %s: %w", topic, err)
	}
	return s, nil
}
