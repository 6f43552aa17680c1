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

// outbox is a message.Publisher that commits each call, as the business transactions of a program do.
type outbox struct {
	db     *pgtest.DB
	closed bool
}

func (o *outbox) Publish(topic string, messages ...*message.Message) error {
	if o.closed {
		return errors.New("closed")
	}
	// The messages' own contexts are for their traces; the suite cancels some.
	return pgx.BeginFunc(context.Background(), o.db.Pool, func(tx pgx.Tx) error {
		out, err := watermill.NewOutbox(tx, watermill.OutboxConfig{Key: kind})
		if err != nil {
			return err
		}
		return out.Publish(topic, messages...)
	})
}

// kind is what the suite wants in order: its messages of one payload.
func kind(_ string, m *message.Message) (string, error) { return "kind " + string(m.Payload), nil }

func (o *outbox) Close() error { o.closed = true; return nil }

// TestPubSubSuite is Watermill's own exam of a publisher and a subscriber: what is published goes through the outbox
// and a relay to Kafka, by our publisher and by watermill-kafka's, and comes back through a subscriber of
// watermill-kafka.
//
// Not declared: ExactlyOnceDelivery (a relay may publish twice after a fault; the inbox is what removes that).
func TestPubSubSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	t.Parallel()
	kafkatest.RequireReal(t)
	for name, to := range map[string]func(testing.TB) relay.Publisher{
		"ours":            func(t testing.TB) relay.Publisher { return ourKafka(t) },
		"watermill-kafka": func(t testing.TB) relay.Publisher { return theirKafka(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, migrations.Outbox)
			relaying(t, db, to(t))
			inGroup := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
				return &outbox{db: db}, subscriber(t, group)
			}
			tests.TestPubSub(t, tests.Features{
				ConsumerGroups: true, GuaranteedOrder: true, Persistent: true, ForceShort: true,
			}, func(t *testing.T) (message.Publisher, message.Subscriber) { return inGroup(t, "suite "+name) }, inGroup)
		})
	}
}
