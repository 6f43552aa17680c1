package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestP8ScheduledCommands(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema, "USER": "kim"}
	db.Exec(t,
		`insert into outbox_scheduled (due, topic, key, type) values (timestamptz '2126-01-02 03:04:05+00', 'payments',
				'k', 'T')`)
	if code, text, stderr := command(t, env, "scheduled", "list"); code != codeOK ||
		!regexp.MustCompile(`(?m)^1 +2126-01-02T03:04:05Z +payments +- +"k" +T +-1 +-$`).MatchString(text) {
		t.Errorf("exit code %d: %s\n%s", code, stderr, text)
	}
	if code, text, _ := command(t, env, "status"); code != codeOK ||
		!regexp.MustCompile(`(?m)^SCHEDULED .*\n1 +0 +2126-01-02T03:04:05Z$`).MatchString(text) {
		t.Errorf("status, exit code %d:\n%s", code, text)
	}
	const due = "--due=2126-01-02T03:04:05Z"
	for want, args := range map[string][]string{
		"--seq": {"--reason=r"}, "--reason": {"--seq=1", due}, "--due": {"--seq=1", "--reason=r"},
	} {
		if code, _, stderr := command(t, env, append([]string{"scheduled", "cancel"}, args...)...); code != codeUsage ||
			!strings.Contains(stderr, want) {
			t.Errorf("without %s: exit code %d: %s", want, code, stderr)
		}
	}
	if code, _, stderr := command(t, env, "scheduled", "cancel", "--seq=1", due, "--reason=paid"); code != codeOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_scheduled`); n != 0 {
		t.Error("the event is still scheduled")
	}
	if code, text, _ := command(t, env, "scheduled", "list", "--json"); code != codeOK ||
		strings.TrimSpace(text) != "[]" {
		t.Errorf("exit code %d: %s", code, text)
	}
}

// TestP8ScheduledCancelAll: an empty key or tenant means the events without one, and none means any.
func TestP8ScheduledCancelAll(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema, "USER": "kim"}
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, tenant, type) values
		(now() + interval '1 hour', 'a', '', '', 'T'), (now() + interval '1 hour', 'a', 'k', '', 'T'),
		(now() + interval '1 hour', 'a', 'k', 'acme', 'T')`)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"--reason=r", codeUsage, "--topic is missing"},
		{"--topic=a", codeUsage, "--reason is missing"},
		{"--topic=b --reason=r", codeFailed, "not scheduled"},
		{"--topic=a --key= --reason=r", codeOK, "1 event will not be published."},
		{"--topic=a --key=k --tenant=acme --reason=r --json", codeOK, `"events": 1`},
		{"--topic=a --reason=r", codeOK, "1 event will not be published."},
	} {
		args := append([]string{"scheduled", "cancel-all"}, strings.Fields(c.args)...)
		if code, text, stderr := command(t, env, args...); code != c.code || !strings.Contains(text+stderr, c.says) {
			t.Errorf("%s: exit code %d: %s%s", c.args, code, text, stderr)
		}
	}
}
