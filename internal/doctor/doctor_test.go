package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/inbox"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay/operator"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

// serverWide are checks of what all tests of the server share.
var serverWide = []string{
	"durability", "oldest snapshot", "idle in transaction", "prepared transactions",
	"replication slots", "other outboxes",
}

// worst is the worst severity of a check, and its texts.
func worst(list []Finding, check string) (severity Severity, text string) {
	for _, f := range list {
		if f.Check != check {
			continue
		}
		if severity == "" || f.Severity == Fail || f.Severity == Warn && severity == OK {
			severity = f.Severity
		}
		text += f.Found + "\n"
	}
	return severity, text
}

func expect(t *testing.T, list []Finding, check string, severity Severity, part string) {
	t.Helper()
	if got, text := worst(list, check); got != severity || !strings.Contains(text, part) {
		t.Errorf("%s: %q %s, want %s with %q in %+v", check, got, text, severity, part, list)
	}
}

// TestHealthy: what is well is called so, and every finding that is not says what it means and what to do.
func TestHealthy(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	in, err := inbox.New(db.Pool, "ledger", inbox.Config{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema}) {
		// Without brokers nothing is known of Kafka: that is not well.
		well := f.Severity == OK && f.Check != "kafka" || f.Severity == Skip && f.Check == "kafka" ||
			f.Severity == Skip && f.Check == "schema idempotency"
		if !well && !strings.Contains(strings.Join(serverWide, " "), f.Check) {
			t.Errorf("%+v", f)
		}
		if f.Check == "" || f.Found == "" || well != (f.Means == "") || well != (f.Next == "" && f.Command == "") {
			t.Errorf("incomplete: %+v", f)
		}
	}
}

