package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

func TestP5FenceCommand(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema}
	if code, _, stderr := command(t, env, "fence"); code != codeUsage || !strings.Contains(stderr, "--reason") {
		t.Errorf("without a reason: exit code %d: %s", code, stderr)
	}
	fill(t, db, "payments", 10)
	db.Exec(t, `select setval('outbox_event_id_seq', 3)`)
	code, text, stderr := command(t, env, "fence", "--reason", "restored last night", "--operator", "kim")
	if code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		"A new numbering has begun: ", "advanced to 10", "10 events wait",
		"watermark",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the output:\n%s", want, text)
		}
	}
	code, text, stderr = command(t, env.with("USER", "lee"), "fence", "--reason=again", "--json")
	var f operator.FenceResult
	if err := json.Unmarshal([]byte(text), &f); err != nil || code != codeOK || f.Waiting != 10 || f.Forwarded {
		t.Errorf("exit code %d: %v: %s%s", code, err, text, stderr)
	}
	if got := pgtest.One[string](t, db,
		`select string_agg(operator || ':' || reason, ',' order by id) from outbox_audit`); got != "kim:restored "+
		"last night,lee:again" {
		t.Errorf("the audit has %s", got)
	}
}
