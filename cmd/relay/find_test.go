package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/event"
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
	code, text, stderr := command(t, env, "find", "--text= pay-1\n")
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
	// Records of other producers: the inbox has the hash of source and id, as event.Decode makes it.
	for source, header := range map[string]string{"orders": event.HeaderSource, "a-topic": ""} {
		for _, given := range []string{id, "order-77"} {
			r := event.Record{Topic: source, Headers: []event.Header{{Key: event.HeaderID, Value: []byte(given)}}}
			if header != "" {
				r.Headers = append(r.Headers, event.Header{Key: header, Value: []byte(source)})
			} else if given == id {
				continue // it is the id
			}
			foreign := event.Decode(&r, "").ID.String()
			db.Exec(t, `insert into inbox_message_any (consumer_name, message_id) values ('ledger', $1)`, foreign)
			code, text, stderr = command(t, env, "find", "--text", given, "--ce-source", source)
			if code != codeOK || !strings.Contains(text, "decided") || !strings.Contains(text, foreign) {
				t.Errorf("%s of %s: exit code %d: %s\n%s", given, source, code, text, stderr)
			}
		}
	}
	if code, text, _ = command(t, env, "find", "--text=nothing"); code != codeOK ||
		!strings.Contains(text, "Nothing was found.") || !strings.Contains(text, "--ce-source") {
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
