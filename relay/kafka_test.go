package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// toKafka makes a publisher with the options of cmd/relay, but for a Timeout that a busy broker does not overrun.
func toKafka(t *testing.T, db *pgtest.DB, brokers []string, cfg publisher.Config) *publisher.Kafka {
	t.Helper()
	box, err := relay.Open(db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Pin, cfg.Logger, cfg.Timeout = box.Pin, quiet(), time.Minute
	to, err := publisher.NewKafka(brokers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = to.Close() })
	return to
}

// published reads a topic and checks that the first occurrences of each key are 0, 1, 2, ... and that a consumer in
// watermark mode applies each event once.
func published(t *testing.T, brokers []string, topic string, keys, each int) {
	t.Helper()
	next, seen := map[string]int{}, map[string]bool{}
	highest, applied := map[string]int{}, map[string]int{}
	for _, r := range kafkatest.ReadAllAt(t, brokers, topic) {
		id, key := r.Get("ce_id"), string(r.Key)
		var seq int
		_, _ = fmt.Sscan(r.Get("ce_laneseq"), &seq)
		if mark := fmt.Sprint(r.Partition, r.Get("ce_lane"), r.Get("ce_epoch")); seq > highest[mark] {
			highest[mark] = seq
			applied[id]++
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		if string(r.Value) != fmt.Sprint(next[key]) {
			t.Fatalf("key %s: %s first occurs where %d was due (partition %d offset %d)", key, r.Value, next[key],
				r.Partition, r.Offset)
		}
		next[key]++
	}
	for k := range keys {
		if key := fmt.Sprint("k", k); next[key] != each {
			t.Errorf("key %s: %d events, want %d", key, next[key], each)
		}
	}
	for id := range seen {
		if applied[id] != 1 {
			t.Errorf("event %s is applied %d times by a consumer in watermark mode", id, applied[id])
		}
	}
}

// TestP4HoldWithRealBrokers: one of two brokers, whose partitions have no replicas, dies. Its partitions are held, and
// the others continue; when it is back, all events are in order.
func TestP4HoldWithRealBrokers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two brokers")
	}
	t.Parallel()
	cluster := kafkatest.NewCluster(t, 2)
	const topic, keys, each = "hold", 200, 20
	client := &kafka.Client{Addr: kafka.TCP(cluster.Brokers()...), Transport: &kafka.Transport{}}
	defer client.Transport.(*kafka.Transport).CloseIdleConnections()
	made, err := client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 8, ReplicationFactor: 1}},
	})
	if err == nil {
		err = made.Errors[topic]
	}
	if err != nil {
		t.Fatal(err)
	}
	kafkatest.AwaitLeaders(t, cluster.Brokers(), topic, 8)
	db := outboxDB(t)
	appendTo(t, db, topic, keys*each, keys, 0)
	to := toKafka(t, db, cluster.Brokers(), publisher.Config{})
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) { c.HoldAfter = 200 * time.Millisecond })))
	awaitDrained(t, db)

	cluster.Kill(1)
	appendTo(t, db, topic, keys*each, keys, each)
	awaitDrained(t, db)
	held := pgtest.One[int](t, db, `select count(*) from outbox_held`)
	if held == 0 || held >= keys*each {
		t.Errorf("%d of %d events are held while half of the partitions are down", held, keys*each)
	}
	appendTo(t, db, topic, keys*each, keys, 2*each)
	awaitDrained(t, db) // those of the live partitions are published
	cluster.Start(t, 1)
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	published(t, cluster.Brokers(), topic, keys, 3*each)
}

// TestP4RefusedByRealBroker: a record is too large for its topic, and an access list refuses a topic for a while.
func TestP4RefusedByRealBroker(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 3, map[string]string{"max.message.bytes": "20000"})
	db := outboxDB(t)
	o := newOperator(t, db)
	const keys, each = 50, 10
	appendTo(t, db, topic, keys*each, keys, 0)
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select $1, 'k3', 'T',
			convert_to(string_agg(md5(g::text), ''), 'UTF8') from generate_series(1, 2000) g`, topic)
	appendTo(t, db, topic, keys*each, keys, each)
	stop := startRelay(t, newRelay(t, db, toKafka(t, db, kafkatest.Brokers(t), publisher.Config{}), config()))
	awaitNoneHeld(t, db)
	list, err := o.Parked(t.Context(), admin.ParkedFilter{Code: "MESSAGE_TOO_LARGE"})
	if err != nil || len(list) != 1 || list[0].MaybePublished || list[0].Key != "k3" {
		t.Fatalf("parked %+v: %v", list, err)
	}
	if _, err := o.DiscardEvent(t.Context(), list[0].ID, "too large for anybody"); err != nil {
		t.Fatal(err)
	}
	if _, err := o.ReleaseKey(t.Context(), "", topic, "k3", admin.Seen{}, "its head is gone"); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, db)
	allow := kafkatest.Deny(t, kafkatest.Brokers(t), topic)
	appendTo(t, db, topic, keys*each, keys, 2*each)
	awaitDrained(t, db)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_held where partition = -1`); n != keys*each {
		t.Errorf("%d events are held for the topic, want %d", n, keys*each)
	}
	allow()
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	published(t, kafkatest.Brokers(t), topic, keys, 3*each)
}
