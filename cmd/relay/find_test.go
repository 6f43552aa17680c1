package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestFindCommand: a text is searched in the tables that exist, and tables without an index for it are named.
func TestFindCommand(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema}
	id := pgtest.One[string](t, db, `insert into outbox_event (topic, key, type, payload)
		values ('payments', 'pay-1', 'Paid', 'canary-payload') returning message_id::text`)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', now(), 3)`)
	db.Exec(t, `insert into inbox_message_any (consumer_name, message_id) values ('ledger', $1)`, id)
	code, text, stderr := command(t, env, "find", "--text=pay-1")
	if code != codeOK || !strings.Contains(text, "waiting") || !strings.Contains(text, id) ||
		!strings.Contains(text, "found by its message id alone") || strings.Contains(text, "canary") {
		t.Errorf("exit code %d: %s\n%s", code, text, stderr)
	}
	code, text, stderr = command(t, env, "find", "--json", "--text", id)
	var found findings
	if err := json.Unmarshal([]byte(text), &found); err != nil || code != codeOK || len(found.Outbox.Events) != 1 ||
		len(found.Inbox.Events) != 1 || found.Inbox.Events[0].Where != "decided" || found.Keys != nil {
		t.Errorf("exit code %d, %v: %s\n%s", code, err, text, stderr)
	}
	if code, text, _ = command(t, env, "find", "--text=nothing"); code != codeOK ||
		!strings.Contains(text, "Nothing was found.") {
		t.Errorf("exit code %d: %s", code, text)
	}
	if code, _, stderr = command(t, env, "find"); code != codeUsage || !strings.Contains(stderr, "--text") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	none := pgtest.New(t)
	env["RELAY_SCHEMA"] = none.Schema
	if code, _, stderr = command(t, env, "find", "--text=x"); code != codeSchema {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
