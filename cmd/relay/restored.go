package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/relay/operator"
)

// tailLength is how many events of each partition are read back: with so many, nearly every lane that is in use is
// among them. tailTimeout is how long that may take at a start: a Kafka that is away must not keep a relay from waiting
// for it.
const (
	tailLength  = 500
	tailTimeout = 15 * time.Second
)

// checkRestored fails when Kafka holds events with numbers that the outbox has not given out: the database was restored
// from a backup, and somebody must begin a new numbering before anything is published. What cannot be read, and why, is
// no evidence.
func checkRestored(ctx context.Context, log *slog.Logger, db *pgxpool.Pool, schema string, conn *kafkaconn.Conn) (
	unread, err error,
) {
	topics, err := operator.PinnedTopics(ctx, db, schema)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	for _, topic := range topics {
		tail, err := consumer.Tail(ctx, conn.Brokers(), topic, tailLength,
			consumer.Config{Dial: conn.Dial, SASL: conn.SASL(), FetchWait: 50 * time.Millisecond})
		switch {
		case errors.Is(err, kafka.UnknownTopicOrPartition):
			continue // never published to, or deleted since
		case err != nil:
			log.Warn("could not look whether Kafka is ahead of this database, as it is after a restore; relay doctor "+
				"looks again",
				"topic", topic, "err", err)
			unread = errors.Join(unread, err)
			if ctx.Err() != nil {
				return unread, nil
			}
			continue
		}
		if len(tail) == 0 {
			warnNeverWritten(ctx, log, conn, topic)
		}
		if err := operator.CheckNumbers(ctx, db, schema, tail); err != nil {
			return unread, fmt.Errorf("nothing was published: %w", err)
		}
	}
	return unread, nil
}

// warnNeverWritten tells of a topic that was published to and holds nothing, not even what retention has removed.
func warnNeverWritten(ctx context.Context, log *slog.Logger, conn *kafkaconn.Conn, topic string) {
	client, closeIdle := conn.Client(tailTimeout)
	defer closeIdle()
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil || len(meta.Topics) == 0 {
		return
	}
	if written, err := kafkaconn.Written(ctx, client, topic, len(meta.Topics[0].Partitions)); err == nil && !written {
		log.Error("nothing was ever written to a topic that this outbox has published to: it was deleted and made "+
			"again, or nothing could be written yet; "+
			"relay doctor says what it means", "topic", topic)
	}
}
