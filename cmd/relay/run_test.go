package main

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// TestDrain: SIGTERM during the publishing. Claimed events are in Kafka and gone from the outbox, the others are still
// in the outbox, none is in both; the lanes are released at once.
func TestDrain(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 3)
	// Small claims keep it from finishing before the signal.
	relay, _ := ownProcess(t, settings(db, kafkatest.Brokers(t)...).with("RELAY_CLAIM_EVENTS", "64"))
	fill(t, db, topic, 500)
	awaitDrained(t, db)
	const n = 20_000
	fill(t, db, topic, n)
	stop, appended := load(t, db, topic) // so that there is always something to publish, however late the signal is
	pgtest.AwaitSQL(t, db, `select count(*) < $1 from outbox_event where type = 'T'`, n)
	relay.signal()
	if code := relay.end(); code != codeOK {
		t.Fatalf("exit code %d: %s", code, relay.output())
	}
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_event)`)
	stop()
	if !pgtest.One[bool](t, db,
		`select not exists (select from outbox_claim) and not exists (select from outbox_lane where owner is not null)
		and not exists (select from relay_member)`) {
		t.Error("claims, lanes or the relay's row in relay_member are left")
	}
	left, all := pgtest.One[int](t, db, `select count(*) from outbox_event`), 500+n+appended()
	if got := len(kafkatest.ReadAll(t, topic)); got+left != all {
		t.Errorf("%d events in Kafka and %d in the outbox of %d: some are in both or in neither", got, left, all)
	}
}

// TestTakeOver: two relays share the lanes; one is killed; the other publishes all events, in order per key.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 3)
	env := settings(db, kafkatest.Brokers(t)...).with("RELAY_LEASE", "3s", "RELAY_CLAIM_EVENTS", "256")
	first, killed := ownProcess(t, env.with("RELAY_NAME", "first"))
	ownProcess(t, env.with("RELAY_NAME", "second"))
	const shared = `select count(*) filter (where m.name = 'first') = 16
		and count(*) filter (where m.name = 'second') = 16
		from outbox_lane l join relay_member m on m.owner = l.owner`
	pgtest.AwaitSQL(t, db, shared)
	const n = 5000
	fill(t, db, topic, n-1000)
	pgtest.AwaitSQL(t, db, `select count(*) < $1 from outbox_event`, n-1000)
	if err := killed.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := first.end(); code != -1 {
		t.Fatalf("exit code %d of a killed process", code)
	}
	fill(t, db, topic, 1000, n-1000) // for all lanes, also those of the killed relay
	awaitDrained(t, db)
	next, seen := map[string]int{}, map[string]bool{}
	for _, r := range kafkatest.ReadAll(t, topic) {
		if id := r.Get("ce_id"); !seen[id] {
			seen[id] = true
			if got := string(r.Value); got != itoa(next[string(r.Key)]) {
				t.Fatalf("key %s: %s first occurs where %d was due", r.Key, got, next[string(r.Key)])
			}
			next[string(r.Key)]++
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d events were published", len(seen), n)
	}
}

// TestDrainTooSlow: Kafka does not answer within the drain's time.
func TestDrainTooSlow(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	relay := inProcess(t, settings(db, deadBroker).with("RELAY_DRAIN_TIMEOUT", "100ms",
		"RELAY_RESTORE_CHECK", "false"))
	fill(t, db, "payments", 10)
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_claim)`)
	relay.signal()
	if code := relay.end(); code != codeUndrained || !strings.Contains(relay.output(), "the drain did not finish") {
		t.Fatalf("exit code %d: %s", code, relay.output())
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 10 {
		t.Errorf("%d of 10 events are left", n)
	}
}

