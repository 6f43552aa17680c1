package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestParkedGroups: events with a common failure are counted, released and discarded by it.
func TestParkedGroups(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := settings(db, deadBroker)
	db.Exec(t, `insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code, message_id, source,
			tenant, topic, key, type, content_type, created_at, parked_at)
		select 7, g, key = '', g = 1, 1 - (g % 2), 'r', 'LARGE', gen_random_uuid(), '', '', 't', key, type, '', now(),
			'2026-03-01 10:00Z'::timestamptz + g * interval '1 hour'
		from (values (2, 'a', 'Paid'), (3, 'a', 'Paid'), (4, '', 'Paid'), (6, 'b', 'Lost')) e (g, key, type)`)
	db.Exec(t, `insert into outbox_parked_key (lane, tenant, topic, key, reason, code, since)
		values (7, '', 't', 'a', 'r', 'LARGE', '2026-03-01 12:00Z'), (7, '', 't', 'b', 'r', '', '2026-03-01 16:00Z')`)
	must := func(args ...string) string {
		t.Helper()
		code, text, stderr := command(t, env, append([]string{"parked"}, args...)...)
		if code != codeOK {
			t.Fatalf("%v: %d %s", args, code, stderr)
		}
		return text
	}
	for _, want := range []string{
		`(?m)^1 +1 +t +Paid +refused +LARGE +2026-03-01T12:00:00Z +2026-03-01T14:00:00Z +r$`,
		`(?m)^1 +0 +t +Lost +refused +- `,
	} {
		if text := must("failures"); !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if text := must("failures", "--by=hour", "--type=Paid"); strings.Count(text, "Paid") != 2 {
		t.Error(text)
	}
	var groups []struct{ Keys, Alone int }
	if err := json.Unmarshal([]byte(must("failures", "--code=", "--json")), &groups); err != nil || len(groups) != 1 {
		t.Errorf("%v %+v", err, groups)
	}
	like := []string{"--all", "--topic=t", "--type=Paid", "--code=LARGE", "--until=2026-03-01T14:00:00Z"}
	if text := must(append([]string{"discard", "--dry-run"}, like...)...); text !=
		"3 events, of 1 key and 1 lone event. Nothing is changed.\n" {
		t.Error(text)
	}
	if text := must(append([]string{"discard", "--limit=1", "--reason=r"}, like...)...); !strings.HasPrefix(text,
		"Given up for good: 1 event, of 1 key and 0 lone events, of each key the first. What waits behind ") {
		t.Error(text)
	}
	if text := must("release", "--all", "--dry-run", "--type=Paid", "--kind=behind"); !strings.HasPrefix(text,
		"1 event, of 1 key and 0 lone events") {
		t.Error(text)
	}
	if text := must("release", "--all", "--since=2026-03-01T16:00:00Z", "--reason=r"); !strings.HasPrefix(text,
		"Released: 1 event, of 1 key and 0 lone events") {
		t.Error(text)
	}
	text := must("release", "--all", "--reason=r")
	if !strings.HasPrefix(text, "Released: 2 events, of 1 key and 1 lone event") ||
		!strings.HasSuffix(text, "relay parked list shows it.\n") {
		t.Error(text)
	}
	if n := pgtest.One[int64](t, db, `select count(*) from outbox_audit`); n != 4 {
		t.Errorf("the audit has %d rows", n)
	}
	for _, args := range []string{
		"release --topic=t --key=a --dry-run --reason=r", "discard --id=3 --limit=1 --reason=r",
		"release --all --limit=-1 --reason=r", "discard --all",
		"discard --all --kind=behind --reason=r",
	} {
		code, _, stderr := command(t, env, append([]string{"parked"}, strings.Fields(args)...)...)
		if code != codeUsage {
			t.Errorf("%s: %d %s", args, code, stderr)
		}
	}
}
