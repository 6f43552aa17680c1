package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// writeOutboxes writes a configuration file that lists outboxes, as blocks of YAML.
func writeOutboxes(t *testing.T, path string, blocks ...string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte("outboxes:\n"+strings.Join(blocks, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func outboxAt(name, url string, more ...string) string {
	return fmt.Sprintf("- name: %s\n  database-url: %q\n%s", name, url, strings.Join(more, ""))
}

// startFleet starts the supervisor of `relay run` with a list, with shorter intervals. It is stopped at the end of the
// test.
func startFleet(t *testing.T, env environment) (f *fleet, logged *output) {
	t.Helper()
	if env["RELAY_IDLE_AFTER"] == "" {
		env = env.with("RELAY_IDLE_AFTER", "1s")
	}
	var c cli
	line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: env.get, List: outboxList}
	if _, err := line.Parse(&c, []string{"run"}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	c.Run.file = c.Config
	logged = &output{}
	log := slog.New(slog.NewTextHandler(logged, nil))
	f, err := c.Run.newFleet(&program{log: log, env: env.get})
	if err != nil {
		t.Fatal(err)
	}
	f.listEvery = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.follow(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = f.kafka.Close()
	})
	return f, logged
}

const (
	nobodys = `select not exists (select from relay_member)
		and not exists (select from outbox_lane where owner is not null)`
	somebodys = `select count(*) = 32 from outbox_lane l join relay_member m on m.owner = l.owner`
)

// TestManyOutboxes: of four outboxes one has no tables, and the database of another does not answer. The others are
// published meanwhile; the process is ready, and names the failing ones.
func TestManyOutboxes(t *testing.T) {
	t.Parallel()
	one, two, bare, topic := outboxDB(t), outboxDB(t), pgtest.New(t), kafkatest.Topic(t, 2)
	away := pgtest.NewProxy(t, one.URL)
	away.Refuse(true)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeOutboxes(t, path, outboxAt("one", one.URL, "  labels: {team: payments, tier: gold}\n"),
		outboxAt("two", two.URL), outboxAt("bare", bare.URL),
		outboxAt("away", away.URL(), "  schema: "+one.Schema+"\n"))
	env := settings(one, kafkatest.Brokers(t)...).with("RELAY_CONFIG", path, "RELAY_DATABASE_URL", "",
		"RELAY_STALLED_AFTER", "50ms", "RELAY_IDLE_AFTER", "1h")
	relay := inProcess(t, env)
	relay.awaitPage("/readyz", 200)
	fill(t, one, topic, 300)
	fill(t, two, topic, 200)
	awaitDrained(t, one)
	awaitDrained(t, two)
	if n := len(kafkatest.ReadAll(t, topic)); n != 500 {
		t.Errorf("%d of 500 events were published", n)
	}
	pgtest.Await(t, "the failing outboxes, and no others, in the health page", func() (bool, error) {
		_, page, err := relay.get("/healthz/moving")
		return strings.Contains(page, "bare: ") && strings.Contains(page, "away: ") &&
			!strings.Contains(page, "one: ") && !strings.Contains(page, "two: "), err
	})
	var figures string
	pgtest.Await(t, "the counts of what was settled", func() (_ bool, err error) { // a moment after the commit
		_, figures, err = relay.get("/metrics")
		return strings.Contains(figures, `effectonce_relay_settled_events_total{outbox="one"} 300`+"\n") &&
			strings.Contains(figures, `effectonce_relay_settled_events_total{outbox="two"} 200`+"\n"), err
	})
	for _, want := range []string{
		`effectonce_outbox_info{outbox="one",team="payments",tier="gold"} 1`, `effectonce_outbox_info{outbox="two"} 1`,
		`effectonce_outbox_awake{outbox="one"} 1`, `effectonce_outbox_awake{outbox="bare"} 0`,
		`effectonce_outbox_failing{outbox="away"} 1`, `effectonce_outbox_failing{outbox="bare"} 1`,
		`effectonce_outbox_failing{outbox="one"} 0`, `effectonce_relay_published_events_total{outbox="one"} 300`,
		`effectonce_relay_published_events_total{outbox="two"} 200`,
		`effectonce_relay_kafka_acked_events_total{outbox="two",topic="` + topic + `"} 200`,
	} {
		if !strings.Contains(figures, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	relay.signal()
	if code := relay.end(); code != codeOK {
		t.Fatalf("exit code %d: %s", code, relay.output())
	}
	for _, db := range []*pgtest.DB{one, two} {
		if !pgtest.One[bool](t, db, nobodys) {
			t.Error("a relay's lanes or its row in relay_member are left")
		}
	}
	if strings.Contains(relay.output(), "postgres://") {
		t.Errorf("a URL is logged: %s", relay.output())
	}
}

// TestIdleOutboxSleeps: an outbox without events has no relay, no connection and no series. With an event it has them
// again, and its counters continue.
func TestIdleOutboxSleeps(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.NewDatabase(t, migrations.Outbox), kafkatest.Topic(t, 1)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeOutboxes(t, path, outboxAt("one", db.URL))
	f, _ := startFleet(t, settings(db, kafkatest.Brokers(t)...).with("RELAY_CONFIG", path))
	appended := 0
	for range 2 {
		// Its relay may be gone again before anybody has looked: then another event brings it back.
		pgtest.Await(t, "a relay", func() (bool, error) {
			fill(t, db, topic, 1)
			appended++
			return pgtest.One[bool](t, db, somebodys), nil
		})
		pgtest.Await(t, "the counters continue", func() (bool, error) {
			n := metricOf(t, f, "effectonce_relay_settled_events_total", "one")
			if n == -1 {
				fill(t, db, topic, 1)
				appended++
			}
			return n == float64(appended), nil
		})
		pgtest.AwaitSQL(t, db, nobodys)
		pgtest.Await(t, "its series are gone", func() (bool, error) {
			return metricOf(t, f, "effectonce_relay_settled_events_total", "one") == -1, nil
		})
		pgtest.AwaitSQL(t, db, `select count(*) = 0 from pg_stat_activity
			where datname = current_database() and application_name like 'effectonce relay %'`)
	}
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload) values (clock_timestamp(), $1, 'k', 'T', '')`,
		topic)
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_scheduled)`)
	awaitDrained(t, db)
}

// TestFleetChecksARestoredOutbox: a tenant is restored in place while its outbox sleeps. Its numbers have been used
// since the backup, so nothing is published before it is fenced. One that is made anew is migrated again.
func TestFleetChecksARestoredOutbox(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.NewDatabase(t, migrations.Outbox), kafkatest.Topic(t, 1)
	db.Exec(t, `create schema backup`)
	for _, table := range []string{"outbox_meta", "outbox_lane"} {
		db.Exec(t, `create table backup.`+table+` as select * from `+table)
	}
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeOutboxes(t, path, outboxAt("one", db.URL))
	env := settings(db, kafkatest.Brokers(t)...).with("RELAY_CONFIG", path, "RELAY_MIGRATE", "true")
	_, logged := startFleet(t, env)
	fill(t, db, topic, 3)
	awaitDrained(t, db)
	pgtest.AwaitSQL(t, db, nobodys)
	db.Exec(t, `do $$ begin
		delete from outbox_meta; insert into outbox_meta select * from backup.outbox_meta;
		truncate outbox_lane; insert into outbox_lane select * from backup.outbox_lane;
		end $$`)
	fill(t, db, topic, 3)
	pgtest.Await(t, "the refusal", func() (bool, error) {
		return strings.Contains(logged.String(), "older than what it has published"), nil
	})
	if n := len(kafkatest.ReadAll(t, topic)); n != 3 {
		t.Errorf("%d events were published, want those of before the restore alone", n)
	}
	db.Exec(t, `do $$ begin drop schema public cascade; create schema public; end $$`)
	pgtest.Await(t, "the tables", func() (bool, error) {
		return pgtest.One[bool](t, db, `select to_regclass('outbox_event') is not null`), nil
	})
	pgtest.Await(t, "an event of the outbox that was made anew", func() (bool, error) {
		if pgtest.One[bool](t, db, `select to_regclass('outbox_lane') is not null`) {
			fill(t, db, topic, 1)
		}
		return len(kafkatest.ReadAll(t, topic)) > 3, nil
	})
}

// TestBusyOutboxStaysAwake: a check rarely finds a waiting event, because events are published at once. The relay stays
// because ids are drawn: here one before each check. Without, it stops at the next.
func TestBusyOutboxStaysAwake(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 1)
	proxy := pgtest.NewProxy(t, db.URL)
	var checks atomic.Int64
	var idle atomic.Bool
	proxy.Watch(func(p pgtest.Passing) *pgtest.Trap {
		if strings.HasPrefix(p.SQL, "-- relay: waits") && !idle.Load() {
			_, err := db.Pool.Exec(t.Context(), `select nextval('outbox_event_id_seq')`)
			if err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
			checks.Add(1)
		}
		return nil
	})
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeOutboxes(t, path, outboxAt("one", proxy.URL()))
	startFleet(t, settings(db, kafkatest.Brokers(t)...).with("RELAY_CONFIG", path, "RELAY_IDLE_AFTER", "1ms"))
	fill(t, db, topic, 1)
	pgtest.AwaitSQL(t, db, somebodys)
	const whose = `select coalesce(min(owner::text), 'nobody') from relay_member`
	owner, before := pgtest.One[string](t, db, whose), checks.Load()
	pgtest.Await(t, "some checks", func() (bool, error) { return checks.Load() >= before+4, nil })
	if now := pgtest.One[string](t, db, whose); now != owner || now == "nobody" {
		t.Errorf("the relay was stopped between two events: %s is %s now", owner, now)
	}
	idle.Store(true)
	pgtest.AwaitSQL(t, db, nobodys)
}

// metricOf returns an outbox's value of a metric, or -1 if it has none.
func metricOf(t *testing.T, f *fleet, name, outbox string) float64 {
	t.Helper()
	families, err := f.metrics.registry.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if family.GetName() == name && l.GetName() == "outbox" && l.GetValue() == outbox {
					return m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return -1
}

// TestTheListIsFollowed: an outbox that appears in the file or the query is served, one that disappears is stopped, and
// a list that cannot be read changes nothing.
func TestTheListIsFollowed(t *testing.T) {
	t.Parallel()
	one, two, topic := outboxDB(t), outboxDB(t), kafkatest.Topic(t, 1)
	two.Exec(t, `create table tenant (schema_name text, plan text)`)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeOutboxes(t, path, outboxAt("one", one.URL))
	f, logged := startFleet(t, settings(two, kafkatest.Brokers(t)...).with("RELAY_CONFIG", path,
		"RELAY_DISCOVER", `select 'tenant '||schema_name as name, schema_name as schema, plan from tenant`))
	fill(t, one, topic, 10)
	awaitDrained(t, one)
	two.Exec(t, `insert into tenant values (current_schema(), 'free')`)
	fill(t, two, topic, 10)
	awaitDrained(t, two)
	name := "tenant " + two.Schema
	if metricOf(t, f, "effectonce_outbox_info", name) != 1 {
		t.Errorf("%s has no labels", name)
	}
	two.Exec(t, `alter table tenant rename to tenants`)
	pgtest.Await(t, "the failed query in the log", func() (bool, error) {
		return strings.Contains(logged.String(), "cannot read the list of outboxes"), nil
	})
	fill(t, two, topic, 10)
	awaitDrained(t, two)
	two.Exec(t, `alter table tenants rename to tenant; delete from tenant`)
	pgtest.Await(t, "the relay of the removed outbox stops", func() (bool, error) {
		return metricOf(t, f, "effectonce_outbox_info", name) == -1, nil
	})
	pgtest.AwaitSQL(t, two, nobodys)
	fill(t, two, topic, 10)
	fill(t, one, topic, 10)
	awaitDrained(t, one)
	if n := pgtest.One[int](t, two, `select count(*) from outbox_event`); n != 10 {
		t.Errorf("the removed outbox has %d of 10 events", n)
	}
}

// TestWrongRowHidesNoOutbox: rows of --discover that are wrong fail by themselves, at the start and later, while the
// other rows are served. A list that cannot be read is told by health and metrics.
func TestWrongRowHidesNoOutbox(t *testing.T) {
	t.Parallel()
	one, two, topic := outboxDB(t), outboxDB(t), kafkatest.Topic(t, 1)
	one.Exec(t, `create table tenant (n bigint generated always as identity, name text, url text)`)
	one.Exec(t, `insert into tenant (name, url) values ('one', $1), ('', $1)`, one.URL)
	f, logged := startFleet(t, settings(one, kafkatest.Brokers(t)...).with("RELAY_STALLED_AFTER", "1ms",
		"RELAY_DISCOVER", `select name, url as database_url from tenant order by n`))
	fill(t, one, topic, 10)
	awaitDrained(t, one)
	one.Exec(t, `insert into tenant (name, url) values ('one', $1), ('two', $2)`, one.URL, two.URL)
	fill(t, two, topic, 10)
	awaitDrained(t, two)
	const failing = "effectonce_outbox_failing"
	for name, want := range map[string]float64{
		"one": 0, "two": 0, "row 2 of --discover": 1, "row 3 of --discover": 1,
	} {
		pgtest.Await(t, fmt.Sprintf("%s of %s is %v", failing, name, want), func() (bool, error) {
			return metricOf(t, f, failing, name) == want, nil
		})
	}
	for _, said := range []string{"row 2: every outbox wants a name", `row 3: two outboxes are named \"one\"`} {
		if !strings.Contains(logged.String(), said) {
			t.Errorf("the log does not say: %s", said)
		}
	}
	one.Exec(t, `alter table tenant rename to tenants`)
	pgtest.Await(t, "health tells of the list", func() (bool, error) {
		err := f.health(t.Context()).Moving()
		return err != nil && strings.Contains(err.Error(), "the list cannot be read"), nil
	})
	if metricOf(t, f, failing, "the list of outboxes") != 1 {
		t.Error("no metric tells of the list")
	}
	one.Exec(t, `alter table tenants rename to tenant; delete from tenant where name = '' or n = 3`)
	pgtest.Await(t, "all is well", func() (bool, error) { return f.health(t.Context()).Moving() == nil, nil })
	one.Exec(t, `update tenant set name = ''`)
	pgtest.Await(t, "a list without a usable row changes nothing", func() (bool, error) {
		err := f.health(t.Context()).Moving()
		return err != nil && strings.Contains(err.Error(), "row 1: every outbox wants a name"), nil
	})
	fill(t, two, topic, 10)
	awaitDrained(t, two)
}

// refusedTwice matches the log: which outbox is refused, and which is served.
var refusedTwice = regexp.MustCompile(
	`outbox=(a|b) error="[^\n]*\\"(a|b)\\" is in the same server, database and schema`,
)

// TestOutboxListedTwice: of two names for one outbox, one is served and the other refused, until the first is removed.
func TestOutboxListedTwice(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 1)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	entries := map[string]string{
		"a": outboxAt("a", db.URL),
		"b": outboxAt("b", db.URL+"&application_name=b", "  schema: "+db.Schema+"\n"),
	}
	writeOutboxes(t, path, entries["a"], entries["b"])
	f, logged := startFleet(t, settings(db, kafkatest.Brokers(t)...).with("RELAY_CONFIG", path))
	const failing = "effectonce_outbox_failing"
	fill(t, db, topic, 10)
	relays, said := 0, []string(nil)
	pgtest.Await(t, "one of two is refused, or both are served", func() (bool, error) {
		relays = pgtest.One[int](t, db, `select count(*) from relay_member`)
		said = refusedTwice.FindStringSubmatch(logged.String())
		return relays > 1 || said != nil, nil
	})
	if relays > 1 {
		t.Fatalf("%d relays of one process serve the outbox", relays)
	}
	refused, served := said[1], said[2]
	if served == refused || metricOf(t, f, failing, refused) != 1 {
		t.Errorf("%s is said to be served, %s to be refused: %s", served, refused, logged.String())
	}
	awaitDrained(t, db)
	writeOutboxes(t, path, entries[refused])
	pgtest.Await(t, "the other is served", func() (bool, error) { return metricOf(t, f, failing, refused) == 0, nil })
	fill(t, db, topic, 10)
	awaitDrained(t, db)
	if n := len(kafkatest.ReadAll(t, topic)); n != 20 {
		t.Errorf("%d of 20 events were published", n)
	}
}

// TestTwoProcessesShareOutboxes: both serve every active outbox, with half of its lanes each.
func TestTwoProcessesShareOutboxes(t *testing.T) {
	t.Parallel()
	one, two, topic := outboxDB(t), outboxDB(t), kafkatest.Topic(t, 1)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeOutboxes(t, path, outboxAt("one", one.URL), outboxAt("two", two.URL))
	for _, name := range []string{"a", "b"} {
		startFleet(t, settings(one, kafkatest.Brokers(t)...).with("RELAY_CONFIG", path, "RELAY_LEASE", "3s",
			"RELAY_NAME", name))
	}
	for _, db := range []*pgtest.DB{one, two} {
		pgtest.Await(t, "both have half of the lanes", func() (bool, error) {
			fill(t, db, topic, 1) // both notice the append, whichever publishes it
			return pgtest.One[bool](t, db, `select count(*) filter (where m.name = 'a') = 16
				and count(*) filter (where m.name = 'b') = 16
				from outbox_lane l join relay_member m on m.owner = l.owner`), nil
		})
		awaitDrained(t, db)
	}
}

// TestOutboxFlag: a command works on the named outbox, and on none by default.
func TestOutboxFlag(t *testing.T) {
	t.Parallel()
	one, two := outboxDB(t), outboxDB(t)
	fill(t, two, "payments", 7)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeOutboxes(t, path, outboxAt("one", one.URL), outboxAt("two", two.URL))
	env := environment{"RELAY_CONFIG": path}
	for want, args := range map[string][]string{
		"which, with --outbox":    {"lanes"},
		`no outbox is named "on"`: {"lanes", "--outbox=on"},
	} {
		if code, _, stderr := command(t, env, args...); code != codeUsage || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
	code, stdout, stderr := command(t, env, "status", "--outbox=two")
	if code != codeOK || !strings.Contains(stdout, "payments   7") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	// Also if the flags name another outbox.
	env = env.with("RELAY_DATABASE_URL", one.URL)
	if code, _, stderr := command(t, env, "topics", "pause", "--outbox=two", "--topic=payments",
		"--reason=a test"); code != codeOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	for name, paused := range map[string]bool{"one": false, "two": true} {
		code, stdout, stderr := command(t, env, "audit", "--outbox="+name)
		if code != codeOK || strings.Contains(stdout, "a test") != paused {
			t.Errorf("audit of %s: exit code %d: %s%s", name, code, stdout, stderr)
		}
	}
	code, _, stderr = command(t, environment{"RELAY_DATABASE_URL": one.URL}, "lanes", "--outbox=one")
	if code != codeUsage || !strings.Contains(stderr, "wants a list") {
		t.Errorf("without a list: exit code %d: %s", code, stderr)
	}
}

// TestWrongListIsRefused: before any connection, and without a value of the list in the error.
func TestWrongListIsRefused(t *testing.T) {
	t.Parallel()
	const url = "postgres://relay:" + canary + "@127.0.0.1:1/none"
	for want, blocks := range map[string][]string{
		`two outboxes are named "a"`:  {outboxAt("a", url), outboxAt("a", url)},
		"did you mean \"schema\"?":    {outboxAt("a", url, "  shcema: "+canary+"\n")},
		"database-url is missing":     {"- name: a\n"},
		"wants a name":                {"- database-url: " + url + "\n"},
		"is not \"outbox\"":           {outboxAt("a", url, "  labels: {outbox: b}\n")},
		"want entries like":           {"- " + canary + "\n"},
		"want a mapping of names":     {outboxAt("a", url, "  labels: ["+canary+"]\n")},
		"database-url is set twice":   {outboxAt("a", url, "  database-url: "+url+"\n")},
		"database-url: want a value":  {"- name: a\n  database-url: [" + url + "]\n"},
		"set database-url or":         {outboxAt("a", url, "  database-url-file: /none\n")},
		"--kafka-brokers is missing:": {outboxAt("a", url)},
	} {
		path := filepath.Join(t.TempDir(), "relay.yaml")
		writeOutboxes(t, path, blocks...)
		code, _, stderr := command(t, environment{"RELAY_CONFIG": path}, "run")
		if code != codeUsage || !strings.Contains(stderr, want) || strings.Contains(stderr, canary) {
			t.Errorf("%s: exit code %d: %s", want, code, stderr)
		}
	}
}

// TestListThatFindsNothing: a query that finds no rows any more, as under another policy, ends no outbox, and a command
// that shows all outboxes fails. What joins or leaves is said.
func TestListThatFindsNothing(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.NewDatabase(t, migrations.Outbox), kafkatest.Topic(t, 1)
	db.Exec(t, `create table tenants (name text, shown boolean); insert into tenants values ('one', true)`)
	env := settings(db, kafkatest.Brokers(t)...).with("RELAY_DISCOVER", "select name from tenants where shown")
	_, logged := startFleet(t, env)
	says := func(what string) {
		t.Helper()
		pgtest.Await(t, what, func() (bool, error) { return strings.Contains(logged.String(), what), nil })
	}
	fill(t, db, topic, 1)
	awaitDrained(t, db)
	db.Exec(t, `update tenants set shown = false`)
	says("it was not empty before")
	fill(t, db, topic, 1)
	awaitDrained(t, db)
	for _, name := range []string{"status", "doctor"} {
		code, _, stderr := command(t, env, name)
		if code != codeFailed || !strings.Contains(stderr, "no outbox is listed") {
			t.Errorf("%s: exit code %d: %s", name, code, stderr)
		}
	}
	db.Exec(t, `insert into tenants values ('other', true)`)
	says(`"the outbox is not listed any more: its events wait" outbox=one`)
	says(`"the outbox is listed: it is served" outbox=other`)
}
