package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('no-such-topic', 3)`)
	env := settings(db, kafkatest.Brokers(t)...)
	code, text, stderr := command(t, env, "doctor")
	if code != codeFindings || !strings.Contains(stderr, "something fails") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		`(?m)^ok    sequence +cache 1`,
		`(?m)^fail  topic no-such-topic +does not exist\n      means: .+\n      run:   kafka-topics.sh --bootstrap-server \S+ `,
		`\n\d+ fail, \d+ warn, \d+ ok, \d+ skip\n`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	code, text, _ = command(t, env.with("RELAY_KAFKA_BROKERS", ""), "doctor", "--json")
	var report struct{ Findings []doctor.Finding }
	if err := json.Unmarshal([]byte(text), &report); err != nil || len(report.Findings) < 15 {
		t.Errorf("%v: %s", err, text)
	}
	// The test server may run without fsync, which is a failure; no other check fails there.
	want := codeOK
	for _, f := range report.Findings {
		switch {
		case f.Severity == doctor.Fail && f.Check != "durability":
			t.Errorf("%+v", f)
		case f.Severity == doctor.Fail:
			want = codeFindings
		}
	}
	if code != want {
		t.Errorf("exit code %d, want %d", code, want)
	}
	if code, _, stderr := command(t, env, "doctor", "--kafka-sasl", "plain"); code != codeUsage {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestAcknowledge: a warning that is known is shown with why.
func TestAcknowledge(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `insert into outbox_paused_topic (topic, paused_by, reason) values ('refunds', 'ann', 'r')`)
	env := settings(db).with("RELAY_KAFKA_BROKERS", "", "USER", "bob")
	if code, _, stderr := command(t, env, "acknowledge", "--check=paused", "--found=refunds (ann: r), 0 events",
		"--reason=they move"); code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	_, text, _ := command(t, env, "doctor")
	if want := regexp.MustCompile(`(?m)^warn  paused +refunds.+\n      known: until \d{4}-\d\d-\d\d: they move \(bob\)$`); !want.
		MatchString(text) {
		t.Errorf("no %v in\n%s", want, text)
	}
	if code, _, stderr := command(t, env, "acknowledge", "--check=paused", "--reason=r"); code != codeUsage {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestAnotherEncodingOfTheRole: a client_encoding that the database or the role sets does not change what the command
// reads and writes.
func TestAnotherEncodingOfTheRole(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, migrations.Outbox)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values (U&'b\00fccher', 3)`)
	db.Exec(t, `do $$ begin execute format('alter database %I set client_encoding = latin1', current_database());
		end $$`)
	_, text, _ := command(t, settings(db).with("RELAY_KAFKA_BROKERS", ""), "doctor")
	if !regexp.MustCompile(`(?m)^ok    hash `).MatchString(text) {
		t.Error(text)
	}
	if _, text, stderr := command(t, settings(db), "topics", "list"); !strings.Contains(text, "b\u00fccher") {
		t.Error(text, stderr)
	}
}

// TestDoctorAfterARestore: doctor reports that Kafka is ahead of the database.
func TestDoctorAfterARestore(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	topic := kafkatest.Topic(t, 1)
	env := settings(db, kafkatest.Brokers(t)...)
	fill(t, db, topic, 100)
	running := inProcess(t, env)
	awaitDrained(t, db)
	running.signal()
	running.end()
	if _, text, _ := command(t, env, "doctor"); !strings.Contains(text, "no number in Kafka that this outbox has not "+
		"given out") {
		t.Error(text)
	}
	db.Exec(t, `update outbox_lane set reserved_seq = 0`) // as in a backup
	if code, text, _ := command(t, env, "doctor"); code != codeFindings ||
		!regexp.MustCompile(`(?m)^fail  restored `).MatchString(text) {
		t.Errorf("exit code %d: %s", code, text)
	}
}
