package main

import (
	"io"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// P10: a relay on a restored database publishes no event, and names the command to run.
func TestP10RestoredOutboxIsNotPublished(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 3)
	env := settings(db, kafkatest.Brokers(t)...)
	relay := inProcess(t, env)
	fill(t, db, topic, 500)
	awaitDrained(t, db)
	relay.signal()
	if code := relay.end(); code != codeOK {
		t.Fatalf("exit code %d: %s", code, relay.output())
	}
	// A relay that finds its own numbers continues.
	again := inProcess(t, env)
	fill(t, db, topic, 50)
	awaitDrained(t, db)
	again.signal()
	if code := again.end(); code != codeOK {
		t.Fatalf("exit code %d: %s", code, again.output())
	}

	fill(t, db, topic, 50)
	for _, older := range []string{
		`update outbox_lane set lease_until = now() - interval '1 day'`, // as in the backup of last night
		`update outbox_lane set lease_until = now(), reserved_seq = 0`,  // as in one from before the first event
	} {
		db.Exec(t, older)
		code, _, stderr := command(t, env, "run")
		if code != codeFailed || !strings.Contains(stderr, "relay fence") ||
			!strings.Contains(stderr, "restored from a backup") {
			t.Errorf("%s: exit code %d: %s", older, code, stderr)
		}
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 50 {
		t.Errorf("%d events are left of 50: some were published", n)
	}
	if n := len(kafkatest.ReadAll(t, topic)); n != 550 {
		t.Errorf("%d records in Kafka, want the 550 from before", n)
	}
}

// TestRecreatedTopicIsReported: the outbox has published to the topic, and the topic is empty.
func TestRecreatedTopicIsReported(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 3)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ($1, 3)`, topic)
	r := inProcess(t, settings(db, kafkatest.Brokers(t)...))
	fill(t, db, topic, 10)
	awaitDrained(t, db)
	r.signal()
	if code := r.end(); code != codeOK || !strings.Contains(r.output(), "nothing was ever written to a topic") {
		t.Errorf("exit code %d: %s", code, r.output())
	}
}

// doorTo forwards connections to a broker once it is open, and closes them at once before.
func doorTo(t *testing.T, broker string) (address string, open func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var opened atomic.Bool
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", broker)
			if err != nil || !opened.Load() {
				_ = conn.Close()
			}
			if err != nil {
				continue
			}
			go func() { _, _ = io.Copy(to, conn); _ = to.Close() }()
			go func() { _, _ = io.Copy(conn, to); _ = conn.Close() }()
		}
	}()
	return l.Addr().String(), func() { opened.Store(true) }
}

// TestRestoreCheckWaitsForKafka: database and Kafka come back together, and the relay is there first.
func TestRestoreCheckWaitsForKafka(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 1)
	env := settings(db, kafkatest.Brokers(t)...)
	before := inProcess(t, env)
	fill(t, db, topic, 5)
	awaitDrained(t, db)
	before.signal()
	before.end()
	db.Exec(t, `update outbox_lane set reserved_seq = 0`) // as in a backup from before the first event
	fill(t, db, topic, 5)

	address, open := doorTo(t, kafkatest.Brokers(t)[0])
	relay := inProcess(t, env.with("RELAY_KAFKA_BROKERS", address, "RELAY_STALLED_AFTER", "1ms"))
	for _, page := range []string{"/readyz", "/healthz/moving"} {
		pgtest.Await(t, page+" names the check", func() (bool, error) {
			status, says, err := relay.get(page)
			return status == 503 && strings.Contains(says, "after a restore"), err
		})
	}
	open()
	if code := relay.end(); code != codeFailed || !strings.Contains(relay.output(), "relay fence") {
		t.Errorf("exit code %d: %s", code, relay.output())
	}
	if n := len(kafkatest.ReadAll(t, topic)); n != 5 {
		t.Errorf("%d records in Kafka, want the 5 from before", n)
	}
}

// TestTopicThatARestoredOutboxDoesNotKnow: the outbox has published to a topic for the first time after the backup.
func TestTopicThatARestoredOutboxDoesNotKnow(t *testing.T) {
	t.Parallel()
	db, old, recent := outboxDB(t), kafkatest.Topic(t, 1), kafkatest.Topic(t, 1)
	env := settings(db, kafkatest.Brokers(t)...).with("RELAY_DRAIN_TIMEOUT", "1s")
	publish := func(topic string) {
		relay := inProcess(t, env)
		fill(t, db, topic, 5)
		awaitDrained(t, db)
		relay.signal()
		if code := relay.end(); code != codeOK {
			t.Fatalf("exit code %d: %s", code, relay.output())
		}
	}
	publish(old)
	db.Exec(t, `create table backup as select lane, reserved_seq from outbox_lane`)
	publish(recent)
	db.Exec(t, `update outbox_lane l set reserved_seq = b.reserved_seq from backup b where b.lane = l.lane`)
	db.Exec(t, `delete from outbox_topic where topic = $1`, recent)

	started := inProcess(t, env) // before the topic has events
	started.awaitLine(regexp.MustCompile(`"msg":"(running)"`))
	fill(t, db, recent, 5)
	for _, relay := range []*instance{started, inProcess(t, env)} {
		if code := relay.end(); code != codeFailed || !strings.Contains(relay.output(), "relay fence") {
			t.Errorf("exit code %d: %s", code, relay.output())
		}
	}
	if n := len(kafkatest.ReadAll(t, recent)); n != 5 {
		t.Errorf("%d records in Kafka, want the 5 from before", n)
	}
	list := doctor.Restored(t.Context(), doctor.Subject{DB: db.Pool, Schema: db.Schema, Kafka: connTo(t)})
	if len(list) != 1 || list[0].Severity != doctor.Fail {
		t.Errorf("%+v", list)
	}
	if code, _, stderr := command(t, env, "fence", "--reason", "restored"); code != codeOK {
		t.Fatal(stderr)
	}
	publish(recent)
	if n := len(kafkatest.ReadAll(t, recent)); n != 15 {
		t.Errorf("%d records in Kafka, want 15", n)
	}
}

func connTo(t *testing.T) *kafkaconn.Conn {
	t.Helper()
	conn, err := kafkaconn.Config{Brokers: kafkatest.Brokers(t)}.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
