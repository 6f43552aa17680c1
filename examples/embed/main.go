// Command embed is the smallest complete program, which docs/embedding.md and the README quote: a producer, a relay and
// a consumer in one process. It needs a Postgres, a Kafka and the topics "orders" and "receipts".
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), strings.Split(os.Getenv("KAFKA_BROKERS"), ",")); err != nil {
		log.Fatal(err)
	}
}

// docs:begin

// Order is the payload of the event.
type Order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
}

func run(ctx context.Context, databaseURL string, brokers []string) error {
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := migrations.Up(ctx, db.Config().ConnConfig, migrations.Options{}); err != nil {
		return err
	}
	if _, err := db.Exec(ctx, `create table if not exists orders (id text primary key, amount bigint);
		create table if not exists revenue (one bool primary key default true, total bigint)`); err != nil {
		return err
	}

	// 1. The relay: outbox -> Kafka. Run it here, or run the relay binary instead.
	pin, err := relay.Pins(db, "")
	if err != nil {
		return err
	}
	kafka, err := publisher.NewKafka(brokers, publisher.Config{Pin: pin})
	if err != nil {
		return err
	}
	defer kafka.Close()
	publish, err := relay.New(db, kafka, relay.Config{})
	if err != nil {
		return err
	}

	// 2. The consumer: Kafka -> inbox -> effect. The effect and the event's id are committed together.
	in, err := inbox.New(db, "revenue", inbox.Config{})
	if err != nil {
		return err
	}
	revenue := in.Each(inbox.JSON("OrderPlaced", count))
	consume, err := consumer.New(revenue, brokers, []string{"orders"}, consumer.Config{})
	if err != nil {
		return err
	}

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return publish.Run(ctx) })
	g.Go(func() error { return consume.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) }) // creates and drops daily partitions, applies released events

	// 3. The producer: the row and the event in one transaction.
	g.Go(func() error { return placeOrder(ctx, db, Order{ID: event.NewID().String(), Amount: 1999}) })
	return g.Wait()
}

// placeOrder commits the order and its event together.
func placeOrder(ctx context.Context, db *pgxpool.Pool, o Order) error {
	e, err := event.JSON("orders", o.ID, "OrderPlaced", o)
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

// count is the effect: tx also records the event's id. It appends an event of its own, whose id is derived from its
// cause.
func count(ctx context.Context, tx pgx.Tx, e event.Event, o Order) error {
	if _, err := tx.Exec(ctx, `insert into revenue (total) values ($1)
		on conflict (one) do update set total = revenue.total + excluded.total`, o.Amount); err != nil {
		return err
	}
	receipt, err := event.JSON("receipts", o.ID, "ReceiptDue", o)
	if err != nil {
		return err
	}
	return outbox.Append(ctx, tx, event.Derive(e, "receipt", receipt))
}

// docs:end
