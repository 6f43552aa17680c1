package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
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
		if err := unread(log, end); err != nil {
			return err
		}
		if end.Empty {
			warnNeverWritten(ctx, log, conn, end.Topic)
		}
		if end.Other {
			log.Warn("could not check whether Kafka is ahead of this database, as it is after a restore: the topic's "+
				"last records are other producers'", "topic", end.Topic)
		}
	}
	if err != nil {
		return fmt.Errorf("nothing was published: %w", err)
	}
	return nil
}

// unread fails if Kafka does not answer, and logs what it refuses to show.
func unread(log *slog.Logger, end doctor.End) error {
	if end.Away {
		return fmt.Errorf("%w (--no-restore-check goes on without): topic %s: %w", errUnread, end.Topic, end.Err)
	}
	if end.Err != nil {
		log.Warn("could not check whether Kafka is ahead of this database, as it is after a restore; relay doctor "+
			"checks again",
			"topic", end.Topic, "error", end.Err)
	}
	return nil
}

// pinFunc is a publisher's Config.Pin.
type pinFunc = func(ctx context.Context, cluster, topic string, partitions int) (int, error)

// firstUses compare a topic before the outbox publishes its first event to it, which the check at the start has not
// read: it may be new in a restored database, and old in Kafka.
type firstUses struct {
	off      bool   // nothing is compared
	checked  string // the identity of the outbox whose numbers were compared last
	pin      pinFunc
	log      *slog.Logger
	db       *pgxpool.Pool
	schema   string
	conn     *kafkaconn.Conn
	outdated chan error // why nothing more may be published

	mu   sync.Mutex
	seen map[string]bool
}

// newFirstUses returns the pin that compares, too.
func (c *runCommand) newFirstUses(log *slog.Logger, db *pgxpool.Pool, schema string, conn *kafkaconn.Conn,
	pin pinFunc,
) (*firstUses, pinFunc) {
	u := &firstUses{
		off: !c.RestoreCheck, pin: pin, log: log, db: db, schema: schema, conn: conn, outdated: make(chan error, 1),
		seen: map[string]bool{},
	}
	if u.off {
		return u, pin
	}
	return u, u.compareAndPin
}

func (u *firstUses) compareAndPin(ctx context.Context, cluster, topic string, partitions int) (int, error) {
	u.mu.Lock()
	seen := u.seen[topic]
	u.mu.Unlock()
	if partitions > 0 && !seen {
		if _, err := u.pin(ctx, cluster, topic, 0); err != nil { // another cluster tells nothing
			return 0, err
		}
		end, err := doctor.CompareFirst(ctx, u.db, u.schema, u.conn, topic)
		if err == nil {
			err = unread(u.log, end)
		} else if _, outdated := errors.AsType[*operator.OutdatedError](err); outdated {
			select {
			case u.outdated <- err:
			default:
			}
		}
		if err != nil {
			return 0, err
		}
	}
	n, err := u.pin(ctx, cluster, topic, partitions)
	if err == nil && partitions > 0 {
		u.mu.Lock()
		u.seen[topic] = true
		u.mu.Unlock()
	}
	return n, err
}

// compare compares the outbox's numbers with Kafka's, unless that was done for the outbox as it is, and returns its
// identity.
func (u *firstUses) compare(ctx context.Context, outbox *relay.Outbox) (identity string, err error) {
	if u.off {
		return "", nil
	}
	w, err := outbox.Waits(ctx)
	if err != nil || w.Outbox == u.checked {
		return w.Outbox, err
	}
	if err := checkRestored(ctx, u.log, u.db, u.schema, u.conn); err != nil {
		return "", err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.seen)
	u.checked = w.Outbox
	return w.Outbox, nil
}

// until runs a relay until ctx ends, or a topic shows that the database was restored: then it returns that.
func (u *firstUses) until(ctx context.Context, run func(ctx context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	var others sync.WaitGroup
	others.Go(func() {
		select {
		case err := <-u.outdated:
			end(err)
		case <-ctx.Done():
		}
	})
	err := run(ctx)
	end(nil)
	others.Wait()
	if outdated, ok := errors.AsType[*operator.OutdatedError](context.Cause(ctx)); ok {
		return fmt.Errorf("nothing was published to the topic: %w", outdated)
	}
	return err
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
