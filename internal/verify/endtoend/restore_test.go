package endtoend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestP10RestoredConsumer: a consumer's database is restored from a backup, but the group's offsets are not. Events
// that were applied after the backup are applied again, earlier ones are not, and the observer reports them. A start at
// the group's offsets would lose them.
func TestP10RestoredConsumer(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]consumer.BehindPolicy{
		"read again":                        consumer.BehindRepeat,
		"ignored, so that effects are lost": consumer.BehindIgnore,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, topic := pgtest.NewDatabase(t, migrations.Inbox), kafkatest.Topic(t, 3)
			db.Exec(t, `create table effect (id uuid primary key, at bigint generated always as identity)`)
			produce(t, topic, 0, 300)
			consume(t, db, topic, behind, 300)
			backup := db.Copy(t)
			produce(t, topic, 300, 300)
			consume(t, db, topic, behind, 600)

			produce(t, topic, 600, 50)
			want, forgotten := 650, 300
			if behind == consumer.BehindIgnore {
				want, forgotten = 350, 0
			}
			if n := consume(t, backup, topic, behind, want); n != int64(forgotten) {
				t.Errorf("%d committed events were applied again, want %d", n, forgotten)
			}
			if n := pgtest.One[int](t, backup, `select count(*) from effect`); n != want {
				t.Errorf("%d effects, want %d", n, want)
			}
			if n := consume(t, backup, topic, behind, want); n != 0 {
				t.Errorf("%d committed events were applied a third time", n)
			}
		})
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
	consume(t, db, topic, consumer.BehindRepeat, 300)
	produce(t, topic, 300, 50)
	consume(t, db, topic, consumer.BehindRepeat, 350)
	produce(t, topic, 350, 50)
	if n := consume(t, backup, topic, consumer.BehindRepeat, 400); n != 350 {
		t.Errorf("%d committed events were applied again, want 350", n)
	}
	if n := consume(t, backup, topic, consumer.BehindRepeat, 400); n != 0 {
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
	consume(t, db, topic, consumer.BehindRepeat, 60)
	if n := pgtest.One[int](t, db, `select count(*) from effect`); n != 60 {
		t.Errorf("%d effects, want those of the 60 events behind the group's offsets", n)
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
func consume(t *testing.T, db *pgtest.DB, topic string, behind consumer.BehindPolicy, effects int) (forgotten int64) {
	t.Helper()
	in, err := inbox.New(db.Pool, "restored",
		inbox.Config{AllowShortWindow: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var again atomic.Int64
	h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		_, err := tx.Exec(ctx, `insert into effect (id) values ($1::text::uuid)`, e.ID.String())
		return err
	})
	var c *consumer.Consumer
	c, err = consumer.New(h, kafkatest.Brokers(t), []string{topic}, consumer.Config{
		Group: topic, OnBehind: behind, Logger: slog.New(slog.DiscardHandler), Observer: consumer.Observer{
			Forgotten: func(f consumer.ForgottenRange) { again.Add(int64(f.Applied)) },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	pgtest.Await(t, "everything is read and applied", func() (bool, error) {
		var n int
		err := db.Pool.QueryRow(ctx, `select count(*) from effect`).Scan(&n)
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
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	db.Pool.Reset()
	return again.Load()
}
