package interop

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/watermill"
)

type (
	placedOrder struct{ Order string }
	dueReceipt  struct{ Order string }
)

// TestCQRS: the inbox is a middleware of the router, below an event handler of Watermill's package cqrs. Events that
// the handler publishes on its bus are committed with its effect, under the event's name.
func TestCQRS(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox, migrations.Outbox)
	db.Exec(t, "create table effect (what text)")
	w := newInbox(t, db, "receipts", inbox.Config{})
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	bus, err := cqrs.NewEventBusWithConfig(watermill.NewOutboxFromContext(watermill.OutboxConfig{}),
		cqrs.EventBusConfig{
			GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
				return p.EventName,
					nil
			},
			Marshaler: marshaler,
		})
	if err != nil {
		t.Fatal(err)
	}
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
	var runs atomic.Int32
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(w.Middleware)
		processor, err := cqrs.NewEventProcessorWithConfig(r, cqrs.EventProcessorConfig{
			GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
				return p.EventName, nil
			},
			SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return channel, nil
			},
			Marshaler: marshaler,
		})
		if err != nil {
			t.Fatal(err)
		}
		err = processor.AddHandlers(cqrs.NewEventHandler("receipts", func(ctx context.Context, e *placedOrder) error {
			tx, err := watermill.Tx(ctx)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "insert into effect (what) values ($1)", e.Order); err != nil {
				return err
			}
			if err := bus.Publish(ctx, dueReceipt(*e)); err != nil {
				return err
			}
			if runs.Add(1) == 1 {
				return errors.New("the first attempt fails")
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
	})
	m, err := marshaler.Marshal(placedOrder{"o1"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := channel.Publish("placedOrder", m); err != nil { // until it was acknowledged
			t.Fatal(err)
		}
	}
	if got := pgtest.One[string](t, db, "select string_agg(what, ' ') from effect"); got != "o1" || runs.Load() != 2 {
		t.Errorf("effects %q after %d runs", got, runs.Load())
	}
	if got := pgtest.One[string](t, db, "select string_agg(topic || ' ' || type || ' ' || convert_from(payload, "+
		"'UTF8'), ', ') from outbox_event"); got != `dueReceipt dueReceipt {"Order":"o1"}` {
		t.Errorf("appended %q", got)
	}
}
