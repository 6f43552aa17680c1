package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

// refusingTopic is an outbox with a relay, and a topic that accepts only small records.
type refusingTopic struct {
	*pgtest.DB
	env   environment
	topic string
}

func newRefusing(t *testing.T) *refusingTopic {
	t.Helper()
	kafkatest.RequireReal(t)
	db := outboxDB(t)
	r := &refusingTopic{DB: db, topic: kafkatest.Topic(t, 2, map[string]string{"max.message.bytes": "3000"})}
	r.env = settings(db, kafkatest.Brokers(t)...).with("USER", "anna")
	inProcess(t, r.env.with("RELAY_COMPRESSION", "none"))
	return r
}

// append inserts an event; a large one is refused.
func (r *refusingTopic) append(t *testing.T, key, payload string, large bool) {
	t.Helper()
	if large {
		payload += strings.Repeat(".", 5000)
	}
	r.Exec(t, `insert into outbox_event (topic, key, type, payload) values ($1, $2, 'T', convert_to($3, 'UTF8'))`,
		r.topic, key, payload)
}

func (r *refusingTopic) must(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := command(t, r.env, append([]string{"parked"}, args...)...)
	if code != codeOK {
		t.Fatalf("parked %v: exit code %d: %s", args, code, stderr)
	}
	return stdout
}

func (r *refusingTopic) list(t *testing.T, args ...string) (list []operator.ParkedEvent) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.must(t, append([]string{"list", "--json"}, args...)...)), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// published returns the payloads of a key in the log, first occurrences only.
func (r *refusingTopic) published(t *testing.T, key string) (payloads []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, record := range kafkatest.ReadAll(t, r.topic) {
		if id := record.Get("ce_id"); string(record.Key) == key && !seen[id] {
			seen[id] = true
			payloads = append(payloads, strings.TrimRight(string(record.Value), "."))
		}
	}
	return payloads
}

func (r *refusingTopic) awaitParked(t *testing.T, n int) {
	t.Helper()
	awaitDrained(t, r.DB)
	pgtest.AwaitSQL(t, r.DB, `select count(*) = $1 and not exists (select from outbox_held) from outbox_parked`, n)
}

