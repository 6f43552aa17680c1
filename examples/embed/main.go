// Command embed is the smallest complete program, which docs/embedding.md and the README quote: a producer, a relay and
// a consumer in one process. It needs a Postgres, a Kafka and the topics "orders" and "receipts".
package main

import (
	"context"
	"net"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

func main() { os.Exit(process.Main(start)) }

func start(ctx context.Context) error {
	env, address := process.NewEnv(""), "127.0.0.1:8080"
	db, kafka := env.Pool(), env.Kafka()
	env.Set("LISTEN", &address)
	if err := env.Err(); err != nil {
		return err
	}
	defer db.Close()
	listener, err := process.Listen(address)
	if err != nil {
		return err
	}
	return run(ctx, db, kafka, listener)
}

// docs:begin

// Order is the payload of the event.
type Order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
}

func run(ctx context.Context, db *pgxpool.Pool, kafka process.Kafka, listener net.Listener) error {
	// 1. The relay: outbox -> Kafka. Run it here, or run the relay binary instead.
	box, err := relay.Open(db, "")
	if err != nil {
		return err
	}
	topics, err := publisher.NewKafka(kafka.Brokers, publisher.Config{Pin: box.Pin, Dial: kafka.Dial, SASL: kafka.SASL})
	if err != nil {
		return err
	}
	defer topics.Close()
	publish, err := relay.New(db, topics, relay.Config{})
	if err != nil {
		return err
	}

	// 2. The consumer: Kafka -> inbox -> effect. The effect and the event's id are committed together.
	in, err := inbox.New(db, "revenue", inbox.Config{})
	if err != nil {
		return err
	}
	revenue := in.Each(inbox.JSON("OrderPlaced", count))
	consume, err := consumer.New(revenue, kafka.Brokers, []string{"orders"},
		consumer.Config{Dial: kafka.Dial, SASL: kafka.SASL})
	if err != nil {
		return err
	}

	// 3. The producer: the row and the event in one transaction.
	produce := func(ctx context.Context) error {
		return placeOrder(ctx, db, Order{ID: event.NewID().String(), Amount: 1999})
	}

	// All of them run until a signal, and drain. Meanwhile /healthz, /readyz and /healthz/moving answer. in.Run creates
	// and drops daily partitions, and applies released events.
	health := process.Health{
		Prepare: func(ctx context.Context) error { return prepare(ctx, db) }, Ready: db.Ping,
		Moving: process.Moving(consume),
	}
	return health.Run(ctx, listener, nil, publish.Run, consume.Run, in.Run, produce)
}

// prepare creates the tables.
func prepare(ctx context.Context, db *pgxpool.Pool) error {
	if err := migrations.Up(ctx, db.Config().ConnConfig, migrations.Options{}); err != nil {
		return err
	}
	_, err := db.Exec(ctx, `create table if not exists orders (id text primary key, amount bigint);
		create table if not exists revenue (one bool primary key default true, total bigint)`)
	return err
}

// placeOrder commits the order and its event together.
func placeOrder(ctx context.Context, db *pgxpool.Pool, o Order) error {
	e, err := event.NewJSON(event.Event{Topic: "orders", Key: o.ID, Type: "OrderPlaced"}, o)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into orders (id, amount) values ($1, $2)`, o.ID, o.Amount); err != nil {
			return err
		}
		return outbox.Append(ctx, tx, e)
	})
}

// count is the effect: tx also records the event's id, which alone keeps an order from being added twice: a sum has no
// business key. It appends an event of its own, whose id is derived from its cause.
func count(ctx context.Context, tx pgx.Tx, e event.Event, o Order) error {
	if _, err := tx.Exec(ctx, `insert into revenue (total) values ($1)
		on conflict (one) do update set total = revenue.total + excluded.total`, o.Amount); err != nil {
		return err
	}
	receipt, err := event.NewJSON(event.Event{Topic: "receipts", Key: o.ID, Type: "ReceiptDue"}, o)
	if err != nil {
		return err
	}
	return outbox.Append(ctx, tx, event.Derive(e, "receipt", receipt))
}

// docs:end
