package endtoend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestP10RestoredConsumer: a consumer's database is restored from a backup, but the group's offsets are not. Events
// that were applied after the backup are applied again, earlier ones are not, and the observer reports them.
func TestP10RestoredConsumer(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.NewDatabase(t, migrations.Inbox), kafkatest.Topic(t, 3)
	db.Exec(t, `create table effect (id uuid primary key, at bigint generated always as identity)`)
	produce(t, topic, 0, 300)
	consume(t, db, topic, 300)
	backup := db.Copy(t)
	produce(t, topic, 300, 300)
	consume(t, db, topic, 600)

	produce(t, topic, 600, 50)
	if n := consume(t, backup, topic, 650); n != 300 {
		t.Errorf("%d committed events were applied again, want 300", n)
	}
	if n := pgtest.One[int](t, backup, `select count(*) from effect`); n != 650 {
		t.Errorf("%d effects, want 650", n)
	}
	if n := consume(t, backup, topic, 650); n != 0 {
		t.Errorf("%d committed events were applied a third time", n)
	}
}

// TestP10ConsumerRestoredToBeforeItsTopic: the backup is from before the first event of the topic, or the database is
// another one under the consumer's name. It has no row of the partitions, and the group is far ahead.
func TestP10ConsumerRestoredToBeforeItsTopic(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.NewDatabase(t, migrations.Inbox), kafkatest.Topic(t, 3)
	db.Exec(t, `create table effect (id uuid primary key, at bigint generated always as identity)`)
	backup := db.Copy(t)
	produce(t, topic, 0, 300)
	consume(t, db, topic, 300)
	produce(t, topic, 300, 50)
	consume(t, db, topic, 350)
	produce(t, topic, 350, 50)
	if n := consume(t, backup, topic, 400); n != 350 {
		t.Errorf("%d committed events were applied again, want 350", n)
	}
	if n := consume(t, backup, topic, 400); n != 0 {
		t.Errorf("%d committed events were applied a third time", n)
	}
}

// TestP10ConsumerTakesOver: a group that another program has moved begins at its offsets, and not at the log's start.
func TestP10ConsumerTakesOver(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.NewDatabase(t, migrations.Inbox), kafkatest.Topic(t, 3)
	db.Exec(t, `create table effect (id uuid primary key, at bigint generated always as identity)`)
	produce(t, topic, 0, 300)
	commitByHand(t, topic, map[int]int64{0: 90, 1: 100, 2: 100})
	produce(t, topic, 300, 50)
	consume(t, db, topic, 60)
	if n := pgtest.One[int](t, db, `select count(*) from effect`); n != 60 {
		t.Errorf("%d effects, want those of the 60 events behind the group's offsets", n)
	}
}

// TestP10TopicIsMadeAgain: a topic is made again under a running worker, and has grown past its position at once. All
// of it is applied, by ids and by offsets, and the database says where the consumer began. A group of another name goes
// on where the database is: it reads nothing twice. What is lost stays in what operators read.
func TestP10TopicIsMadeAgain(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for name, dedup := range map[string]inbox.Dedup{"by id": inbox.ByID, "by offset": inbox.ByOffset} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, topic := pgtest.NewDatabase(t, migrations.Inbox), kafkatest.Topic(t, 3)
			db.Exec(t, `create table effect (id uuid primary key, at bigint generated always as identity)`)
			var lost, repeated atomic.Int64
			work := func(group string, do func(c *consumer.Consumer)) {
				t.Helper()
				h := restored(t, db, inbox.Config{Dedup: dedup})
				c, err := consumer.New(h, kafkatest.Brokers(t), []string{topic}, consumer.Config{
					Group: group, Logger: slog.New(slog.DiscardHandler), Observer: consumer.Observer{
						Lost: func(consumer.LostRange) { lost.Add(1) },
						Repeated: func(r consumer.RepeatedInfo) {
							repeated.Add(int64(r.Dropped + r.Applied))
						},
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				whileRunning(t, c, func() { do(c) })
				checkAccount(t, db, 0)
				db.Pool.Reset()
			}
			work(topic, func(c *consumer.Consumer) {
				produce(t, topic, 0, 15)
				awaitEffects(t, db, c, 15)
				kafkatest.Remake(t, kafkatest.Brokers(t), topic, 3)
				produce(t, topic, 15, 60)
				awaitEffects(t, db, c, 75)
			})
			if n := lost.Load(); n != 3 {
				t.Errorf("%d losses are reported, want one of each partition", n)
			}
			if n := pgtest.One[int](t, db, `select count(*) from inbox_progress where from_offset = 20
				and began_offset = 0 and began_reason like '%made again%' and began_at is not null
				and topic_id is not null and seen_partitions = 3`); n != 3 {
				t.Errorf("%d partitions began in the new log", n)
			}
			work(topic+"-renamed", func(c *consumer.Consumer) {
				produce(t, topic, 75, 30)
				awaitEffects(t, db, c, 105)
			})
			if n := repeated.Load(); n != 0 {
				t.Errorf("%d events were read that the database had decided", n)
			}
			produce(t, topic, 105, 30)
			kafkatest.DeleteBefore(t, topic, 0, -1)
			work(topic+"-renamed", func(c *consumer.Consumer) {
				produce(t, topic, 135, 3)
				awaitEffects(t, db, c, 105+20+3)
			})
			found, err := operator.Diagnose(t.Context(), db.Pool, db.Schema, false)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range found.Consumers[0].Partitions {
				want := "made again"
				if p.Partition == 0 {
					want = "retention removed records that were never read (10, from offset 30 on)"
				}
				if !strings.Contains(p.Lost, want) {
					t.Errorf("partition %d: operators read %q, want %q", p.Partition, p.Lost, want)
				}
			}
		})
	}
}

