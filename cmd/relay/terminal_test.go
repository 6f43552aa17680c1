package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestTerminalObeysNoEvent: what an event or an error says is text for a terminal, and as it is for a program.
func TestTerminalObeysNoEvent(t *testing.T) {
	t.Parallel()
	const hostile = "a\x1b[2J\u202eb\u009b31m\x07"
	for _, colour := range []bool{true, false} {
		var out bytes.Buffer
		to := terminal{Writer: &out, colour: colour}
		fmt.Fprintf(to, "%s %s\n", to.paint(red, "fail"), hostile)
		painted := strings.Contains(out.String(), "\x1b[31mfail\x1b[0m")
		if rest := strings.TrimPrefix(out.String(), to.paint(red, "fail")); painted != colour ||
			strings.ContainsAny(rest, "\x1b\u202e\u009b\x07") {
			t.Errorf("colour %v: %q", colour, out.String())
		}
		out.Reset()
		if err := writeJSON(to, "\u202e"); err != nil || out.String() != "\"\u202e\"\n" {
			t.Errorf("JSON: %q %v", out.String(), err)
		}
	}
}

// TestForeignText: an error, or a code, of an effect's own moves no cursor, turns no text round, and breaks no table.
func TestForeignText(t *testing.T) {
	t.Parallel()
	const evil = "a\nb\x1b[31m\u202ec"
	db := pgtest.New(t, migrations.Inbox)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('c', now(), 3)`)
	db.Exec(t, `insert into inbox_parked_key (consumer_name, key_hash, topic, key, tenant, code, reason)
		values ('c', sha256('x'), 't', 'k', '', $1, $1)`, evil)
	db.Exec(t, `insert into inbox_parked (consumer_name, message_id, kind, topic, record_partition, record_offset,
		record_millis, code, reason) values ('c', gen_random_uuid(), 'failed', 't', 0, 0, 0, $1, $1)`, evil)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema}
	for _, list := range []string{"list", "keys"} {
		_, text, stderr := command(t, env, "inbox", "parked", list)
		if strings.Count(text, "\n") != 2 || strings.Count(text, `"a\nb\x1b[31m\u202ec"`) != 2 {
			t.Errorf("%s: %q\n%s", list, text, stderr)
		}
	}
	var b bytes.Buffer
	err := writeFindings(terminal{Writer: &b}, []doctor.Finding{{Check: "x", Severity: doctor.Warn, Found: evil}})
	if err != nil || !strings.Contains(b.String(), "b\u241b[31m\u2421c") {
		t.Errorf("%q, %v", b.String(), err)
	}
}
