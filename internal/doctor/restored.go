package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/operator"
)

// tailLength is how many events of each partition are read back: enough to include nearly every lane in use.
const tailLength = 500

// TailTimeout bounds the read of one topic's end, for the case that Kafka is away.
const TailTimeout = 15 * time.Second

// End is the end of a topic.
type End struct {
	Topic string
	Err   error // of reading it
	Away  bool  // Kafka does not answer, or cannot tell yet: neither this topic nor a later one was compared
	Empty bool  // the topic has no record
	Other bool  // no event that was read back is of this outbox: nothing was compared
}

// CompareNumbers returns an [*operator.OutdatedError] if Kafka has events with numbers that the outbox has not given
// out: the database was restored from a backup, and an operator must begin a new numbering before anything is
// published. A topic that cannot be read is no evidence. If Kafka is away, the list ends with an End that says so.
func CompareNumbers(ctx context.Context, db *pgxpool.Pool, schema string, conn Kafka) (ends []End, err error) {
	topics, err := operator.PinnedTopics(ctx, db, schema)
	if err != nil {
		return nil, err
	}
	pinned := len(topics)
	unpinned, err := operator.UnpinnedTopics(ctx, db, schema)
	if err != nil {
		return nil, err
	}
	topics = append(topics, unpinned...)
	waited := false // for a broker that has just started, and does not know the topics yet
	for i, topic := range topics {
		tail, err := readTail(ctx, conn, topic)
		if errors.Is(err, kafka.UnknownTopicOrPartition) && i < pinned && !waited {
			if waited = true; sleep.For(ctx, 300*time.Millisecond) == nil {
				tail, err = readTail(ctx, conn, topic)
			}
		}
		if errors.Is(err, kafka.UnknownTopicOrPartition) {
			continue // never published to, or deleted meanwhile
		}
		switch {
		case err != nil && isAway(ctx, conn, topic, err):
			if rest := topics[i+1:]; len(rest) > 0 {
				err = fmt.Errorf("%w; not compared either: %s", err, strings.Join(rest, ", "))
			}
			return append(ends, End{Topic: topic, Err: err, Away: true}), nil
		case err != nil:
			ends = append(ends, End{Topic: topic, Err: err})
			continue
		}
		if i >= pinned {
			if err := operator.CheckFirst(ctx, db, schema, topic, tail); err != nil {
				return ends, err
			}
			continue
		}
		own, err := operator.CheckNumbers(ctx, db, schema, tail)
		ends = append(ends, End{Topic: topic, Empty: len(tail) == 0, Other: own == 0 && len(tail) > 0})
		if err != nil {
			return ends, err
		}
	}
	return ends, nil
}

// CompareFirst is CompareNumbers for a topic that the outbox is about to publish to for the first time.
func CompareFirst(ctx context.Context, db *pgxpool.Pool, schema string, conn Kafka, topic string) (End, error) {
	pinned, err := operator.PinnedTopics(ctx, db, schema)
	if err != nil || slices.Contains(pinned, topic) {
		return End{}, err
	}
	tail, err := readTail(ctx, conn, topic)
	if err != nil { // also if it does not exist: its publisher has seen it
		return End{Topic: topic, Err: err, Away: isAway(ctx, conn, topic, err)}, nil
	}
	return End{}, operator.CheckFirst(ctx, db, schema, topic, tail)
}

var errTransport = errors.New("the client of Kafka has a transport of its own kind, by which nothing is read")

// readTail reads the end of a topic over connections like the client's.
func readTail(ctx context.Context, conn Kafka, topic string) ([]event.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, TailTimeout)
	defer cancel()
	client, closeIdle := conn.Client(TailTimeout)
	defer closeIdle()
	transport := &kafka.Transport{}
	if client.Transport != nil {
		var ok bool
		if transport, ok = client.Transport.(*kafka.Transport); !ok {
			return nil, errTransport
		}
	}
	return consumer.Tail(ctx, strings.Split(Addresses(client), ","), topic, tailLength, consumer.Config{
		Dial: transport.Dial, TLS: transport.TLS, SASL: transport.SASL, FetchWait: 50 * time.Millisecond,
	})
}

// isAway reports whether Kafka does not answer, or cannot tell yet (a partition has no leader). It is false only if the
// topic may not be read, however often Kafka is asked, or has records that cannot be decoded: whoever goes on then has
// not looked. kafka.Unknown is what kafka-go says of a broker that it did not reach.
func isAway(ctx context.Context, conn Kafka, topic string, err error) bool {
	if errors.Is(err, errTransport) {
		return false
	}
	if code, answered := errors.AsType[kafka.Error](err); answered {
		return !isDenied(code) && code != kafka.UnsupportedVersion && code != kafka.InvalidTopic
	}
	_, isNet := errors.AsType[net.Error](err)
	if isNet || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	client, closeIdle := conn.Client(TailTimeout)
	defer closeIdle()
	_, err = client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	return err != nil
}

// Addresses returns the addresses of a client's brokers, separated by commas; "": of none.
func Addresses(client *kafka.Client) string {
	if client == nil || client.Addr == nil {
		return ""
	}
	return client.Addr.String()
}

// Restored checks whether Kafka has newer events than the outbox. It reads the end of each topic, which costs more than
// all of Examine. Without Kafka or an outbox it returns nothing.
func Restored(ctx context.Context, s Subject) []Finding {
	if s.Kafka == nil {
		return nil
	}
	const check = "restored"
	f := findings{where: s.Flags, inSchema: s.Schema}
	ends, err := CompareNumbers(ctx, s.DB, s.Schema, s.Kafka)
	var unread []error
	var others []string
	for _, end := range ends {
		if unread = append(unread, end.Err); end.Other {
			others = append(others, end.Topic)
		}
	}
	outdated, ok := errors.AsType[*operator.OutdatedError](err)
	switch reason := errors.Join(unread...); {
	case ok:
		f.add(Fail, check, outdated.Error(), "The database is older than what was published from it, or is the old "+
			"primary of a failover. Consumers that compare numbers would drop new events, or apply some twice.",
			"Read docs/failover.md and docs/restore.md. Then:")
		f.runWhy("fence")
	case pgerr.Is(err, pgerr.UndefinedTable), pgerr.Away(err): // other findings say so
	case pgerr.Denied(err) != "":
		f.skip(check, pgerr.Denied(err))
	case err != nil:
		f.unknown(check, err.Error())
	case reason != nil && ends[len(ends)-1].Away && unlessAnswered(reason) != nil:
		f.unknown(check, seeKafka)
	case reason != nil:
		f.add(Warn, check, "could not be compared: "+reason.Error(), "After a restore of the database a relay would "+
			"publish under numbers that Kafka has already.", allow("READ", reason))
	case len(others) > 0:
		f.unknown(check, fmt.Sprintf("the last %d records of each partition are other producers' in %s", tailLength,
			strings.Join(others, ", ")))
	default:
		f.ok(check, "no number in Kafka that this outbox has not given out")
	}
	return f.list
}