// TestProvoked: each check finds what it is for. Those that share nothing share a database: to make one takes longest.
func TestProvoked(t *testing.T) {
	t.Parallel()
	type provoked struct {
		sql      []string
		check    string
		severity Severity
		part     string
	}
	alone := []string{
		"misplaced", "stuck lanes", "sequence cycle", "sequence, another's", "no relay", "silent relay",
		"pending migration", "no days", "halted",
	}
	cases := map[string]provoked{
		"sequence cache": {[]string{`alter sequence outbox_event_id_seq cache 10`}, "sequence", Fail, "cache 10"},
		"sequence cycle": {[]string{`alter sequence outbox_event_id_seq cycle`}, "sequence", Fail, "cycle on"},
		"sequence, another's": {
			[]string{`alter sequence outbox_event_id_seq rename to mine`, `create sequence outbox_event_id_seq`},
			"sequence", Fail, "outbox_event.id comes from",
		},
		"sequence behind": {[]string{
			`insert into outbox_event (topic, type) values ('t', 'T'), ('t', 'T')`,
			`select setval('outbox_event_id_seq', 1)`,
		}, "sequence", Fail, "last id drawn is 1, and the tables hold 2"},
		"other system": {
			[]string{`update outbox_meta set system_identifier = 1`},
			"numbering", Warn,
			"another system",
		},
		"no relay": {
			[]string{`insert into outbox_event (topic, type) values ('t', 'T')`},
			"leases", Warn,
			"1 with events",
		},
		"stuck lanes": {[]string{
			`insert into relay_member (owner, seen) values (gen_random_uuid(), now())`,
			`insert into outbox_event (topic, type, created_at) values ('t', 'T', now() - interval '2 minutes')`,
		}, "leases", Fail, "the oldest waits 2m"},
		"overdue": {
			[]string{
				`update outbox_lane set owner = gen_random_uuid(), lease_until = now() - interval '1 s' where lane = 7`,
			}, "leases", Warn, "1 overdue",
		},
		"silent relay": {[]string{
			`with gone as (insert into relay_member (owner, name, seen, lease_until)
				values (gen_random_uuid(), 'host:7', now() - interval '3 minutes', now() - interval '165 s')
				returning owner)
				update outbox_lane set owner = (select owner from gone), lease_until = now() - interval '165 s'`,
		}, "leases", Fail, "host:7 was last heard of 3m"},
		"relay in trouble": {[]string{
			`insert into relay_member (owner, name, seen, lease_until, trouble, trouble_since)
				values (gen_random_uuid(), 'host:7', now(), now() + interval '1 hour',
					'lane 3: division by zero (SQLSTATE 22012)', now() - interval '90 s')`,
		}, "relays", Fail, "host:7, for 00:01:30: lane 3: division by zero"},
		"old relay": {[]string{
			`insert into relay_member (owner, name, seen, lease_until, version)
				select gen_random_uuid(), 'host:' || n, now(), now() + interval '1 hour', 'v0.' || n
				from generate_series(1, 2) n`,
		}, "versions", Warn, "v0.1 (host:1), v0.2 (host:2)"},
		"parked": {
			[]string{
				`insert into outbox_parked_key (lane, tenant, topic, key, reason, code) values (1, '', 't', 'k',
						'too large', 'X')`,
			}, "parked", Warn, "of 1 key",
		},
		"held": {
			[]string{
				`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
						content_type, created_at)
			values (1, 1, 'refused', 0, 1, false, gen_random_uuid(), '', '', 'k', 'T', '', now())`,
			},
			"held", Warn,
			"refused: 1 event",
		},
		"held, and why": {
			[]string{
				`insert into relay_member (owner, name, seen, lease_until, trouble, trouble_since)
				values (gen_random_uuid(), 'host:8', now(), now() + interval '1 hour',
					'holds topic refused for 9s: [29] Topic Authorization Failed', now() - interval '90 s')`,
			},
			"held", Warn,
			"refused: 1 event; host:8 holds topic refused for 9s: [29] Topic Authorization Failed",
		},
		"scheduled": {
			[]string{`insert into outbox_scheduled (due, topic, type) values (now() - interval '1 hour', 't', 'T')`},
			"scheduled", Warn, "1 event",
		},
		"paused": {
			[]string{`insert into outbox_paused_topic (topic, paused_by, reason) values ('t', 'anna', 'why')`},
			"paused", Warn, "t (anna: why)",
		},
		"no vacuum": {
			[]string{`alter table outbox_event set (autovacuum_enabled = false)`},
			"vacuum", Fail,
			"autovacuum is off",
		},
		"misplaced": {[]string{
			`alter table outbox_event alter lane drop expression`,
			`insert into outbox_event (lane, topic, key, type) values (1, 't', 'a', 'T'), (2, 't', 'a', 'T')`,
		}, "hash", Fail, "not in their key's lane"},
		"pending migration": {
			[]string{`delete from effectonce_migration where version_id between 10002 and 19999`},
			"schema outbox", Fail, "pending",
		},
		"no days": {
			[]string{`insert into inbox_consumer (consumer_name, floor, window_days) values ('c', now(), 3)`},
			"inbox days", Fail, "4 days inside the window",
		},
		"quarantined": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days) values ('c', now(), 3)`,
			`insert into inbox_parked (consumer_name, message_id, kind, topic, record_partition, record_offset,
					record_millis)
				values ('c', gen_random_uuid(), 'quarantined', 't', 0, 0, 0)`,
		}, "consumer c", Warn, "1 quarantined"},
		"halted": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days) values ('c', now(), 3)`,
			`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, halted_at,
					halted_code, halted_reason) values ('c', 't', 3, 1, 2, now(), 'x', 'x: why'),
				('c', 't', 4, 1, 2, now(), 'x', 'x: why')`,
		}, "consumer c", Fail, "halted: x: why: t/3 (at 1), t/4 (at 1)\n"},
		"rejected": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days) values ('h', now(), 3)`,
			`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, halted_at,
					halted_code, halted_reason) select 'h', 't', n, n, n, now(), 'rejected',
					'rejected: the effect fails: ERROR: column "amount" does not exist (SQLSTATE 42703)'
				from generate_series(0, 3) n`,
		}, "consumer h", Fail, `rejects it: the effect fails: ERROR: column "amount" does not exist (SQLSTATE 42703): 4 of 4 partitions, ` +
			"the first is t/0 (at 0); tried again by itself"},
		"never a partition": {[]string{
			`insert into inbox_consumer (consumer_name, started_at, floor, window_days, programs)
				values ('e', now() - interval '1 hour', now(), 3, jsonb_build_object('p', jsonb_build_object('seen', now(), 'host', 'h')))`,
		}, "consumer e", Warn, "its program runs, and has never had a partition"},
		"a new name beside another": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days, programs)
				select c, now(), 3, jsonb_build_object('acme', jsonb_build_object('seen', now() - a, 'host', 'h'))
				from (values ('stock', interval '10 min'), ('stcok', '0')) c (c, a)`,
			`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset)
				values ('stock', 't', 3, 1, 1)`,
		}, "consumer stcok", Warn, "it is new, and has read nothing; the same program runs stock"},
		"the other one": {nil, "consumer stock", OK, "nothing parked"},
		"retired, and running": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days, retired_at)
				values ('r', now(), 3, now() - interval '1 hour'), ('over', now(), 3, now())`,
			`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, updated_at)
				values ('r', 't', 3, 1, 2, now()), ('over', 't', 3, 1, 2, now() - interval '1 hour')`,
		}, "consumer r", Warn, "retired 1h0m"},
		"retired": {nil, "consumer over", "", ""},
		"a release that nobody takes": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days) values ('f', now(), 3)`,
			`insert into inbox_parked_key (consumer_name, key_hash, topic, key, tenant, state)
				values ('f', sha256('x'), 't', 'k', '', 'releasing')`,
			`insert into inbox_parked (consumer_name, message_id, kind, topic, record_partition, record_offset,
					record_millis, state) values ('f', gen_random_uuid(), 'failed', 't', 0, 0, 0, 'releasing')`,
		}, "consumer f", Warn, "2 released keys or events wait for a worker"},
		"a release that hangs": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days, programs) values ('slow', now(), 3,
				jsonb_build_object('p', jsonb_build_object('seen', now())))`,
			`insert into inbox_parked_key (consumer_name, key_hash, topic, key, tenant, state, since)
				values ('slow', sha256('x'), 't', 'k', '', 'releasing', now() - interval '2 min')`,
		}, "consumer slow", Warn, "1 released keys or events are not applied yet, one since 2m"},
		"a release whose worker starts again": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days, programs, starts)
				values ('a', now(), 3, jsonb_build_object('p', jsonb_build_object('seen', now())),
					(select jsonb_agg(jsonb_build_object('host', 'h1', 'at', now())) from generate_series(1, 6)))`,
			`insert into inbox_parked_key (consumer_name, key_hash, topic, key, tenant, state)
				values ('a', sha256('x'), 't', 'k', '', 'releasing')`,
		}, "consumer a", Warn, "a worker on h1 has started 6 times within five minutes, and 1 released "},
		"a release under way": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days, programs)
				values ('g', now(), 3, jsonb_build_object('p', jsonb_build_object('seen', now(), 'host', 'h')))`,
			`insert into inbox_parked_key (consumer_name, key_hash, topic, key, tenant, state)
				values ('g', sha256('x'), 't', 'k', '', 'releasing')`,
		}, "consumer g", Warn, "0 events parked, 1 key, 0 quarantined\n"},
		"lost": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days) values ('l', now(), 3)`,
			`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, began_at, began_reason)
				select 'l', 't', n, 30, 30, now() - n * interval '3 days', 'records are lost: they were deleted'
				from generate_series(1, 3) n`,
		}, "consumer l", Warn, "Z: they were deleted, t/2 at "},
		"perhaps lost": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days) values ('m', now(), 3)`,
			`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, began_at, began_reason)
				values ('m', 't', 1, 0, 0, now(), 'records are lost: the topic was made again: unread records of the old '
					|| 'log, if any, are gone')`,
		}, "consumer m", Warn, "records may be lost: t/1 at "},
		"unaccounted": {[]string{
			`insert into inbox_consumer (consumer_name, floor, window_days) values ('d', now(), 3)`,
			`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, began_offset,
					accounted) values ('d', 't', 3, 30, 30, 10, 18)`,
		}, "consumer d", Fail, "t/3: 2 offsets are not accounted for"},
	}
	examine := func(t *testing.T, cases map[string]provoked) {
		t.Parallel()
		db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
		for _, name := range slices.Sorted(maps.Keys(cases)) {
			for _, sql := range cases[name].sql {
				db.Exec(t, sql)
			}
		}
		list := Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema, Flags: []string{"--outbox=a b"}})
		for _, f := range list {
			if f.Command != "" && !strings.Contains(f.Command, " --outbox='a b' --schema="+db.Schema) {
				t.Errorf("%s: the command does not say where: %s", f.Check, f.Command)
			}
		}
		for name, c := range cases {
			if severity, text := worst(list, c.check); severity != c.severity || !strings.Contains(text, c.part) {
				t.Errorf("%s: %s %s, want %s with %q", name, severity, text, c.severity, c.part)
			}
		}
	}
	for _, name := range alone {
		one := map[string]provoked{name: cases[name]}
		delete(cases, name)
		t.Run(name, func(t *testing.T) { examine(t, one) })
	}
	t.Run("the others", func(t *testing.T) { examine(t, cases) })
}

// TestSessions: what holds dead rows back on this server.
func TestSessions(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	holder := db.Connect(t)
	name := fmt.Sprintf("doctor_%d", time.Now().UnixNano())
	for _, sql := range []string{
		`create table x (n int)`, `set application_name = 'forgetful'`,
		`begin`, `insert into x values (1)`, `prepare transaction '` + name + `'`,
		`select pg_create_physical_replication_slot('` + name + `', true)`,
		`begin isolation level repeatable read`, `select from x`,
	} {
		if _, err := holder.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	var list []Finding
	pgtest.Await(t, "its prepared transaction among the first five of the server", func() (bool, error) {
		list = Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema, LongTransaction: time.Microsecond})
		_, text := worst(list, "prepared transactions")
		return strings.Contains(text, name), nil
	})
	for idle, want := range map[int]int{0: 1, 3600: 0} { // seconds: its transaction is younger than an hour
		sql := "select n from (" + queryIdle + ") i (n, pid, age, app, hidden)"
		if n := pgtest.One[int](t, db, sql, 3600, idle); n != want {
			t.Errorf("%d sessions have been idle for %d s, want %d", n, idle, want)
		}
	}
	for _, sql := range []string{`rollback`, `rollback prepared '` + name + `'`, `select pg_drop_replication_slot('` +
		name + `')`} {
		if _, err := holder.Exec(t.Context(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	expect(t, list, "idle in transaction", Warn, "forgetful of ")
	expect(t, list, "prepared transactions", Warn, name)
	expect(t, list, "replication slots", Warn, name)
	if severity, text := worst(list, "oldest snapshot"); severity != Warn {
		t.Errorf("oldest snapshot: %s %s", severity, text) // whose it is depends on what else runs
	}
	expect(t, list, "schema outbox", Skip, "no tables of it here")
	expect(t, list, "schema", Fail, "no tables of effectonce here")
}

// TestHiddenSessions: a role that cannot see what other sessions do does not call them well.
func TestHiddenSessions(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, migrations.Outbox)
	other := db.Connect(t)
	// It has a snapshot, too.
	if _, err := other.Exec(t.Context(), `begin isolation level repeatable read; select`); err != nil {
		t.Fatal(err)
	}
	cfg := db.Pool.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `set role pg_read_all_data`) // which sees no statistics of others
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	list := Examine(t.Context(), Subject{DB: pool, Schema: db.Schema})
	expect(t, list, "idle in transaction", Warn, "are hidden from this role")
	expect(t, list, "oldest snapshot", Skip, "grant pg_read_all_stats to it")
	expect(t, Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema}), "idle in transaction", OK, "none")
}

