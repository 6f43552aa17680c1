package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
)

// kafkaTimeout bounds a request to Kafka beside publishing.
const kafkaTimeout = 15 * time.Second

// checkRestored fails when Kafka holds events with numbers that the outbox has not given out, and logs what could not
// be looked at.
func checkRestored(ctx context.Context, log *slog.Logger, db *pgxpool.Pool, schema string,
	conn *kafkaconn.Conn,
) error {
	ends, err := doctor.CompareNumbers(ctx, db, schema, conn)
	for _, end := range ends {
		if end.Err != nil {
			log.Warn("could not look whether Kafka is ahead of this database, as it is after a restore; relay doctor "+
				"looks again",
				"topic", end.Topic, "err", end.Err)
		}
		if end.Empty {
			warnNeverWritten(ctx, log, conn, end.Topic)
		}
	}
	if err != nil {
		return fmt.Errorf("nothing was published: %w", err)
	}
	return nil
}

// warnNeverWritten tells of a topic that was published to and holds nothing, not even what retention has removed.
func warnNeverWritten(ctx context.Context, log *slog.Logger, conn *kafkaconn.Conn, topic string) {
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	client, closeIdle := conn.Client(kafkaTimeout)
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
