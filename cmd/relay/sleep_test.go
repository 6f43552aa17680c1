//go:build unix

package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

var sampledMetric = regexp.MustCompile(`(?m)^effectonce_relay_sampled_timestamp_seconds (\S+)$`)

// TestSleepsUntilASignal: an idle relay sends no statement before SIGUSR1, although its health is requested and its
// next sample is due; after it, the relay publishes.
func TestSleepsUntilASignal(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 3)
	proxy, statements := pgtest.NewProxy(t, db.URL), atomic.Int64{}
	proxy.Watch(func(pgtest.Passing) *pgtest.Trap { statements.Add(1); return nil })
	relay, process := ownProcess(t, settings(db, kafkatest.Brokers(t)...).with("RELAY_DATABASE_URL", proxy.URL(),
		"RELAY_IDLE_AFTER", "1s", "RELAY_SLEEP", "1h"))
	asleep := func(times int) {
		pgtest.Await(t, "a sleeping relay", func() (bool, error) {
			return strings.Count(relay.output(), "the relay sleeps") == times, nil
		})
	}
	sampled := func() string { // when the last sample was due
		at := sampledMetric.FindStringSubmatch(relay.awaitPage("/metrics", 200))
		if at == nil {
			return "0"
		}
		return at[1]
	}
	pgtest.Await(t, "the first sample", func() (bool, error) { return sampled() != "0", nil })
	asleep(1)
	before, last := statements.Load(), sampled()
	fill(t, db, topic, 100)
	pgtest.Await(t, "the next sample is due", func() (bool, error) {
		relay.awaitPage("/readyz", 200)
		return sampled() != last, nil
	})
	if n := statements.Load() - before; n > 0 || before == 0 {
		t.Errorf("%d statements while it slept, %d before", n, before)
	}
	if err := process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	awaitDrained(t, db)
	asleep(2)
	if n := len(kafkatest.ReadAll(t, topic)); n != 100 {
		t.Errorf("%d events published, want 100", n)
	}
	relay.signal()
	if code := relay.end(); code != codeOK {
		t.Errorf("exit code %d: %s", code, relay.output())
	}
}

// TestSleepDoesNotOutliveARestore: an outbox is restored in place while its relay sleeps. Its numbers have been used
// since the backup, so the relay that wakes publishes nothing and ends.
func TestSleepDoesNotOutliveARestore(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.NewDatabase(t, migrations.Outbox), kafkatest.Topic(t, 1)
	db.Exec(t, `create schema backup`)
	for _, table := range []string{"outbox_meta", "outbox_lane"} {
		db.Exec(t, `create table backup.`+table+` as select * from `+table)
	}
	relay, process := ownProcess(t, settings(db, kafkatest.Brokers(t)...).with("RELAY_IDLE_AFTER", "1s",
		"RELAY_SLEEP", "1h"))
	asleep := func(times int) {
		pgtest.Await(t, "a sleeping relay", func() (bool, error) {
			return strings.Count(relay.output(), "the relay sleeps") == times, nil
		})
	}
	wake := func() {
		if err := process.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
	}
	asleep(1)
	fill(t, db, topic, 3)
	wake() // the same outbox: it is published
	awaitDrained(t, db)
	asleep(2)
	db.Exec(t, `do $$ begin
		delete from outbox_meta; insert into outbox_meta select * from backup.outbox_meta;
		truncate outbox_lane; insert into outbox_lane select * from backup.outbox_lane;
		end $$`)
	fill(t, db, topic, 3)
	wake()
	if code := relay.end(); code == codeOK || !strings.Contains(relay.output(), "older than what it has published") {
		t.Errorf("exit code %d: %s", code, relay.output())
	}
	if n := len(kafkatest.ReadAll(t, topic)); n != 3 {
		t.Errorf("%d events were published, want those of before the restore alone", n)
	}
}

// TestManySleepUntilASignal: between two checks a supervisor sends no statement and has no connection. At SIGUSR1 it
// checks all outboxes.
func TestManySleepUntilASignal(t *testing.T) {
	t.Parallel()
	one, topic := outboxDB(t), kafkatest.Topic(t, 3)
	two := one.Beside(t, migrations.Outbox)
	proxy := pgtest.NewProxy(t, one.URL)
	var statements, checkedOne, checkedTwo atomic.Int64
	proxy.Watch(func(p pgtest.Passing) *pgtest.Trap {
		statements.Add(1)
		switch {
		case !strings.HasPrefix(p.SQL, "-- relay: waits"):
		case strings.Contains(p.SQL, one.Schema):
			checkedOne.Add(1)
		case strings.Contains(p.SQL, two.Schema):
			checkedTwo.Add(1)
		}
		return nil
	})
	path := filepath.Join(t.TempDir(), "relay.yaml")
	url := proxy.URL() + "&application_name=" + one.Schema +
		"&pool_max_conn_idle_time=100ms&pool_health_check_period=100ms"
	writeOutboxes(t, path, outboxAt("one", url, "  schema: "+one.Schema+"\n"),
		outboxAt("two", url, "  schema: "+two.Schema+"\n"))
	relay, process := ownProcess(t, settings(one, kafkatest.Brokers(t)...).with("RELAY_DATABASE_URL", "",
		"RELAY_CONFIG", path, "RELAY_IDLE_AFTER", "1s",
		"RELAY_SLEEP", "10000h")) // checks are at multiples of it: none is near
	relay.awaitPage("/readyz", 200)
	pgtest.Await(t, "the first check of both", func() (bool, error) {
		return checkedOne.Load() > 0 && checkedTwo.Load() > 0, nil
	})
	asleep := func() {
		pgtest.AwaitSQL(t, one, `select not exists (select from pg_stat_activity where application_name like $1 || '%')`,
			one.Schema)
	}
	asleep()
	before, since := statements.Load(), time.Now()
	fill(t, one, topic, 100)
	fill(t, two, topic, 100)
	pgtest.Await(t, "the interval of some checks", func() (bool, error) {
		relay.awaitPage("/readyz", 200)
		return time.Since(since) > 3*watchEvery, nil
	})
	if n := statements.Load() - before; n > 0 {
		t.Errorf("%d statements while all slept, %d before", n, before)
	}
	if err := process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	awaitDrained(t, one)
	awaitDrained(t, two)
	asleep()
	if n := len(kafkatest.ReadAll(t, topic)); n != 200 {
		t.Errorf("%d events published, want 200", n)
	}
	relay.signal()
	if code := relay.end(); code != codeOK {
		t.Errorf("exit code %d: %s", code, relay.output())
	}
}