// TestNextSteps: what is to be run is named whole, and does not harm.
func TestNextSteps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		look    func(*findings)
		want    string
		without string
	}{
		"a relay's slot": {
			func(f *findings) { f.slotList([]slot{{"effectonce_1", "shop", false, 0, true, "reserved"}}) },
			"relay wal drop", "pg_drop_replication_slot",
		},
		"another's slot": {
			func(f *findings) { f.slotList([]slot{{"debezium", "shop", false, 0, true, "reserved"}}) },
			"pg_drop_replication_slot('debezium')", "relay wal drop",
		},
		"a relay that waits": {
			func(f *findings) { f.troubled("r1, for 00:01:00: lane 22: its work is not done") },
			"Kafka throttles", "The error says",
		},
		"a relay with an error": {
			func(f *findings) { f.troubled("r1, for 00:01:00: no route") },
			"The error says", "Kafka throttles",
		},
		"a pooler without a connection": {
			func(f *findings) {
				f.unanswered(&pgconn.PgError{Code: "08P01", Severity: "FATAL", Message: "query_wait_timeout"})
			},
			"SHOW POOLS", "--database-url",
		},
		"no connection left": {
			func(f *findings) { f.unanswered(&pgconn.PgError{Code: pgerr.TooManyConnections}) },
			"max_connections", "--database-url",
		},
		"no topic": {
			func(f *findings) {
				f.topic(topic{Name: "t", Partitions: -1, Brokers: 5, Err: kafka.UnknownTopicOrPartition}, 4, 0)
			}, "--topic t --partitions 4 --replication-factor 3", "...",
		},
		"a topic of Kafka's own": {
			func(f *findings) {
				f.topic(topic{Name: "__consumer_offsets", Partitions: -1, Err: kafka.UnknownTopicOrPartition}, 0, 0)
			}, "another topic", "--create",
		},
		"held without WRITE": {
			func(f *findings) {
				f.held([]operator.Topic{{Topic: "t", Held: 1}},
					[]string{"host:8 holds topic t for 9s: [29] Topic Authorization Failed"})
			}, "Allow WRITE", "Mend",
		},
		"held without a leader": {
			func(f *findings) {
				f.held([]operator.Topic{{Topic: "t", Held: 1}},
					[]string{"host:8 holds topic t/0 for 9s: [5] Leader Not Available"})
			}, "what the relay names", "ACL",
		},
		"no topic, one broker": {
			func(f *findings) {
				f.topic(topic{Name: "t", Partitions: -1, Brokers: 1, Err: kafka.UnknownTopicOrPartition}, 0, 0)
			}, `--partitions "${PARTITIONS:?}" --replication-factor 1`, "--partitions 1 ",
		},
	} {
		var f findings
		c.look(&f)
		if next := f.list[0].Next + f.list[0].Command; !strings.Contains(next, c.want) ||
			strings.Contains(next, c.without) {
			t.Errorf("%s: %s, want %q in it and not %q", name, next, c.want, c.without)
		}
	}
}

