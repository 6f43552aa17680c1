package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
)

// kafkaTimeout limits a request to Kafka other than publishing.
const kafkaTimeout = 15 * time.Second

// errUnread: Kafka does not answer, so it cannot be told yet whether the outbox is older than its topics.
var errUnread = errors.New("kafka does not tell yet whether it is ahead of this database, as it is after a restore")

// checkRestored fails if Kafka has events with numbers that the outbox has not given out, or with errUnread while Kafka
// is away: nothing could be published. It logs what Kafka refuses to show.
func checkRestored(ctx context.Context, log *slog.Logger, db *pgxpool.Pool, schema string,
	conn *kafkaconn.Conn,
) error {
	ends, err := doctor.CompareNumbers(ctx, db, schema, conn)
	for _, end := range ends {
		if end.Away {
			return fmt.Errorf("%w (--no-restore-check goes on without): topic %s: %w", errUnread, end.Topic, end.Err)
		}
		if end.Err != nil {
			log.Warn("could not check whether Kafka is ahead of this database, as it is after a restore; relay doctor "+
				"checks again",
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

// warnNeverWritten reports a topic that was published to, but has never been written to.
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
		log.Error("nothing was ever written to a topic that this outbox has published to: it was deleted and "+
			"created again, or no request to it has succeeded yet; "+
			"relay doctor explains it", "topic", topic)
	}
}
