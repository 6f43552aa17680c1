package main

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
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

// TestNotLookedAt: what a role may not read, or what is missing of the tables that are here, is named with what ends
// that, and is not called empty.
func TestNotLookedAt(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	env := environment{"RELAY_DATABASE_URL": h.url(t, h.user("relay"))}
	const mayNot = "Not looked at: inbox: permission denied for table inbox_parked; " +
		"grant select on table inbox_parked to this role."
	code, text, stderr := command(t, env, "find", "--text=pay-1")
	if code != codeFailed || !strings.Contains(text, mayNot) ||
		!strings.Contains(text, "grant select on table idempotency_key to this role") ||
		!strings.Contains(text, "Nothing was found in what could be looked at.") ||
		!strings.Contains(stderr, "not everything was looked at") {
		t.Errorf("exit code %d: %s\n%s", code, text, stderr)
	}
	code, text, _ = command(t, env, "find", "--json", "--text=pay-1")
	var found findings
	if err := json.Unmarshal([]byte(text), &found); err != nil || code != codeFailed || found.Outbox == nil ||
		found.Inbox != nil || len(found.NotLooked) != 2 || found.NotLooked[0] != mayNot {
		t.Errorf("exit code %d, %v: %s", code, err, text)
	}
	code, text, stderr = command(t, env, "status")
	if code != codeOK || !strings.Contains(text, "Not looked at: inbox: this role lacks ") ||
		!strings.Contains(text, "table inbox_consumer: select") {
		t.Errorf("exit code %d: %s\n%s", code, text, stderr)
	}
	_, text, _ = command(t, env, "doctor")
	if !regexp.MustCompile(`(?m)^skip  idempotency keys +not looked at: permission denied for table idempotency_key; ` +
		`grant select`).MatchString(text) {
		t.Error(text)
	}
	h.Exec(t, "drop table inbox_parked cascade")
	env["RELAY_DATABASE_URL"] = h.AdminURL
	code, text, stderr = command(t, env, "find", "--text=pay-1")
	if code != codeFailed || strings.Contains(text, "idempotency") ||
		!strings.Contains(text, "Not looked at: inbox: ") ||
		!strings.Contains(text, `"inbox_parked" does not exist`) {
		t.Errorf("exit code %d: %s\n%s", code, text, stderr)
	}
}

// TestStatusOfHeldEvents: an outbox of which all events are held does not look empty.
func TestStatusOfHeldEvents(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema}
	db.Exec(t, `insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
			content_type, created_at)
		values (3, 7, 'payments', 0, 40, false, gen_random_uuid(), '', '', 'k', 'Paid', '', now())`)
	code, text, stderr := command(t, env, "status")
	if code != codeOK || !strings.Contains(text, "No event is in the backlog, and 1 wait: they are held") {
		t.Errorf("exit code %d: %s\n%s", code, text, stderr)
	}
}

// TestFindAllOfOneID: all events that stand under one id are shown, each with where it is and the command that goes on.
func TestFindAllOfOneID(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema}
	first := event.Event{ID: event.NewID(), Topic: "payments", Key: "a", Type: "Paid", Payload: []byte("1")}
	second := first
	second.Payload, second.Position.Offset = []byte("2"), 1
	db.Exec(t, `insert into outbox_event (topic, key, type, message_id) values ('payments', 'a', 'waiting', $1),
		('payments', 'b', 'parked', $1), ('refunds', 'c', 'held', $1)`, first.ID)
	db.Exec(t, `with gone as (delete from outbox_event where type = 'parked' returning *)
		insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code, message_id, source, tenant,
			topic, key, type, content_type, created_at)
		select lane, id, true, false, 1, 'too large', 'MESSAGE_TOO_LARGE', message_id, source, tenant, topic, key, type,
			content_type, created_at from gone`)
	db.Exec(t, `with gone as (delete from outbox_event where type = 'held' returning *)
		insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type, content_type,
			created_at)
		select lane, id, topic, 0, 40, false, message_id, source, tenant, key, type, content_type, created_at from gone`)
	for n := 39; n < 41; n++ { // published twice
		db.Exec(t, `insert into outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type,
			content_type, created_at) values ('e.1', 3, $1, 7, $2, '', '', 'payments', 'd', 'T', '', now())`, n, first.ID)
	}
	for _, consumer := range []string{"email", "ledger"} {
		in, err := inbox.New(db.Pool, consumer, inbox.Config{Schema: db.Schema})
		if err != nil {
			t.Fatal(err)
		}
		h := in.Each(func(context.Context, pgx.Tx, event.Event) error { return nil })
		if _, err := h.Handle(t.Context(), []event.Event{first, second}); err != nil {
			t.Fatal(err)
		}
	}
	code, text, stderr := command(t, env, "find", "--text", first.ID.String())
	if code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	parked := pgtest.One[string](t, db, "select id::text from outbox_parked")
	email := pgtest.One[string](t, db, "select id || '.' || message_id from inbox_parked where consumer_name = 'email'")
	aside, derived, _ := strings.Cut(email, ".")
	schema := "--schema=" + db.Schema
	for _, want := range [][]string{
		{"waiting", first.ID.String()},
		{"parked", "relay parked show " + schema + " --id=" + parked},
		{"held", "relay topics show " + schema + " --topic=refunds"},
		{"archived", "3/39"},
		{"archived", "3/40"},
		{"ledger", "decided", first.ID.String()},
		{"email", "decided", first.ID.String()},
		{"email", "quarantined", "other_content", derived, "relay inbox parked show " + schema + " --id=" + aside},
		{"ledger", "quarantined", "other_content", derived},
	} {
		if !slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
			return !slices.ContainsFunc(want, func(part string) bool { return !strings.Contains(line, part) })
		}) {
			t.Errorf("no line has %q:\n%s", want, text)
		}
	}
	code, text, stderr = command(t, env, "find", "--json", "--text", first.ID.String())
	var found struct{ Next []string }
	if err := json.Unmarshal([]byte(text), &found); err != nil || code != codeOK {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	for _, want := range []string{
		"relay parked show " + schema + " --id=" + parked, "relay topics show " + schema + " --topic=refunds",
		"relay inbox parked show " + schema + " --id=" + aside,
	} {
		if !slices.ContainsFunc(found.Next, func(command string) bool { return strings.HasSuffix(command, want) }) {
			t.Errorf("no command is %q: %q", want, found.Next)
		}
	}
	if len(found.Next) != 4 { // each of the two quarantined events has its own
		t.Errorf("%d commands: %q", len(found.Next), found.Next)
	}
}
