package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

func TestTopicsCommands(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema, "USER": "kim"}
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 6)`)
	db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, created_at)
		select 1, g, 'payments', 0, g, g = 1, ('00000000-0000-7000-8000-00000000000' || g)::uuid, '', '', 'k', 'T', '',
			now() from generate_series(1, 3) g`)
	db.Exec(t, `insert into outbox_event (topic, type) values ('waiting', 'T')`)
	for _, c := range []struct {
		args []string
		code int
		want string // in stdout and stderr
	}{
		{[]string{"topics", "held"}, codeUsage, "--topic"},
		{[]string{"topics", "held", "--topic=payments"}, codeOK, "00000000-0000-7000-8000-000000000001"},
		{[]string{"topics", "show"}, codeUsage, "--topic"},
		{[]string{"topics", "show", "--topic=none"}, codeFailed, "no such topic"},
		{[]string{"topics", "show", "--topic=payments"}, codeOK, "0 events are being published and 3 are held"},
		{[]string{"topics", "show", "--topic=payments", "--json"}, codeOK, `"held_uncertain": 3`},
		{[]string{"topics", "discard", "--topic=payments", "--reason=gone"}, codeUsage, "--all"},
		{[]string{"topics", "discard", "--topic=payments", "--all"}, codeUsage, "--reason"},
		{[]string{
			"topics", "discard", "--topic=payments", "--message-id=00000000-0000-7000-8000-000000000001",
			"--reason=gone",
		}, codeOK, "each may still appear once"},
		{[]string{"topics", "discard", "--topic=payments", "--all", "--reason=gone"}, codeOK, "2 events are given up"},
		{[]string{"topics", "discard", "--topic=payments", "--all", "--reason=gone"}, codeFailed, "not held"},
		{[]string{"topics", "pause", "--reason=r"}, codeUsage, "--topic"},
		{[]string{"topics", "pause", "--topic=payments"}, codeUsage, "--reason"},
		{[]string{"topics", "pause", "--topic=payments", "--reason=the ledger is away"}, codeOK, "until it is res"},
		{[]string{"topics", "pause", "--topic=paymnets", "--reason=r"}, codeOK, "is that its name?"},
		{[]string{"topics", "resume", "--topic=paymnets", "--reason=misspelt"}, codeOK, "goes on"},
		{[]string{"topics", "pause", "--topic=waiting", "--reason=r"}, codeOK, "until it is resumed.\n"},
		{[]string{"topics", "pause", "--topic=payments,waiting", "--reason=r"}, codeUsage, "is no topic's name"},
		{[]string{"topics", "list"}, codeOK, "kim"},
		{[]string{"topics", "list", "--json"}, codeOK, `"reason": "the ledger is away"`},
		{[]string{"topics", "resume", "--topic=payments", "--reason=it is back"}, codeOK, "goes on"},
		{[]string{"topics", "resume", "--topic=payments", "--reason=again"}, codeFailed, "has not paused it"},
		{[]string{"topics", "accept", "--topic=payments", "--reason=resized"}, codeUsage, "at least 1"},
		{
			[]string{"topics", "accept", "--topic=payments", "--partitions=12", "--reason=resized"},
			codeOK,
			"pinned to 12",
		},
		{[]string{"topics", "accept-cluster", "--reason=moved"}, codeUsage, "--cluster"},
		{[]string{"topics", "accept-cluster", "--cluster=abc"}, codeUsage, "--reason"},
		{
			[]string{"topics", "accept-cluster", "--cluster=abc", "--reason=moved"},
			codeOK,
			"pinned to Kafka cluster abc",
		},
	} {
		code, stdout, stderr := command(t, env, c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("%v: exit code %d:\n%s%s", c.args, code, stdout, stderr)
		}
	}
	if _, table, _ := command(t, env, "topics", "list"); !regexp.MustCompile(`(?m)^payments +12 +0 +- `).MatchString(
		table) {
		t.Errorf("the list is\n%s", table)
	}
}

