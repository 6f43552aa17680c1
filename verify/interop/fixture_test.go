package interop

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/IBM/sarama"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/watermill"
)

func newMessage(key, payload string) *message.Message {
	m := message.NewMessage(event.NewID().String(), []byte(payload))
	m.Metadata.Set(watermill.MetadataKey, key)
	return m
}

func publishTx(t testing.TB, db *pgtest.DB, topic string, messages ...*message.Message) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		out, err := watermill.NewOutbox(tx, watermill.OutboxConfig{})
		if err != nil {
			return err
		}
		return out.Publish(topic, messages...)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// startRelay runs a relay with the publisher to until stop is called or the test ends.
func startRelay(t testing.TB, db *pgtest.DB, to relay.Publisher) (stop func()) {
	t.Helper()
	r, err := relay.New(db.Pool, to, relay.Config{Schema: db.Schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return start(t, r.Run)
}

// start runs run until stop is called or the test ends.
func start(t testing.TB, run func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx); close(done) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func drain(t testing.TB, db *pgtest.DB, to relay.Publisher) {
	t.Helper()
	stop := startRelay(t, db, to)
	pgtest.AwaitSQL(t, db, "select not exists (select from outbox_event)")
	stop()
}

func newPublisher(t testing.TB) *publisher.Kafka {
	t.Helper()
	to, err := publisher.NewKafka(kafkatest.Brokers(t), publisher.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = to.Close() })
	return to
}

// newWatermillPublisher makes a relay's publisher over watermill-kafka.
func newWatermillPublisher(t testing.TB) *watermill.Publisher {
	t.Helper()
	to, err := overWatermillKafka(kafkatest.Brokers(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = to.Close() })
	return to
}

// overWatermillKafka is shown by docs/watermill.md.
func overWatermillKafka(brokers []string) (*watermill.Publisher, error) {
	config := wkafka.DefaultSaramaSyncPublisherConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll // its default is one broker's word
	pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{
		Brokers: brokers, OverwriteSaramaConfig: config,
		// DefaultMarshaler writes no key, and so keeps no order.
		Marshaler: wkafka.NewWithPartitioningMarshaler(watermill.PartitionKey),
	}, nil)
	if err != nil {
		return nil, err
	}
	return watermill.NewPublisher(pub, watermill.PublisherConfig{Refused: func(_ string, err error) watermill.Meaning {
		switch {
		case errors.Is(err, sarama.ErrMessageSizeTooLarge), errors.Is(err, sarama.ErrInvalidRecord):
			return watermill.RecordRefused
		case errors.Is(err, sarama.ErrTopicAuthorizationFailed), errors.Is(err, sarama.ErrInvalidTopic):
			return watermill.TopicRefused
		}
		return watermill.NotRefused
	}})
}

// subscriber makes a subscriber of watermill-kafka that reads from the beginning.
func subscriber(t testing.TB, group string) *wkafka.Subscriber {
	t.Helper()
	config := wkafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Rebalance.Timeout = 3 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: kafkatest.Brokers(t), Unmarshaler: wkafka.DefaultMarshaler{}, OverwriteSaramaConfig: config,
		ConsumerGroup: group, InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 1},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// origin is the function of docs/watermill.md.
func origin(m *message.Message) (o watermill.Origin, ok bool) {
	ctx := m.Context()
	o.Partition, ok = wkafka.MessagePartitionFromCtx(ctx)
	o.Offset, _ = wkafka.MessagePartitionOffsetFromCtx(ctx)
	o.Key, _ = wkafka.MessageKeyFromCtx(ctx)
	o.Time, _ = wkafka.MessageTimestampFromCtx(ctx)
	return o, ok
}

// startRouter runs a router until stop is called or the test ends.
func startRouter(t testing.TB, add func(r *message.Router)) (stop func()) {
	t.Helper()
	r, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	add(r)
	stop = start(t, func(ctx context.Context) error { return r.Run(ctx) })
	<-r.Running()
	return stop
}

func newInbox(t testing.TB, db *pgtest.DB, consumer string, cfg inbox.Config) *watermill.Inbox {
	t.Helper()
	cfg.Schema, cfg.Window, cfg.AllowShortWindow, cfg.DaysAhead, cfg.Backoff = db.Schema, 24*time.Hour, true, 1,
		time.Millisecond
	in, err := inbox.New(db.Pool, consumer, cfg)
	if err != nil {
		t.Fatal(err)
	}
	w, err := watermill.NewInbox(in, watermill.InboxConfig{Origin: origin})
	if err != nil {
		t.Fatal(err)
	}
	return w
}
