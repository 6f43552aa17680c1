package foreign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// bookOrder is a producer before the migration.
func bookOrder(ctx context.Context, db *pgxpool.Pool, topic string, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders (id, customer) values ($1, $2)", o.ID, o.Customer); err != nil {
			return err
		}
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "insert into outbox (topic, key, type, payload) values ($1, $2, 'OrderPlaced', $3)",
			topic, o.Customer, payload)
		return err
	})
}

// bookOrderNow is one after it.
func bookOrderNow(ctx context.Context, db *pgxpool.Pool, topic string, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders (id, customer) values ($1, $2)", o.ID, o.Customer); err != nil {
			return err
		}
		e, err := event.NewJSON(event.Event{Topic: topic, Key: o.Customer, Type: "OrderPlaced"}, o)
		if err != nil {
			return err
		}
		e.Headers = map[string]string{"message-id": e.ID.String()} // for programs that read the loop's header
		return outbox.Append(ctx, tx, e)
	})
}

// poll is one pass of a polling loop: it selects rows, sends them and marks them as sent. killed makes it die before
// its commit.
func poll(ctx context.Context, db *pgxpool.Pool, to *kafka.Writer, most int, killed bool) (n int, err error) {
	errKilled := errors.New("killed")
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "select id, message_id, topic, key, payload from outbox where sent_at is null "+
			"order by id limit $1 for update skip locked", most)
		if err != nil {
			return err
		}
		var id int64
		var message uuid.UUID
		var topic, key string
		var payload []byte
		var ids []int64
		var messages []kafka.Message
		_, err = pgx.ForEachRow(rows, []any{&id, &message, &topic, &key, &payload}, func() error {
			ids = append(ids, id)
			messages = append(messages, kafka.Message{
				Topic: topic, Key: []byte(key), Value: payload,
				Headers: []kafka.Header{{Key: "message-id", Value: []byte(message.String())}},
			})
			return nil
		})
		if n = len(ids); err != nil || n == 0 {
			return err
		}
		if err := to.WriteMessages(ctx, messages...); err != nil {
			return err
		}
		if killed {
			return errKilled
		}
		_, err = tx.Exec(ctx, "update outbox set sent_at = now() where id = any ($1)", ids)
		return err
	})
	if errors.Is(err, errKilled) {
		err = nil
	}
	return n, err
}

// TestMigrateFromAPollingOutbox follows docs/migrate/polling-outbox.md. The relay sends the rows that the loop has not
// sent, and those that it has sent and not marked. Each order is applied once, in the order of its key, and each key
// keeps its partition.
func TestMigrateFromAPollingOutbox(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	p := readPage(t, "polling-outbox.md")
	const table, cut, end = 0, 1, 2 // the pieces of SQL
	db, brokers, topic := pgtest.NewDatabase(t, migrations.Outbox, migrations.Inbox), kafkatest.Brokers(t),
		kafkatest.Topic(t, partitions)
	db.Exec(t, "create table orders (id text primary key, customer text not null)")
	db.Exec(t, effects)
	p.run(t, db, table)
	place := func(do func(context.Context, *pgxpool.Pool, string, order) error, from, to int) {
		t.Helper()
		for n := from; n < to; n++ {
			for c := range customers {
				if err := do(t.Context(), db.Pool, topic, order{
					event.NewID().String(), fmt.Sprint("c", c),
					n,
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	in, err := inbox.New(db.Pool, "stock", inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(in.Each(reserve), brokers, []string{topic},
		consumer.Config{Group: topic, IDHeader: "message-id", Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	start(t, c.Run)

	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	to := &kafka.Writer{
		Addr: kafka.TCP(brokers...), Balancer: kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll,
		BatchTimeout: 1, ReadTimeout: stall, WriteTimeout: stall, Transport: transport,
	}
	defer func() { _ = to.Close() }()
	place(bookOrder, 0, 10)
	for sent := 1; sent > 0; {
		if sent, err = poll(t.Context(), db.Pool, to, 20, false); err != nil {
			t.Fatal(err)
		}
	}
	place(bookOrder, 10, 20)
	if n, err := poll(t.Context(), db.Pool, to, 3*customers, true); err != nil || n != 3*customers {
		t.Fatal(n, err)
	}
	p.run(t, db, cut)
	if n := pgtest.One[int](t, db, "select count(*) from outbox_event"); n != 10*customers {
		t.Fatalf("%d events wait for the relay", n)
	}
	if _, err := poll(t.Context(), db.Pool, to, 20, false); err == nil {
		t.Error("a loop that was left running can still send")
	}
	place(bookOrder, 20, 25)
	startRelay(t, db, brokers)
	for n := 25; n < 35; n += 2 { // both kinds of producers
		place(bookOrder, n, n+1)
		place(bookOrderNow, n+1, n+2)
	}
	p.run(t, db, end)
	place(bookOrderNow, 35, 40)
	records := awaitEffects(t, db, brokers, topic, topic, 40*customers)
	if records != 43*customers {
		t.Errorf("%d records of %d orders, %d of which were sent and not marked", records, 40*customers, 3*customers)
	}
	checkOrder(t, db)
	partition := map[string]int32{}
	for _, r := range kafkatest.ReadAll(t, topic) {
		if at, known := partition[string(r.Key)]; known && at != r.Partition {
			t.Errorf("customer %s was in partition %d and is in %d", r.Key, at, r.Partition)
		}
		partition[string(r.Key)] = r.Partition
		if r.Get("message-id") == "" {
			t.Errorf("record %+v lacks the loop's header", r)
		}
	}
}