// TestAcceptComparesWithKafka: a count that the topic does not have is refused, and nothing is changed.
func TestAcceptComparesWithKafka(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 3)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ($1, 6)`, topic)
	env := settings(db, kafkatest.Brokers(t)...)
	accept := func(count, topic string) (int, string) {
		t.Helper()
		code, stdout, stderr := command(t, env, "topics", "accept", "--reason=r", "--topic", topic, "--partitions",
			count)
		return code, stdout + stderr
	}
	if code, text := accept("5", topic); code != codeUsage || !strings.Contains(text, "has 3 partitions in Kafka") {
		t.Errorf("exit code %d: %s", code, text)
	}
	if code, text := accept("5", "no-such-topic"); code != codeFailed || !strings.Contains(text, "kafka (without") {
		t.Errorf("exit code %d: %s", code, text)
	}
	if n := pgtest.One[int](t, db, `select partitions from outbox_topic`); n != 6 {
		t.Errorf("pinned to %d", n)
	}
	if code, text := accept("3", topic); code != codeOK {
		t.Errorf("exit code %d: %s", code, text)
	}
}

// TestAcceptClusterComparesWithKafka: the id of a cluster that does not answer is not pinned by mistake.
func TestAcceptClusterComparesWithKafka(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := settings(db, kafkatest.Brokers(t)...)
	accept := func(env environment, cluster string) (int, string) {
		t.Helper()
		code, stdout, stderr := command(t, env, "topics", "accept-cluster", "--reason=r", "--cluster="+cluster)
		return code, stdout + stderr
	}
	code, text := accept(env, "another")
	found := regexp.MustCompile(`are of cluster (\S+), not of another`).FindStringSubmatch(text)
	if code != codeUsage || found == nil {
		t.Fatalf("exit code %d: %s", code, text)
	}
	if code, text := accept(env, found[1]); code != codeOK || strings.Contains(text, "not compared") {
		t.Errorf("exit code %d: %s", code, text)
	}
	if code, text := accept(env.with("RELAY_KAFKA_BROKERS", ""), "another"); code != codeOK ||
		!strings.Contains(text, "is not compared") {
		t.Errorf("exit code %d: %s", code, text)
	}
}

// TestListsSayThatTheyEnd: a list that ends at its limit says so beside it, and one that is whole does not.
func TestListsSayThatTheyEnd(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Idempotency)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema, "USER": "kim"}
	db.Exec(t, `insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
			content_type, created_at)
		values (1, 1, 'payments', 0, 1, false, gen_random_uuid(), '', '', 'k', 'T', '', now())`)
	db.Exec(t, `insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code, message_id, source,
			tenant, topic, key, type, content_type, created_at)
		values (1, 2, false, false, 1, 'r', 'C', gen_random_uuid(), '', '', 'payments', 'k', 'T', '', now())`)
	db.Exec(t, `insert into outbox_parked_key (lane, tenant, topic, key, state, reason, code)
		values (1, '', 'payments', 'k', 'parked', 'r', 'C')`)
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload)
		values (now() + interval '1 hour', 'payments', 'k', 'T', '')`)
	if code, text, stderr := command(t, env, "topics", "pause", "--topic=t", "--reason=r"); code != codeOK {
		t.Fatal(text, stderr)
	}
	for _, list := range []string{
		"parked list", "parked keys", "scheduled list", "audit", "topics held --topic=payments",
	} {
		for limit, says := range map[string]bool{"1": true, "2": false} {
			code, text, stderr := command(t, env, append(strings.Fields(list), "--limit="+limit)...)
			if code != codeOK || strings.Contains(stderr, "the list ends at --limit") != says {
				t.Errorf("%s with the limit %s: exit code %d: %s%s", list, limit, code, text, stderr)
			}
		}
	}
}
