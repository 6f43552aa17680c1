package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestReplayCommand(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema, "USER": "kim"}
	db.Exec(t,
		`insert into outbox_archive (published_at, epoch, lane, seq, id, message_id, source, tenant, topic, key, type,
				content_type, payload, created_at)
		select timestamptz '2026-01-02 03:00:00+00' + g * interval '1 min', 'e.1', 3, g, g, gen_random_uuid(), '', '',
			'payments', 'k' || g % 2, 'T', '', 'body', now() from generate_series(1, 30) g`)
	for name, args := range map[string][]string{
		"--from": {"replay", "--topic=payments", "--reason=r"}, "--topic": {
			"replay", "--from=2026-01-02T03:00:00Z",
			"--reason=r",
		},
		"--reason": {"replay", "--from=2026-01-02T03:00:00Z", "--topic=payments"},
	} {
		if code, _, stderr := command(t, env, args...); code != codeUsage || !strings.Contains(stderr, name) {
			t.Errorf("without %s: exit code %d: %s", name, code, stderr)
		}
	}
	args := []string{
		"replay", "--from=2026-01-02T03:00:00Z", "--to=2026-01-02T03:25:00Z", "--topic=payments",
		"--key=k1",
	}
	code, text, stderr := command(t, env, append(args, "--dry-run")...)
	if code != codeOK || !regexp.MustCompile(
		`(?s)^12 events of 1 key, 48 bytes, published from 2026-01-02T03:01:00Z to 2026-01-02T03:23:00Z\..*\n1 +2026-01-02T03:01:00Z .* payments +k1 +T +4\n.*Nothing was changed`).MatchString(text) {
		t.Errorf("dry run: exit code %d: %s\n%s", code, stderr, text)
	}
	code, text, stderr = command(t, env, append(args, "--reason=the ledger lost them")...)
	if code != codeOK || !strings.HasPrefix(text, "12 events are in the outbox again") {
		t.Errorf("exit code %d: %s\n%s", code, stderr, text)
	}
	if got := pgtest.One[string](t, db,
		`select count(*) || ' ' || min(key) || ' ' || max(key) from outbox_event`); got != "12 k1 k1" {
		t.Errorf("the outbox has %s", got)
	}
	if code, text, _ = command(t, env, "replay", "--from=2027-01-02T03:00:00Z", "--topic=payments",
		"--dry-run"); code != codeOK || !strings.Contains(text, "no such events") {
		t.Errorf("exit code %d: %s", code, text)
	}
}

func TestReplayQueryCommand(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema, "USER": "kim"}
	db.Exec(t, `create table orders (n integer, event uuid, body jsonb)`)
	db.Exec(t,
		`insert into orders select g, case when g <= 2 then '0198c0de-0000-7000-8000-000000000001'
			else gen_random_uuid() end, '{"a": 1}' from generate_series(1, 30) g`)
	query := `select event as message_id, 'orders' as topic, n::text as key, 'OrderPlaced' as type,
		convert_to(body::text, 'UTF8') as payload
		from ` + db.Schema + `.orders where n <> 2 order by n`
	code, text, stderr := command(t, env, "replay", "--dry-run", "--query", strings.Replace(query, "where n <> 2", "",
		1))
	if code != codeOK || !regexp.MustCompile(
		`(?s)^30 events of 30 keys, 240 bytes\. 1 of them repeat the id of another one\. The first:.*\n1 +- +0198c0de.* orders +1 +OrderPlaced +8\n.*\n10 .*Nothing was changed`).MatchString(text) || strings.Contains(text, "\n11 ") {
		t.Errorf("dry run: exit code %d: %s\n%s", code, stderr, text)
	}
	for name, args := range map[string][]string{"excludes --from": {"--topic=orders", "--reason=r"}, "--reason": {}} {
		if code, _, stderr := command(t, env, append([]string{"replay", "--query", query},
			args...)...); code != codeUsage || !strings.Contains(stderr, name) {
			t.Errorf("%s: exit code %d: %s", name, code, stderr)
		}
	}
	if code, text, stderr = command(t, env, "replay", "--query", query,
		"--reason=the topic was deleted"); code != codeOK || !strings.HasPrefix(text,
		"29 events are in the outbox again") {
		t.Errorf("exit code %d: %s\n%s", code, stderr, text)
	}
	// A missing table is an error of the query, not of the outbox.
	code, _, stderr = command(t, env, "replay", "--query", "select * from nowhere", "--reason=r")
	if code != codeFailed || !strings.Contains(stderr, `relation "nowhere" does not exist`) ||
		strings.Contains(stderr, "relay migrate") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	// How to continue.
	code, _, stderr = command(t, env, "replay", "--reason=r", "--query",
		`select gen_random_uuid() as message_id, case g when 600 then '' else 'orders' end as topic,
		'' as key, 'T' as type, null::bytea as payload from generate_series(1, 700) g`)
	if code != codeFailed || !strings.Contains(stderr, "row 600: Topic") || !strings.Contains(stderr, "--after 500") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestArchiveCommand(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema}
	if code, _, stderr := command(t, env, "archive", "maintain"); code != codeUsage ||
		!strings.Contains(stderr, "--archive-days") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, _, stderr := command(t, env, "archive", "maintain", "--archive-days=30"); code != codeOK ||
		!strings.Contains(stderr, "maintained") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	today := "outbox_archive_" + time.Now().UTC().Format("20060102")
	if !pgtest.One[bool](t, db,
		`select exists (select from pg_inherits i join pg_class c on c.oid = i.inhrelid where c.relname = $1
				and i.inhparent = 'outbox_archive'::regclass)`, today) {
		t.Errorf("there is no %s", today)
	}
}