// TestPausedIsNotHeld: what a person has paused does not go on by itself.
func TestPausedIsNotHeld(t *testing.T) {
	t.Parallel()
	var f findings
	at := time.Now()
	f.held([]operator.Topic{
		{Topic: "t", Partitions: 3, Held: 12, PausedAt: &at, PausedBy: "anna", Reason: "why"},
		{Topic: "u", Partitions: 3},
	}, nil)
	expect(t, f.list, "paused", Warn, "t (anna: why), 12 events")
	expect(t, f.list, "held", OK, "none")
	if got := f.list[0].Next + f.list[0].Command; got !=
		`Ask anna first: a pause has a reason.relay topics resume --topic=t --reason="..."` {
		t.Error(got)
	}
}

// TestNoServer: an outage is a finding, not a crash.
func TestNoServer(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://u:canary@127.0.0.1:1/d")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	list := Examine(t.Context(), Subject{DB: pool})
	expect(t, list, "postgres", Fail, "does not answer")
	if text := fmt.Sprint(list); strings.Contains(text, "canary") || strings.Contains(text, "\n") || !Failed(list) {
		t.Error(text)
	}
}

// TestKafka: topics that do not fit, on real brokers.
func TestKafka(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	day := fmt.Sprint((24 * time.Hour).Milliseconds())
	grown := kafkatest.Topic(t, 4, map[string]string{"retention.ms": "-1", "cleanup.policy": "compact"})
	fits := kafkatest.Topic(t, 3, map[string]string{"retention.ms": day})
	small := kafkatest.Topic(t, 3, map[string]string{"retention.ms": "2592000000", "retention.bytes": "4000"})
	remade, fresh := kafkatest.Topic(t, 3), kafkatest.Topic(t, 3)
	db.Exec(t, `insert into outbox_event (topic, type) values ('waiting-for', 'T')`)
	db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, created_at)
		values (1, 1, 'held-for', 0, 1, false, gen_random_uuid(), '', '', 'k', 'T', '', now())`)
	db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, created_at) select 1, 2, $1, -1, 2, false, gen_random_uuid(), '', '', 'k', 'T', '', now()`,
		fresh)
	kafkatest.Produce(t, fits, kafkatest.Record{Key: []byte("k"), Value: []byte("v")})
	for topic, partitions := range map[string]int{grown: 3, fits: 3, remade: 3, fresh: 3, "no-such-topic": 5} {
		db.Exec(t, `insert into outbox_topic (topic, partitions) values ($1, $2)`, topic, partitions)
	}
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('c', now(), 14)`)
	db.Exec(t, `insert into outbox_paused_topic (topic, paused_by, reason) values ('misspelt', 'anna', 'r'),
		('waiting-for', 'anna', 'r'), ('held-for', 'anna', 'r')`)
	examine := func(brokers ...string) []Finding {
		conn, err := kafkaconn.Config{Brokers: brokers}.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		return Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema, Kafka: conn, Topics: []string{fits, small}})
	}
	list := examine(kafkatest.Brokers(t)...)
	expect(t, list, "kafka", OK, "of cluster ")
	db.Exec(t, `update outbox_meta set kafka_cluster = 'another'`)
	expect(t, examine(kafkatest.Brokers(t)...), "kafka", Fail, "and the outbox publishes to another")
	expect(t, list, "topic "+grown, Fail, "4 partitions, pinned to 3")
	expect(t, list, "topic "+grown, Fail, "retention is for ever, the shortest inbox window here 14 days")
	expect(t, list, "topic "+small, Warn, "retention is 30 days or 4000 bytes of a partition, the shortest")
	expect(t, list, "topic "+grown, Fail, "cleanup.policy is compact")
	expect(t, list, "topic "+remade, Fail, "nothing was ever written to it")
	if severity, text := worst(list, "topic "+fresh); severity != Warn || !strings.Contains(text, "its pin") {
		t.Errorf("a topic that was made after its events: %s %s", severity, text)
	}
	expect(t, list, "topic "+fits, Warn, "one replica") // the tests' broker is alone
	expect(t, list, "topic no-such-topic", Fail, "does not exist")
	expect(t, list, "topic waiting-for", Fail, "does not exist")
	expect(t, list, "topic held-for", Fail, "does not exist")
	expect(t, list, "topic misspelt", Warn, "is paused, and does not exist")
	if _, text := worst(list, "topic "+fits); strings.Contains(text, "retention") || strings.Contains(text, "pinned") {
		t.Errorf("%s: %s", fits, text)
	}
	expect(t, examine("127.0.0.1:1"), "kafka", Fail, "does not answer")
}

// TestProgress: a consumer that decides nothing while records wait is no healthy one, whatever it is parked or halted.
func TestProgress(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	db := pgtest.New(t, migrations.Inbox)
	topic := kafkatest.Topic(t, 4)
	old, young := time.Now().Add(-5*time.Minute), time.Now().Add(30*time.Minute)
	for i, at := range []time.Time{old, old, young, old} {
		record := kafkatest.Record{Partition: int32(i), Value: []byte("v"), Time: at}
		kafkatest.Produce(t, topic, record, record)
	}
	conn, err := kafkaconn.Config{Brokers: kafkatest.Brokers(t)}.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t,
		`insert into inbox_consumer (consumer_name, floor, window_days, programs) select c, now(), 14,
			case c when 'left' then jsonb_build_object('p', jsonb_build_object('seen', now() - interval '17 min')) else jsonb_build_object('p', jsonb_build_object('host', 'a', 'group', '',
			'version', '', 'seen', now())) end
		from unnest('{stuck,slow,left,failing,crashing,well,grown,gone,open,soon,cut,ahead,shorter}'::text[]) c`)
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, attempts, updated_at,
				trying_at, trying_reason)
		select c, $1, partition, case partition when 0 then 1 else 2 end, 2, case c when 'crashing' then 2 else 0 end,
			now() - case c when 'crashing' then interval '0' else '2 minutes' end,
			case when c <> 'crashing' then now() - interval '2 minutes' end,
			'event 7 at offset 1, attempt ' || partition || E': no such\ncolumn'
		from unnest('{failing,crashing,left}'::text[]) c, unnest('{0,1,3}'::int[]) partition`, topic)
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, attempts, updated_at,
				halted_at) values
		('stuck', $1, 0, 1, 2, 0, now() - interval '2 minutes', null),
		('stuck', $1, 1, 2, 2, 0, now(), null), ('stuck', $1, 3, 2, 2, 0, now(), null),
		('slow', $1, 0, 2, 2, 0, now(), null), ('slow', $1, 3, 2, 2, 0, now(), null),
		('slow', $1, 1, 0, 2, 0, now(), null),
		('well', $1, 0, 2, 2, 0, now() - interval '1 hour', null), ('well', $1, 1, 2, 2, 0, now(), null),
		('well', $1, 2, 0, 2, 0, now() + interval '1 hour', null),
		('ahead', $1, 0, 2, 2, 0, now(), null), ('ahead', $1, 1, 2, 2, 0, now(), null),
		('ahead', $1, 2, 0, 2, 0, now() - interval '1 hour', null), ('ahead', $1, 3, 2, 2, 0, now(), null),
		('shorter', $1, 0, 7, 7, 0, now() - interval '1 hour', null), ('shorter', $1, 1, 2, 2, 0, now(), null),
		('shorter', $1, 3, 2, 2, 0, now(), null), ('left', $1, 2, 0, 0, 0, now() - interval '1 hour', null),
		('well', $1, 3, 0, 2, 0, now() - interval '1 hour', now())`, topic)
	grown := kafkatest.Topic(t, 4) // by a partition with records, a partition with a new one, and an empty partition
	kafkatest.Produce(t, grown, kafkatest.Record{Partition: 1, Value: []byte("v"), Time: old},
		kafkatest.Record{Partition: 2, Value: []byte("v"), Time: young})
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset) values
			('grown', $1, 0, 0, 0)`, grown)
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, updated_at) values
			('gone', $1 || '-deleted', 0, 7, 7, now()), ('gone', $1, 0, 1, 1, now() - interval '2 minutes'),
			('gone', $1, 1, 2, 2, now()), ('gone', $1, 3, 2, 2, now()), ('gone', $1, 9, 2, 2, now())`, topic)
	open := kafkatest.Topic(t, 1)
	leaveOpen(t, open, old)
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, updated_at) values
			('open', $1, 0, 1, 1, now() - interval '2 minutes')`, open)
	half := kafkatest.Topic(t, 3) // records of half a minute ago, and none that waits for as long
	now := time.Now()
	kafkatest.Produce(t, half, kafkatest.Record{Value: []byte("v"), Time: now.Add(-30 * time.Second)},
		kafkatest.Record{Value: []byte("v"), Time: now.Add(time.Hour)},
		kafkatest.Record{Partition: 1, Value: []byte("v"), Time: now.Add(time.Hour)},
		kafkatest.Record{Partition: 2, Value: []byte("v"), Time: now.Add(-30 * time.Second)})
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, updated_at)
		select 'soon', $1, partition, 0, 0, now() - interval '2 minutes' from generate_series(0, 2) partition`, half)
	cut := kafkatest.Topic(t, 2)
	for i := range int32(2) {
		record := kafkatest.Record{Partition: i, Value: []byte("v"), Time: old}
		kafkatest.Produce(t, cut, record, record, record)
		kafkatest.DeleteBefore(t, cut, i, 3)
	}
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, updated_at) values
			('cut', $1, 0, 1, 1, now() - interval '2 minutes'), ('cut', $1, 1, 1, 1, now())`, cut)
	list := Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema, Kafka: conn})
	if text := whole(list, "progress cut"); !strings.HasPrefix(text, "Kafka deleted records unread: "+cut+
		"/0 (2 offsets, from 1)\n") || strings.Contains(text, "wait") {
		t.Errorf("of a log that was cut: %s", text)
	}
	expect(t, list, "progress soon", Warn,
		"no batch is running: "+half+"/0 (at 0 of 2), "+half+"/2 (at 0 of 1), unmoved for 2m")
	expect(t, list, "progress stuck", Fail, "nothing is decided, and no batch is running: "+topic+"/0 (at 1 of 2), "+
		"unmoved for 2m")
	expect(t, list, "progress slow", Warn,
		"2 records older than 40s are not decided, 100 % of them in "+topic+"/1")
	for check, c := range map[string]struct {
		severity Severity
		parts    []string
	}{
		"progress failing": {Fail, []string{
			"the effect fails: no such column: " + topic + "/0 (at 1 of 2), since 2m",
			"relay inbox resume --schema=" + db.Schema + " --consumer=failing --topic=" + topic + " --partition=0",
		}},
		"progress crashing": {Warn, []string{
			"an event ends the process of its worker: " + topic + "/0 (at 1 of 2), counted runs: 2", "exit code",
			"relay inbox skip --schema=" + db.Schema + " --consumer=crashing --topic=" + topic +
				" --partition=0 --to=2",
		}},
		"progress left": {Fail, []string{
			"no worker runs it, the last one left 17m", " ago; the effect has failed: no such column: " + topic +
				"/0 (at 1 of 2)", "Start its workers", " ago: " + topic + "/2 (at 0 of 2)",
		}},
		"progress shorter": {Fail, []string{
			"the log ends before the progress: " + topic + "/0 (at 7 of 2)",
			"nothing is decided, and no batch is running: " + topic + "/0 (at 0 of 2)",
		}},
	} {
		severity, _ := worst(list, check)
		text := whole(list, check)
		for _, part := range c.parts {
			if severity != c.severity || !strings.Contains(text, part) || strings.Contains(text, "more workers help") {
				t.Errorf("%s: %s %q, want %s %q, and no more workers", check, severity, text, c.severity, part)
			}
		}
	}
	expect(t, list, "progress ahead", Skip, "is ahead of this machine's clock, and hides how long those behind it "+
		"wait: "+topic+"/2 (at 0 of 2)")
	expect(t, list, "progress well", OK, "no record older than 40s waits in 3 partitions")
	expect(t, list, "progress open", Fail, "an open Kafka transaction holds records: "+open+"/0 (at 1 of 3)")
	if _, text := worst(list, "progress stuck"); strings.Contains(text, "transaction") {
		t.Errorf("no transaction is open there: %s", text)
	}
	// What is gone hides nothing of the others.
	expect(t, list, "progress gone", Fail, topic+"/0 (at 1 of 2)")
	expect(t, list, "progress gone", Fail, "topic "+topic+"-deleted does not exist any more\n")
	expect(t, list, "progress gone", Fail, topic+"/9 does not exist any more\n")
	if severity, text := worst(list, "progress grown"); severity != Fail ||
		!strings.Contains(text, "the database does not know "+grown+"/1 (1 record older than 40s)\n") {
		t.Errorf("a topic that has grown: %s %s", severity, text)
	}
}

