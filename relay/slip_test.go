package relay_test

import (
	"os"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/publisher"
)

// TestP4ManyKeysOfRefusedTopic: a wrong access list denies a topic with very many keys for a while. No key is parked,
// another topic continues, and afterwards all events are published once, in order, without an operator.
// EFFECTONCE_TEST_SLIP=1m makes the denial last longer than it takes to hold all events.
func TestP4ManyKeysOfRefusedTopic(t *testing.T) {
	if testing.Short() {
		t.Skip("very many keys on a real broker")
	}
	t.Parallel()
	kafkatest.RequireReal(t)
	topic, other := kafkatest.Topic(t, 8), kafkatest.Topic(t, 3)
	db := outboxDB(t)
	keys := draw.Size(20_000, 100_000)
	allow := kafkatest.Deny(t, kafkatest.Brokers(t), topic)
	stop := startRelay(t, newRelay(t, db, toKafka(t, db, kafkatest.Brokers(t), publisher.Config{}), config()))
	appendTo(t, db, topic, keys, keys, 0)
	appendTo(t, db, other, 500, 50, 0)
	awaitDrained(t, db)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_held`); n != keys {
		t.Errorf("%d events are held, want %d", n, keys)
	}
	published(t, kafkatest.Brokers(t), other, 50, 10)
	if slip, err := time.ParseDuration(os.Getenv("EFFECTONCE_TEST_SLIP")); err == nil {
		<-time.After(slip)
	}
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_parked) + (select count(*) from outbox_parked_key)`); n != 0 {
		t.Errorf("%d events or keys are parked", n)
	}
	allow()
	began := time.Now()
	awaitEmpty(t, db)
	t.Logf("published %v after the end of the denial", time.Since(began).Round(10*time.Millisecond))
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	published(t, kafkatest.Brokers(t), topic, keys, 1)
}
