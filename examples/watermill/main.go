// Command watermill uses effectonce below Watermill. A producer publishes orders through the outbox, in the transaction
// that inserts them. A router's handler runs in the inbox, once for each order, and publishes a receipt in the same
// transaction. It needs a Postgres, a Kafka and the topics "shop.orders" and "shop.receipts".
//
//	DATABASE_URL=postgres://app@localhost/app KAFKA_BROKERS=localhost:9092 go run .
package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"

	"github.com/IBM/sarama"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/watermill"
)

func main() {
	os.Exit(process.Main(func(ctx context.Context) error {
		return run(ctx, os.Getenv("DATABASE_URL"), strings.Split(os.Getenv("KAFKA_BROKERS"), ","))
	}))
}

// order is the payload of a message of the topic "shop.orders".
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Amount   int64  `json:"amount"`
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
	if _, err := db.Exec(ctx, `create table if not exists orders (id text primary key, customer text, amount bigint);
		create table if not exists revenue (one bool primary key default true, total bigint)`); err != nil {
		return err
	}
	box, err := relay.Open(db, "")
	if err != nil {
		return err
	}
	kafka, err := publisher.NewKafka(brokers, publisher.Config{Pin: box.Pin})
	if err != nil {
		return err
	}
	defer kafka.Close()
	publish, err := relay.New(db, kafka, relay.Config{})
	if err != nil {
		return err
	}
	in, err := inbox.New(db, "revenue", inbox.Config{})
	if err != nil {
		return err
	}
	router, err := newRouter(in, brokers)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return publish.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) }) // creates and drops the inbox's daily partitions, applies released events
	g.Go(func() error { return router.Run(ctx) })
	g.Go(func() error { return placeOrder(ctx, db, order{event.NewID().String(), "ada", 1999}) })
	return g.Wait()
}

// producer:begin

// placeOrder inserts an order and publishes it in one transaction.
func placeOrder(ctx context.Context, db *pgxpool.Pool, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		const insert = "insert into orders (id, customer, amount) values ($1, $2, $3)"
		if _, err := tx.Exec(ctx, insert, o.ID, o.Customer, o.Amount); err != nil {
			return err
		}
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		m := message.NewMessageWithContext(ctx, event.NewID().String(), payload)
		m.Metadata.Set(watermill.MetadataKey, o.Customer) // a customer's messages keep their order
		m.Metadata.Set("name", "OrderPlaced")
		pub, err := watermill.NewOutbox(tx, watermill.OutboxConfig{})
		if err != nil {
			return err
		}
		return pub.Publish("shop.orders", m)
	})
}

// producer:end

// router:begin

// newRouter makes a router whose handler runs in the inbox.
func newRouter(in *inbox.Inbox, brokers []string) (*message.Router, error) {
	config := wkafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: in.Consumer(), Unmarshaler: wkafka.DefaultMarshaler{},
		OverwriteSaramaConfig: config,
	}, nil)
	if err != nil {
		return nil, err
	}
	once, err := watermill.NewInbox(in, watermill.InboxConfig{Origin: origin})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		return nil, err
	}
	receipts := watermill.NewOutboxFromContext(watermill.OutboxConfig{})
	router.AddConsumerHandler("revenue", "shop.orders", sub, once.Handle(func(m *message.Message, tx pgx.Tx) error {
		var o order
		if err := json.Unmarshal(m.Payload, &o); err != nil {
			return outcome.Terminal(inbox.CodeMalformed, err) // parked: a retry would not help
		}
		if _, err := tx.Exec(m.Context(), `insert into revenue (total) values ($1)
			on conflict (one) do update set total = revenue.total + excluded.total`, o.Amount); err != nil {
			return err
		}
		receipt := message.NewMessageWithContext(m.Context(), event.NewID().String(), m.Payload)
		receipt.Metadata.Set(watermill.MetadataKey, o.Customer)
		receipt.Metadata.Set("name", "ReceiptDue")
		return receipts.Publish("shop.receipts", receipt) // in tx
	}))
	return router, nil
}

// origin returns the partition, offset, key and time that watermill-kafka puts into a message's context.
func origin(m *message.Message) (o watermill.Origin, ok bool) {
	ctx := m.Context()
	o.Partition, ok = wkafka.MessagePartitionFromCtx(ctx)
	o.Offset, _ = wkafka.MessagePartitionOffsetFromCtx(ctx)
	o.Key, _ = wkafka.MessageKeyFromCtx(ctx)
	o.Time, _ = wkafka.MessageTimestampFromCtx(ctx)
	return o, ok
}

// router:end
