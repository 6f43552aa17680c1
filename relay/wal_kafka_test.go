package relay_test

import (
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// TestWALToKafka: on a real broker, with a relay that dies, one that takes over, and a third that polls: the first
// occurrences of each key are in order, and a consumer in watermark mode applies each event once.
func TestWALToKafka(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	brokers := kafkatest.Brokers(t)
	topic := kafkatest.Topic(t, 5, nil)
	db, _ := walDB(t)
	const keys, each, parts = 40, 25, 12
	appendTo(t, db, topic, keys*each, keys, 0)
	proxy := pgtest.NewProxy(t, db.URL)
	first, err := relay.New(poolAt(t, proxy.URL()), toKafka(t, db, brokers, publisher.Config{}), config(fromWAL))
	if err != nil {
		t.Fatal(err)
	}
	stopFirst := startRelay(t, first)
	awaitStreaming(t, db)
	stopSecond := startRelay(t, newRelay(t, db, toKafka(t, db, brokers, publisher.Config{}),
		config(fromWAL, func(c *relay.Config) { c.Name = "second" })))
	pgtest.AwaitSQL(t, db, `select count(*) = 2 from relay_member`)
	for part := 1; part < parts; part++ {
		appendTo(t, db, topic, keys*each, keys, part*each)
		switch part {
		case 3:
			proxy.CutAll()
		case 5:
			proxy.Refuse(true)
			proxy.CutAll()
		case 7:
			awaitHeir(t, db, "second", drained)
			if n := pgtest.One[int](t, db, `select count(*) from outbox_streamed`); n != 32 {
				t.Errorf("%d lanes come from the WAL after the take-over", n)
			}
		case 9:
			if err := stopSecond(); err != nil {
				t.Fatal(err)
			}
			_ = stopFirst()
			stopSecond = startRelay(t, newRelay(t, db, toKafka(t, db, brokers, publisher.Config{}), config()))
		}
	}
	awaitDrained(t, db)
	if err := stopSecond(); err != nil {
		t.Fatal(err)
	}
	published(t, brokers, topic, keys, parts*each)
	if n := pgtest.One[int](t, db, `select incarnation from outbox_meta`); n != 1 {
		t.Errorf("incarnation %d: a new numbering was begun without need", n)
	}
}
