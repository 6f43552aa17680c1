package interop

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/watermill"
)

// outbox is a message.Publisher that runs each call in a transaction.
type outbox struct {
	db     *pgtest.DB
	closed bool
}

func (o *outbox) Publish(topic string, messages ...*message.Message) error {
	if o.closed {
		return errors.New("closed")
	}
	// Not the messages' contexts: the suite cancels some.
	return pgx.BeginFunc(context.Background(), o.db.Pool, func(tx pgx.Tx) error {
		out, err := watermill.NewOutbox(tx, watermill.OutboxConfig{Key: kind})
		if err != nil {
			return err
		}
		return out.Publish(topic, messages...)
	})
}

// kind is the key: the suite requires the order of messages with the same payload.
func kind(_ string, m *message.Message) (string, error) { return "kind " + string(m.Payload), nil }

func (o *outbox) Close() error { o.closed = true; return nil }

// TestPubSubSuite runs Watermill's own test suite for publishers and subscribers: messages go through the outbox and a
// relay to Kafka, by our publisher and by watermill-kafka's, and are read by a subscriber of watermill-kafka.
//
// It does not declare ExactlyOnceDelivery: a relay may publish twice after a fault, and only the inbox deduplicates.
func TestPubSubSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	t.Parallel()
	kafkatest.RequireReal(t)
	for name, to := range map[string]func(testing.TB) relay.Publisher{
		"publisher":       func(t testing.TB) relay.Publisher { return newPublisher(t) },
		"watermill-kafka": func(t testing.TB) relay.Publisher { return newWatermillPublisher(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, migrations.Outbox)
			startRelay(t, db, to(t))
			inGroup := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
				return &outbox{db: db}, subscriber(t, group)
			}
			tests.TestPubSub(t, tests.Features{
				ConsumerGroups: true, GuaranteedOrder: true, Persistent: true, ForceShort: true,
			}, func(t *testing.T) (message.Publisher, message.Subscriber) { return inGroup(t, "suite "+name) }, inGroup)
		})
	}
}
