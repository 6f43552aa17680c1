package watermill_test

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/watermill"
)

// The message is published if the order is committed.
func ExampleNewOutbox() {
	_ = func(ctx context.Context, db *pgxpool.Pool, order string) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into orders (id) values ($1)`, order); err != nil {
				return err
			}
			pub, err := watermill.NewOutbox(tx, watermill.OutboxConfig{})
			if err != nil {
				return err
			}
			m := message.NewMessageWithContext(ctx, event.NewID().String(), []byte(order))
			m.Metadata.Set(watermill.MetadataKey, order)
			return pub.Publish("orders", m)
		})
	}
}

// The handler's effect is committed with the message's id. What it publishes, too.
func ExampleNewInbox() {
	_ = func(db *pgxpool.Pool, router *message.Router, sub message.Subscriber) error {
		in, err := inbox.New(db, "revenue", inbox.Config{}) // and in.Run beside the router
		if err != nil {
			return err
		}
		once, err := watermill.NewInbox(in, watermill.InboxConfig{})
		if err != nil {
			return err
		}
		receipts := watermill.NewOutboxFromContext(watermill.OutboxConfig{})
		router.AddConsumerHandler("revenue", "orders", sub, once.Handle(func(m *message.Message, tx pgx.Tx) error {
			if _, err := tx.Exec(m.Context(), `insert into revenue (order_id) values ($1)`,
				string(m.Payload)); err != nil {
				return err
			}
			return receipts.Publish("receipts", message.NewMessageWithContext(m.Context(), event.NewID().String(),
				m.Payload))
		}))
		return nil
	}
}

// Any publisher of Watermill sends what the relay claims.
func ExampleNewPublisher() {
	_ = func(ctx context.Context, db *pgxpool.Pool, yours message.Publisher) error {
		to, err := watermill.NewPublisher(yours, watermill.PublisherConfig{})
		if err != nil {
			return err
		}
		r, err := relay.New(db, to, relay.Config{})
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}
}