// whole is all that the findings of a check say.
func whole(list []Finding, check string) (text string) {
	for _, f := range list {
		if f.Check == check {
			text += strings.Join([]string{f.Found, f.Means, f.Next, f.Command}, "\n") + "\n"
		}
	}
	return text
}

// leaveOpen produces a record, and two of a transaction that stays open until the end of the test.
func leaveOpen(t *testing.T, topic string, at time.Time) {
	t.Helper()
	kafkatest.Produce(t, topic, kafkatest.Record{Value: []byte("v"), Time: at})
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Brokers(t)...), kgo.TransactionalID(topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	record := kgo.Record{Topic: topic, Value: []byte("v"), Timestamp: at}
	again := record
	if err := client.ProduceSync(t.Context(), &record, &again).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// TestJudgements are those that no test can provoke here.
func TestJudgements(t *testing.T) {
	t.Parallel()
	var healthy server
	healthy.Failsafe = 1_600_000_000
	healthy.Number, healthy.Fsync, healthy.FullPageWrites, healthy.SynchronousCommit, healthy.Autovacuum = 150003, true,
		true, "on", true
	with := func(change func(*server)) func(*findings) {
		return func(f *findings) { s := healthy; change(&s); f.server(s) }
	}
	topicOf := func(change func(*topic), window time.Duration) func(*findings) {
		return func(f *findings) {
			t := topic{Name: "t", Partitions: 3, Replication: 3, Settings: map[string]string{
				"min.insync.replicas": "2", "retention.ms": "604800000", "cleanup.policy": "delete",
				"unclean.leader.election.enable": "false",
			}}
			change(&t)
			f.topic(t, 3, window)
		}
	}
	byID := inboxoperator.ConsumerDiagnosis{ConsumerState: inboxoperator.ConsumerState{Dedup: "id"}}
	twice := inboxoperator.ConsumerDiagnosis{ConsumerState: inboxoperator.ConsumerState{
		Consumer: "ledger",
		Programs: []inboxoperator.Program{{Name: "acme/copy", Host: "b"}, {Name: "acme/ledger", Host: "a"}},
	}}
	for name, c := range map[string]struct {
		look     func(*findings)
		check    string
		severity Severity
		part     string
	}{
		"primary":   {with(func(*server) {}), "primary", OK, "a primary"},
		"standby":   {with(func(s *server) { s.Recovery = true }), "primary", Fail, "standby"},
		"read-only": {with(func(s *server) { s.ReadOnly = true }), "primary", Fail, "read-only"},
		"too old":   {with(func(s *server) { s.Number = 140010 }), "primary", Fail, "Postgres"},
		"durable":   {with(func(*server) {}), "durability", OK, "no standby"},
		"no fsync":  {with(func(s *server) { s.Fsync = false }), "durability", Fail, "fsync off"},
		"asynchronous commit": {
			with(func(s *server) { s.SynchronousCommit = "off" }), "durability", Warn,
			"off by default",
		},
		"commit at the primary alone": {
			with(func(s *server) { s.SynchronousCommit, s.SynchronousStandbys = "local", "a" }), "durability", Warn,
			"local by default",
		},
		"asynchronous standby": {
			with(func(s *server) { s.Standbys = 2 }), "durability", Warn,
			"none of them synchronous",
		},
		"synchronous standby": {
			with(func(s *server) { s.InSync, s.Wanted, s.SynchronousStandbys = 1, 1, "a" }), "durability", OK,
			"synchronous standbys: a",
		},
		"hidden standbys": {
			with(func(s *server) { s.Hidden, s.Wanted, s.SynchronousStandbys = 1, 1, "a" }), "durability", Skip,
			"may not see",
		},
		"ids for years":    {with(func(s *server) { s.Age = 200_000_000 }), "wraparound", OK, "1947 million"},
		"vacuum is behind": {with(func(s *server) { s.Age = 1_700_000_000 }), "wraparound", Warn, "447 million"},
		"ids end":          {with(func(s *server) { s.Age = 2_100_000_000 }), "wraparound", Fail, "47 million"},
		"no autovacuum":    {with(func(s *server) { s.Autovacuum = false }), "autovacuum", Fail, "off"},
		"clock fits":       {func(f *findings) { f.difference(-time.Second) }, "clock", OK, "1s"},
		"clock off":        {func(f *findings) { f.difference(-time.Minute) }, "clock", Warn, "1m0s"},
		"clock far off":    {func(f *findings) { f.difference(time.Hour) }, "clock", Fail, "1h0m0s"},
		"hash": {
			func(f *findings) { f.lanes(operator.Diagnosis{ChangedHashes: []string{"a"}}) },
			"hash", Fail, "1 of the test vectors",
		},
		"dead rows": {
			func(f *findings) { f.vacuum(operator.VacuumDiagnosis{Dead: deadRows + 1}) }, "vacuum",
			Warn, "500001 dead",
		},
		"grants": {func(f *findings) {
			f.outbox(operator.Diagnosis{MissingRights: []string{"table x: select"}})
		}, "grants", Fail, "table x: select"},
		"inbox grants": {func(f *findings) {
			f.inbox(inboxoperator.Diagnosis{MissingRights: []string{"table inbox_parked: insert"}})
		}, "inbox grants", Fail, "inbox_parked: insert"},
		"known by its start": {func(f *findings) {
			f.outbox(operator.Diagnosis{ByStart: true})
		}, "identity", Warn, "time of its start"},
		"inbox known by its start": {func(f *findings) {
			f.inbox(inboxoperator.Diagnosis{ByStart: true})
		}, "inbox identity", Warn, "time of its start"},
		"days run out": {func(f *findings) {
			f.inbox(inboxoperator.Diagnosis{DaysAhead: 1, Consumers: []inboxoperator.ConsumerDiagnosis{byID}})
		}, "inbox days", Fail, "1 day ahead"},
		"parks most": {func(f *findings) {
			one := inboxoperator.ConsumerDiagnosis{Parked: 900, Parks: inboxoperator.Parks{
				Events: 469, Code: "fee_missing", OfCode: 469, Effects: 3,
			}}
			one.Consumer = "ledger"
			f.consumer(one)
		}, "consumer ledger", Fail, "most of its last events are parked, 469 in two minutes: fee_missing x 469"},
		"parks a few keys": {func(f *findings) {
			one := inboxoperator.ConsumerDiagnosis{Parked: 900, Parks: inboxoperator.Parks{Events: 40, Effects: 50}}
			one.Consumer = "ledger"
			f.consumer(one)
		}, "consumer ledger", Warn, "900 events parked"},
		"two programs": {func(f *findings) {
			f.inbox(inboxoperator.Diagnosis{DaysAhead: 7, Consumers: []inboxoperator.ConsumerDiagnosis{twice}})
		}, "consumer ledger", Warn, "acme/copy (on b), acme/ledger (on a)"},
		"days run low": {func(f *findings) {
			f.inbox(inboxoperator.Diagnosis{DaysAhead: 3, Consumers: []inboxoperator.ConsumerDiagnosis{byID}})
		}, "inbox days", Warn, "3 days ahead"},
		"pending detach": {
			func(f *findings) { f.inbox(inboxoperator.Diagnosis{DaysAhead: 7, Pending: []string{"p"}}) },
			"inbox days", Warn, "interrupted detach: p",
		},
		"lazy slot": {
			func(f *findings) { f.slotList([]slot{{"s", "", true, 20_000_000, true, "reserved"}}) },
			"replication slots", Warn, "slot s",
		},
		"busy slot": {
			func(f *findings) { f.slotList([]slot{{"s", "", true, 20, true, "extended"}}) },
			"replication slots", OK, "1, none",
		},
		"one is silent": {func(f *findings) {
			f.leases(operator.Diagnosis{Members: 1, Silent: []operator.SilentRelay{
				{Name: "host:7", Ago: 2 * time.Minute},
			}})
		}, "leases", Warn, "host:7"},
		"no relay for long": {func(f *findings) {
			f.leases(operator.Diagnosis{WaitingLanes: 1, Oldest: 137 * time.Second})
		}, "leases", Fail, "the oldest waits 2m17s"},
		"a backlog drains": {func(f *findings) {
			f.leases(operator.Diagnosis{WaitingLanes: 1, Members: 1, Oldest: time.Hour, Publishes: true})
		}, "leases", Warn, "the oldest waits 1h"},
		"a lane does not": {func(f *findings) {
			f.leases(operator.Diagnosis{
				WaitingLanes: 1, Members: 1, Oldest: time.Hour, Publishes: true, Troubled: []string{"lane 3"},
			})
		}, "leases", Fail, "the oldest waits 1h"},
		"no connection left": {
			func(f *findings) { f.unanswered(&pgconn.PgError{Code: pgerr.TooManyConnections}) }, "postgres", Fail,
			"53300",
		},
		"a topic that is kept small": {
			topicOf(func(t *topic) { t.Settings["retention.bytes"] = "4000" }, 0), "topic t", OK,
			"retention 7 days or 4000 bytes of a partition",
		},
		"good topic": {topicOf(func(*topic) {}, 14*24*time.Hour), "topic t", OK, "retention 7 days"},
		"no inbox here": {
			topicOf(func(t *topic) { t.Settings["retention.ms"] = "-1" }, 0), "topic t", OK,
			"retention for ever",
		},
		"a replica away":    {topicOf(func(t *topic) { t.Away = 1 }, 0), "topic t", OK, "3 replicas"},
		"too many away":     {topicOf(func(t *topic) { t.Away = 2 }, 0), "topic t", Fail, "1 of 3 replicas are"},
		"as many as it has": {topicOf(func(t *topic) { t.Replication = 1 }, 0), "topic t", Warn, "one replica"},
		"min.insync 1": {
			topicOf(func(t *topic) { t.Settings["min.insync.replicas"] = "1" }, 0), "topic t", Warn,
			"min.insync.replicas is 1",
		},
		"min.insync all": {
			topicOf(func(t *topic) { t.Settings["min.insync.replicas"] = "3" }, 0), "topic t", Warn,
			"3 of 3 replicas",
		},
		"unclean": {
			topicOf(func(t *topic) { t.Settings["unclean.leader.election.enable"] = "true" }, 0),
			"topic t", Warn, "unclean",
		},
		"remade": {topicOf(func(t *topic) { t.Empty = true }, 0), "topic t", Fail, "published to it, and nothing"},
		"made after its events": {
			topicOf(func(t *topic) { t.Empty, t.Unacked = true, true }, 0), "topic t", Warn, "older than its pin",
		},
		"leaderless": {
			topicOf(func(t *topic) { t.Leaderless = []int{2, 0} }, 0), "topic t", Fail,
			"2 of 3 partitions have no leader: 0 2\n",
		},
		"long retention": {topicOf(func(*topic) {}, 3*24*time.Hour), "topic t", Warn, "retention is 7 days"},
	} {
		var f findings
		c.look(&f)
		if severity, text := worst(f.list, c.check); severity != c.severity || !strings.Contains(text, c.part) {
			t.Errorf("%s: %s %s, want %s with %q", name, severity, text, c.severity, c.part)
		}
	}
}