// TestSecondSignal: a second SIGTERM, as supervisors send it, does not end the drain; an interrupt does.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	relay, _ := ownProcess(t, settings(db, deadBroker).with("RELAY_DRAIN_TIMEOUT", "10m",
		"RELAY_RESTORE_CHECK", "false"))
	fill(t, db, "payments", 10)
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_claim)`)
	relay.signal()
	pgtest.Await(t, "the start of the drain", func() (bool, error) {
		_, body, err := relay.get("/readyz")
		return strings.Contains(body, "stopping"), err
	})
	relay.signal()
	if _, body, err := relay.get("/readyz"); err != nil || !strings.Contains(body, "stopping") {
		t.Errorf("after a second SIGTERM: %s, %v", body, err)
	}
	relay.interrupt()
	if code := relay.end(); code != codeForced {
		t.Fatalf("exit code %d: %s", code, relay.output())
	}
}

// TestHealthWithoutKafka: an outage of Kafka fails /healthz/moving, and not /readyz.
func TestHealthWithoutKafka(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	relay := inProcess(t, settings(db, deadBroker).with("RELAY_STALLED_AFTER", "50ms", "RELAY_DRAIN_TIMEOUT", "0"))
	relay.awaitPage("/readyz", 200)
	relay.awaitPage("/healthz/moving", 200)
	fill(t, db, "payments", 10)
	body := relay.awaitPage("/healthz/moving", 503)
	pgtest.Await(t, "the outage of Kafka in /healthz/moving", func() (bool, error) {
		_, text, err := relay.get("/healthz/moving")
		body = text
		return strings.Contains(body, "; kafka:"), err
	})
	if !strings.HasPrefix(body, "events wait") {
		t.Errorf("moving says %q", body)
	}
	if status, body, err := relay.get("/healthz"); status != 200 || err != nil {
		t.Errorf("healthz: %d %s %v", status, body, err)
	}
	pgtest.Await(t, "readyz is about Postgres alone", func() (bool, error) {
		status, body, err := relay.get("/readyz")
		if status != 200 && !strings.Contains(body, "no answer from Postgres") { // within two seconds
			t.Errorf("readyz: %d %s", status, body)
		}
		return status == 200, err
	})
	_, figures, err := relay.get("/metrics")
	if err != nil || !strings.Contains(figures, `effectonce_relay_outage{system="kafka"} 1`) {
		t.Errorf("the metrics do not show the outage: %v", err)
	}
}

// TestReadinessFollowsTheSlot: a relay with --feed=wal is not ready while it cannot read the WAL, or while its slot is
// about to be lost.
func TestReadinessFollowsTheSlot(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := settings(db, kafkatest.Brokers(t)...).with("RELAY_FEED", "wal")
	running := inProcess(t, env)
	pgtest.Await(t, "the reason", func() (bool, error) {
		status, body, err := running.get("/readyz")
		return status == 503 && strings.Contains(body, "relay wal setup"), err
	})
	owner := environment{"RELAY_DATABASE_URL": db.URL}
	if code, _, stderr := command(t, owner, "wal", "setup"); code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	running.awaitPage("/readyz", 200)
	pgtest.AwaitSQL(t, db, `select count(*) = 32 from outbox_streamed`)
	running.signal()
	if code := running.end(); code != codeOK {
		t.Fatalf("exit code %d: %s", code, running.output())
	}
	awaitUnread(t, db)
	if code, _, stderr := command(t, owner, "wal", "drop"); code != codeOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	for state, ready := range map[string]bool{"reserved": true, "extended": true, "unreserved": false, "lost": false} {
		if err := slotLags(&relay.WALStatus{Slot: "a_slot", State: state}); (err == nil) != ready {
			t.Errorf("%s: %v", state, err)
		}
	}
	if err := slotLags(nil); err != nil {
		t.Errorf("no slot: %v", err)
	}
}

// awaitUnread waits until the server has noticed that nobody reads the outbox's slot any more.
func awaitUnread(t *testing.T, db *pgtest.DB) {
	t.Helper()
	pgtest.AwaitSQL(t, db, `select not exists (select from pg_replication_slots s, outbox_meta m
		where s.slot_name = 'effectonce_' || replace(m.outbox_id::text, '-', '') and s.active)`)
}

// TestHealthWithoutPostgres: Postgres is down at the start, comes up, and goes down again.
func TestHealthWithoutPostgres(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 1)
	proxy := pgtest.NewProxy(t, db.URL)
	proxy.Refuse(true)
	env := settings(db, kafkatest.Brokers(t)...).with("RELAY_DATABASE_URL", proxy.URL())
	relay := inProcess(t, env)
	relay.awaitPage("/healthz", 200)
	if body := relay.awaitPage("/readyz", 503); !strings.Contains(body, "starting") {
		t.Errorf("readyz says %q", body)
	}
	pgtest.Await(t, "the outage in the log", func() (bool, error) {
		return strings.Contains(relay.output(), "postgres does not answer; waiting for it"), nil
	})
	proxy.Refuse(false)
	relay.awaitPage("/readyz", 200)
	fill(t, db, topic, 100)
	awaitDrained(t, db)

	proxy.Refuse(true)
	proxy.CutAll()
	if body := relay.awaitPage("/readyz", 503); !strings.Contains(body, "Postgres") {
		t.Errorf("readyz says %q", body)
	}
	relay.awaitPage("/healthz", 200)
	proxy.Refuse(false)
	relay.awaitPage("/readyz", 200)
	fill(t, db, topic, 100)
	awaitDrained(t, db)
	relay.signal()
	if code := relay.end(); code != codeOK {
		t.Errorf("exit code %d: %s", code, relay.output())
	}
	if n := strings.Count(relay.output(), "postgres does not answer; waiting"); n != 1 {
		t.Errorf("the outage was logged %d times", n)
	}
}

// TestStopBeforeStart: a signal during the wait for the database is a clean stop.
func TestStopBeforeStart(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	proxy := pgtest.NewProxy(t, db.URL)
	proxy.Refuse(true)
	relay := inProcess(t, settings(db, deadBroker).with("RELAY_DATABASE_URL", proxy.URL()))
	relay.awaitPage("/readyz", 503)
	relay.signal()
	if code := relay.end(); code != codeOK {
		t.Errorf("exit code %d: %s", code, relay.output())
	}
}

// TestStandby: a relay without a lane is ready.
func TestStandby(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t,
		`update outbox_lane set owner = gen_random_uuid(), lease_until = clock_timestamp() + interval '30 minutes'`)
	relay := inProcess(t, settings(db, deadBroker).with("RELAY_LEASE", "1h"))
	pgtest.AwaitSQL(t, db, `select exists (select from relay_member)`)
	relay.awaitPage("/readyz", 200)
	relay.awaitPage("/healthz/moving", 200)
	if _, figures, err := relay.get("/metrics"); err != nil ||
		!strings.Contains(figures, "effectonce_relay_lanes_owned 0\n") {
		t.Errorf("the relay owns lanes, or the metric is missing: %v", err)
	}
}

// TestMigrateFlag: without tables run refuses to start; with --migrate it creates them.
func TestMigrateFlag(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	env := settings(db, deadBroker)
	code, _, stderr := command(t, env, "run")
	if code != codeSchema || !strings.Contains(stderr, "relay migrate") {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	relay := inProcess(t, env.with("RELAY_MIGRATE", "true"))
	relay.awaitPage("/readyz", 200)
}

// TestPortTaken: the second relay on the same port reports the conflict.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	code, _, stderr := command(t, settings(outboxDB(t), deadBroker).with("RELAY_LISTEN", l.Addr().String()), "run")
	if code != codeUsage || !strings.Contains(stderr, `or \"off\"`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestUnreachableKafkaIsReportedAtStart: without waiting for the first event.
func TestUnreachableKafkaIsReportedAtStart(t *testing.T) {
	t.Parallel()
	r := inProcess(t, settings(outboxDB(t), "127.0.0.1:1"))
	pgtest.Await(t, "the relay's report", func() (bool, error) {
		return strings.Contains(r.output(), "kafka does not answer"), nil
	})
	r.signal()
	if code := r.end(); code != codeOK || strings.Count(r.output(), "kafka does not answer") != 1 {
		t.Errorf("exit code %d: %s", code, r.output())
	}
}