// commitByHand commits offsets of the topic's group as other programs do.
func commitByHand(t *testing.T, topic string, offsets map[int]int64) {
	t.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(kafkatest.Brokers(t)...), Transport: transport}
	req := &kafka.OffsetCommitRequest{GroupID: topic, GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{}}
	for p, offset := range offsets {
		req.Topics[topic] = append(req.Topics[topic], kafka.OffsetCommit{Partition: p, Offset: offset})
	}
	// The first group of a new cluster has no coordinator for a moment.
	pgtest.Await(t, "the group's coordinator", func() (bool, error) {
		res, err := client.OffsetCommit(t.Context(), req)
		if err == nil {
			for _, p := range res.Topics[topic] {
				err = errors.Join(err, p.Error)
			}
		}
		if code, ok := errors.AsType[kafka.Error](err); ok && code.Temporary() {
			return false, nil
		}
		return err == nil, err
	})
}

func produce(t *testing.T, topic string, from, n int) {
	t.Helper()
	var records []kafkatest.Record
	for i := from; i < from+n; i++ {
		e := event.Event{ID: event.NewID(), Type: "T", Key: fmt.Sprintf("key-%d", i%40)}
		r := kafkatest.Record{Partition: int32(i % 3), Key: []byte(e.Key), Value: []byte("{}")}
		for _, h := range event.AppendHeaders(nil, &e) {
			r.Headers = append(r.Headers, kafkatest.Header(h))
		}
		records = append(records, r)
	}
	kafkatest.Produce(t, topic, records...)
}

// consume runs a worker until the database has that many effects and the lag is zero. It returns how many events were
// applied although the group had committed them before.
func consume(t *testing.T, db *pgtest.DB, topic string, effects int) (forgotten int64) {
	t.Helper()
	var again atomic.Int64
	h := restored(t, db, inbox.Config{})
	c, err := consumer.New(h, kafkatest.Brokers(t), []string{topic}, consumer.Config{
		Group: topic, Logger: slog.New(slog.DiscardHandler), Observer: consumer.Observer{
			Forgotten: func(f consumer.ForgottenRange) { again.Add(int64(f.Applied)) },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	whileRunning(t, c, func() { awaitEffects(t, db, c, effects) })
	checkAccount(t, db, 0)
	db.Pool.Reset()
	return again.Load()
}

// whileRunning runs a consumer during do.
func whileRunning(t *testing.T, c *consumer.Consumer, do func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	do()
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// restored returns a handler that writes one row for each event.
func restored(t *testing.T, db *pgtest.DB, cfg inbox.Config) inbox.Handler {
	t.Helper()
	cfg.AllowShortWindow, cfg.Logger = true, slog.New(slog.DiscardHandler)
	in, err := inbox.New(db.Pool, "restored", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return in.Each(record)
}

// record is an effect.
func record(ctx context.Context, tx pgx.Tx, e event.Event) error {
	_, err := tx.Exec(ctx, `insert into effect (id) values ($1::text::uuid)`, e.ID.String())
	return err
}

// awaitEffects waits until the database has that many effects and the lag of the three partitions is zero.
func awaitEffects(t *testing.T, db *pgtest.DB, c *consumer.Consumer, effects int) {
	t.Helper()
	pgtest.Await(t, "everything is read and applied", func() (bool, error) {
		var n int
		err := db.Pool.QueryRow(t.Context(), `select count(*) from effect`).Scan(&n)
		lag := int64(0)
		partitions := c.Status().Partitions
		for _, p := range partitions {
			if p.Lag < 0 {
				return false, err // the start is not known yet
			}
			lag += p.Lag
		}
		return n >= effects && len(partitions) == 3 && lag == 0, err
	})
}