// TestParkedCommands: refused events, and every command for them, on real Kafka.
func TestParkedCommands(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	for i, large := range []bool{false, true, false, true, false} {
		r.append(t, "mended", fmt.Sprint(i), large)
		r.append(t, "skipped", fmt.Sprint(i), large)
		r.append(t, "given up", fmt.Sprint(i), large)
	}
	r.append(t, "", "lone", true)
	r.awaitParked(t, 13)

	t.Run("list", func(t *testing.T) {
		list := r.list(t, "--key", "mended")
		if len(list) != 4 || list[0].Attempts == 0 || list[1].Attempts != 0 || list[0].Payload != nil {
			t.Errorf("%+v", list)
		}
		text := r.must(t, "list", "--topic", r.topic)
		if !regexp.MustCompile(`(?m)^\d+ +[0-9a-f-]{36} +"" +\S+ +mended +T +behind +0 `).MatchString(text) ||
			!regexp.MustCompile(`(?m) +"" +T +alone +1 `).MatchString(text) {
			t.Error(text)
		}
		code := list[0].Code
		if code == "" || len(r.list(t, "--code", code)) == 0 || len(r.list(t, "--code", "no such")) != 0 ||
			len(r.list(t, "--older-than", "1h")) != 0 ||
			len(r.list(t, "--message-id", list[2].MessageID.String())) != 1 ||
			len(r.list(t, "--after", fmt.Sprint(list[3].ID), "--key", "mended")) != 0 ||
			len(r.list(t, "--limit", "2")) != 2 || len(r.list(t, "--tenant", "x")) != 0 ||
			len(r.list(t, "--tenant=")) != 13 {
			t.Error("a filter does not")
		}
		keys := r.must(t, "keys")
		if !regexp.MustCompile(
			`(?m)^"" +\S+ +"given up" +parked +\S+ +4 |(?m)^"" +\S+ +given up +parked +\S+ +4 `).MatchString(keys) {
			t.Error(keys)
		}
	})
	t.Run("show and edit", func(t *testing.T) {
		list := r.list(t, "--key", "mended")
		for _, e := range list {
			if e.Bytes < 3000 {
				text := r.must(t, "show", "--id", fmt.Sprint(e.ID))
				if !strings.Contains(text, fmt.Sprintf("behind %d: %s", list[0].ID, shown(list[0].Error))) {
					t.Errorf("for an event behind another one, the reason is not shown:\n%s", text)
				}
				continue
			}
			id := strconv.FormatInt(e.ID, 10)
			text := r.must(t, "show", "--id", id)
			if !strings.Contains(text, e.MessageID.String()) || strings.Contains(text, "....") {
				t.Error(text)
			}
			whole := r.must(t, "show", "--id", id, "--payload")
			if !strings.Contains(whole, "....") {
				t.Error(whole)
			}
			file := filepath.Join(t.TempDir(), "payload")
			if err := os.WriteFile(file, []byte(
				strings.TrimRight(strings.TrimSpace(whole[strings.LastIndex(whole, "\n\n"):]), ".")),
				0o600); err != nil {
				t.Fatal(err)
			}
			r.must(t, "edit", "--id", id, "--payload-file", file, "--header", "mended-by=anna,or=whom", "--reason",
				"too long")
		}
	})
	t.Run("P4.release: in order", func(t *testing.T) {
		text := r.must(t, "release", "--topic", r.topic, "--key", "mended", "--reason", "mended")
		if !strings.Contains(text, "publishes 4 events of its list, in order. What fails again is parked "+
			"again: relay parked list shows it.") {
			t.Error(text)
		}
		r.append(t, "mended", "5", false)
		r.awaitParked(t, 9)
		if got := r.published(t, "mended"); fmt.Sprint(got) != "[0 1 2 3 4 5]" {
			t.Errorf("published %v", got)
		}
		mended := 0
		for _, record := range kafkatest.ReadAll(t, r.topic) {
			if record.Get("mended-by") == "anna,or=whom" {
				mended++
			}
		}
		if mended != 2 {
			t.Errorf("%d events have the new header", mended)
		}
	})
	t.Run("skip-head", func(t *testing.T) {
		text := r.must(t, "skip-head", "--topic", r.topic, "--key", "skipped", "--reason", "nobody needs it")
		if !strings.Contains(text, "3 events behind it are released") {
			t.Error(text)
		}
		// 2 is published, 3 is refused again, with 4 behind it.
		pgtest.AwaitSQL(t, r.DB, `select count(*) = 1 from outbox_parked_key where key = 'skipped' and state = 'parked'
			and (select count(*) = 2 from outbox_parked where key = 'skipped')`)
		r.must(t, "skip-head", "--topic", r.topic, "--key", "skipped", "--reason", "nor that", "--keep")
		if got := r.published(t, "skipped"); fmt.Sprint(got) != "[0 2]" {
			t.Errorf("published %v", got)
		}
		r.must(t, "release", "--all", "--topic", r.topic, "--code", "no such", "--reason", "nothing")
		r.must(t, "release", "--topic", r.topic, "--key", "skipped", "--reason", "the rest")
		pgtest.AwaitSQL(t, r.DB, `select not exists (select from outbox_parked where key = 'skipped')`)
		if got := r.published(t, "skipped"); fmt.Sprint(got) != "[0 2 4]" {
			t.Errorf("published %v", got)
		}
	})
	t.Run("discard", func(t *testing.T) {
		text := r.must(t, "discard", "--topic", r.topic, "--key", "given up", "--reason", "closed")
		if !strings.Contains(text, "4 events are given up for good.") {
			t.Error(text)
		}
		lone := r.list(t)
		if len(lone) != 1 || !lone[0].Alone {
			t.Fatalf("%+v", lone)
		}
		r.append(t, "given up", "5", false)
		r.awaitParked(t, 1)
		if got := r.published(t, "given up"); fmt.Sprint(got) != "[0 5]" {
			t.Errorf("published %v", got)
		}
		r.must(t, "release", "--all", "--reason", "once more")
		pgtest.AwaitSQL(t, r.DB, `select attempts = 2 and not releasing from outbox_parked`)
		r.must(t, "discard", "--id", fmt.Sprint(lone[0].ID), "--reason", "closed", "--json")
		r.awaitParked(t, 0)
	})
	t.Run("audit", func(t *testing.T) {
		code, text, stderr := command(t, r.env, "audit")
		if code != codeOK {
			t.Fatal(stderr)
		}
		for _, want := range []string{
			"edit parked", "release key", "discard event", "discard key", "release event",
			`(?m) anna +discard key .* closed `,
		} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
		if code, _, stderr := command(t, r.env, "parked", "discard", "--id", "1", "--reason",
			"x"); code != codeFailed || !strings.Contains(stderr, "not parked") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
}

func TestLanes(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := settings(db, deadBroker)
	db.Exec(t,
		`update outbox_lane set owner = gen_random_uuid(), fence = 7, lease_until = now() - interval '1 s'
			where lane = 3`)
	db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, created_at)
		values (3, 1, 't', 0, 1, false, gen_random_uuid(), '', '', 'k', 'T', '', now())`)
	code, text, stderr := command(t, env, "lanes")
	if code != codeOK || !regexp.MustCompile(`(?m)^3 +- +[0-9a-f-]{36} +7 +overdue +0 +- +1 +0$`).MatchString(text) ||
		strings.Count(text, "(free)") != 31 {
		t.Errorf("exit code %d: %s%s", code, text, stderr)
	}
	code, text, _ = command(t, env, "lanes", "--json")
	var lanes []operator.LaneStatus
	if err := json.Unmarshal([]byte(text), &lanes); err != nil || code != codeOK || len(lanes) != 32 ||
		lanes[3].Held != 1 {
		t.Errorf("exit code %d, %v: %s", code, err, text)
	}
}
