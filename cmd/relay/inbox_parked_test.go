package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
)

// failingWorker is a worker whose effect fails for payloads that begin with "bad".
type failingWorker struct {
	*pgtest.DB
	env    environment
	do     inbox.Handler
	offset int64
}

func newFailing(t *testing.T) *failingWorker {
	t.Helper()
	db := pgtest.New(t, migrations.Inbox)
	db.Exec(t, `create table effect (n bigserial, key text, payload text)`)
	in, err := inbox.New(db.Pool, "ledger", inbox.Config{Schema: db.Schema, ReleaseEvery: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f := &failingWorker{DB: db, env: environment{"RELAY_DATABASE_URL": db.URL, "USER": "anna"}}
	f.do = in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if strings.HasPrefix(string(e.Payload), "bad") {
			return outcome.Terminal("bad_payload", errors.New("as the test\nwants it"))
		}
		_, err := tx.Exec(ctx, `insert into effect (key, payload) values ($1, $2)`, e.Key, string(e.Payload))
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *failingWorker) handle(t *testing.T, key string, payloads ...string) {
	t.Helper()
	events := make([]event.Event, len(payloads))
	for i, p := range payloads {
		events[i] = event.Event{
			ID: event.NewID(), Topic: "payments", Key: key, Type: "T", Payload: []byte(p),
			Position: event.Position{Offset: f.offset},
		}
		f.offset++
	}
	if _, err := f.do.Handle(t.Context(), events); err != nil {
		t.Fatal(err)
	}
}

func (f *failingWorker) must(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := command(t, f.env, append([]string{"inbox"}, args...)...)
	if code != codeOK {
		t.Fatalf("inbox %v: exit code %d: %s", args, code, stderr)
	}
	return stdout
}

func (f *failingWorker) list(t *testing.T, args ...string) (list []operator.ParkedEvent) {
	t.Helper()
	if err := json.Unmarshal([]byte(f.must(t, append([]string{"parked", "list", "--json"}, args...)...)),
		&list); err != nil {
		t.Fatal(err)
	}
	return list
}

func (f *failingWorker) awaitApplied(t *testing.T, key, payloads string) {
	t.Helper()
	pgtest.AwaitSQL(t, f.DB, `select coalesce(string_agg(payload, ' ' order by n), '') = $2 from effect where key = $1`,
		key, payloads)
}

// TestInboxParkedCommands: failing events, and every command for them.
func TestInboxParkedCommands(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	for _, key := range []string{"mended", "skipped", "given up"} {
		f.handle(t, key, "a", "bad 1", "b", "bad 2", "c")
	}
	f.handle(t, "", "bad alone")
	f.DB.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('email', now(), 14)`)
	list := f.list(t, "--consumer", "ledger", "--key", "mended")
	if len(list) != 4 || list[0].Kind != "failed" || list[1].Kind != "behind" || list[0].Payload != nil ||
		len(f.list(t)) != 13 ||
		len(f.list(t, "--kind", "failed")) != 4 || len(f.list(t, "--code", "bad_payload", "--limit", "2")) != 2 ||
		len(f.list(t, "--consumer", "email")) != 0 {
		t.Fatalf("%+v", list)
	}
	text := f.must(t, "parked", "list")
	if !regexp.MustCompile(
		`(?m)^\d+ +ledger +[0-9a-f-]{36} +"" +payments +mended +T +failed +\d+ +\S+ +bad_payload +".*as the test\\nwants it`).MatchString(text) {
		t.Error(text)
	}
	if text := f.must(t, "parked", "keys"); !regexp.MustCompile(
		`(?m)^ledger +"" +payments +skipped +parked +\S+ +4 `).MatchString(text) {
		t.Error(text)
	}

	for _, e := range list {
		id := fmt.Sprint(e.ID)
		if text := f.must(t, "parked", "show", "--id", id); strings.Contains(text, "\nbad") ||
			!strings.Contains(text, e.MessageID.String()) ||
			e.Kind == "behind" && !strings.Contains(text, fmt.Sprintf("behind %d: ", list[0].ID)) {
			t.Error(text)
		}
		text := f.must(t, "parked", "show", "--id", id, "--payload")
		if !strings.Contains(text, "\nbad") {
			continue
		}
		file := filepath.Join(t.TempDir(), "payload")
		if err := os.WriteFile(file, []byte("mended"), 0o600); err != nil {
			t.Fatal(err)
		}
		f.must(t, "parked", "edit", "--id", id, "--payload-file", file, "--reason", "a typing error")
	}
	if text := f.must(t, "parked", "release", "--consumer", "ledger", "--topic", "payments", "--key", "mended",
		"--reason", "mended"); !strings.Contains(text, "a worker that has the effect applies 4 events") {
		t.Error(text)
	}
	f.awaitApplied(t, "mended", "a mended b mended c")

	if text := f.must(t, "parked", "skip-head", "--consumer", "ledger", "--topic", "payments", "--key", "skipped",
		"--reason", "not needed"); !strings.Contains(text, "3 events behind it are released. What fails again is "+
		"parked again: relay inbox parked list shows it.") {
		t.Error(text)
	}
	f.awaitApplied(t, "skipped", "a b")
	pgtest.AwaitSQL(t, f.DB, `select count(*) = 1 from inbox_parked_key where key = 'skipped' and state = 'parked'`)
	f.must(t, "parked", "skip-head", "--consumer", "ledger", "--topic", "payments", "--key", "skipped", "--reason",
		"nor that")
	f.awaitApplied(t, "skipped", "a b c")

	if text := f.must(t, "parked", "discard", "--consumer", "ledger", "--topic", "payments", "--key", "given up",
		"--reason", "closed"); !strings.Contains(text, "4 events are given up for good.") {
		t.Error(text)
	}
	f.handle(t, "given up", "d")
	f.awaitApplied(t, "given up", "a d")
	alone := f.list(t)
	if len(alone) != 1 || !alone[0].Alone {
		t.Fatalf("%+v", alone)
	}
	f.must(t, "parked", "release", "--all", "--consumer", "ledger", "--reason", "once more")
	pgtest.AwaitSQL(t, f.DB,
		`select count(*) = 1 from inbox_parked where state = 'parked' and attempts + release_attempts > 1`)
	f.must(t, "parked", "discard", "--id", fmt.Sprint(alone[0].ID), "--reason", "closed", "--json")
	if left := f.list(t); len(left) != 0 {
		t.Errorf("%+v", left)
	}
	if text := f.must(t, "audit"); !regexp.MustCompile(
		`(?m) anna +discard key +ledger +payments +given up .* closed `).MatchString(text) || !strings.Contains(text,
		"edit parked") {
		t.Error(text)
	}
	for want, args := range map[string]string{
		"not parked":               "parked release --consumer ledger --topic payments --key mended --reason x",
		"neither halted":           "resume --consumer ledger --topic payments --partition 0 --reason x",
		"--consumer is missing":    "parked discard --topic t --key k --reason x",
		"--partition are required": "resume --consumer ledger --reason x",
	} {
		if code, _, stderr := command(t, f.env,
			append([]string{"inbox"}, strings.Fields(args)...)...); code == codeOK || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
}

func TestInboxResume(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	f.handle(t, "k", "a")
	f.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, attempts, halted_at,
				halted_code, halted_reason)
		values ('ledger', 'payments', 3, 7, 9, 10, now(), 'killed', 'again and again')`)
	f.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, trying_at, trying_reason)
		values ('ledger', 'payments', 4, 5, 9, now(), 'the card network is away')`)
	if text := f.must(t, "consumers"); !regexp.MustCompile(
		`(?m)^ledger +id +14 days .* payments/3 +7 +- +- +\S+ +- +10 +\S+ +killed +again and again$`).MatchString(text) ||
		!regexp.MustCompile(`(?m) payments/4 +5 +- +- +\S+ +- +0 +- +trying +the card network is away$`).MatchString(
			text) {
		t.Error(text)
	}
	var list []operator.ConsumerState
	if err := json.Unmarshal([]byte(f.must(t, "consumers", "--json")), &list); err != nil || len(list) != 1 ||
		list[0].Partitions[len(list[0].Partitions)-2].HaltedAt == nil {
		t.Errorf("%+v, %v", list, err)
	}
	for _, partition := range []string{"3", "4"} {
		f.must(t, "resume", "--consumer", "ledger", "--topic", "payments", "--partition", partition, "--reason",
			"more memory")
	}
	if n := pgtest.One[int](t, f.DB, `select count(*) from inbox_progress
		where halted_at is not null or trying_at is not null or partition = 3 and attempts > 0`); n != 0 {
		t.Error("a partition is still halted or waiting")
	}
}

// TestSkipKnowsTheEnd: an offset beyond the end of the log is refused, where Kafka can be asked.
func TestSkipKnowsTheEnd(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	topic := kafkatest.Topic(t, 1)
	record := kafkatest.Record{Value: []byte("v")}
	kafkatest.Produce(t, topic, record, record, record)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', now(), 14)`)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, updated_at)
		values ('ledger', $1, 0, 1, 1, now() - interval '1 hour')`, topic)
	kafka := kafkatest.Brokers(t)[0]
	for _, c := range []struct {
		brokers, to, says string
		code              int
	}{
		{kafka, "100000", "/0 ends at offset 3: what comes until 100000 was never written", codeFailed},
		{"127.0.0.1:1", "2", "/0 ends is not known", codeFailed},
		{kafka, "2", "goes on at offset 2 of " + topic + "/0, after 1: the effects between do not run.", codeOK},
		{"", "3", "nobody has looked whether the log has that offset", codeOK},
	} {
		code, text, stderr := command(t, settings(db).with("RELAY_KAFKA_BROKERS", c.brokers), "inbox", "skip",
			"--consumer", "ledger", "--topic", topic, "--partition", "0", "--to", c.to, "--reason", "it is no event")
		if code != c.code || !strings.Contains(text+stderr, c.says) {
			t.Errorf("to %s: exit code %d, no %q in\n%s%s", c.to, code, c.says, text, stderr)
		}
	}
}

// TestSkippedEffectNeverRuns: also if nobody moves the group. The command says how to, with the names.
func TestSkippedEffectNeverRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	db.Exec(t, `create table effect (at bigint)`)
	topic, brokers := kafkatest.Topic(t, 1), kafkatest.Brokers(t)
	record := kafkatest.Record{Value: []byte("v")}
	kafkatest.Produce(t, topic, record, record, record)
	work := func(until string) {
		in, err := inbox.New(db.Pool, "ledger", inbox.Config{Schema: db.Schema})
		if err != nil {
			t.Fatal(err)
		}
		c, err := consumer.New(in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			_, err := tx.Exec(ctx, "insert into effect values ($1)", e.Position.Offset)
			return err
		}), brokers, []string{topic}, consumer.Config{Group: topic + "'s"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		for _, run := range []func(context.Context) error{in.Run, c.Run} {
			both.Go(func() {
				if err := run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		pgtest.AwaitSQL(t, db, until)
		cancel()
		both.Wait()
	}
	work("select count(*) = 3 and (select programs <> '{}' from inbox_consumer) from effect")
	kafkatest.Produce(t, topic, record, record)
	db.Exec(t, "update inbox_progress set updated_at = now() - interval '1 hour'")
	db.Exec(t, `update inbox_consumer set programs = replace(programs::text, (select programs -> k ->> 'seen' from
		jsonb_object_keys(programs) k), (now() - interval '1 hour')::text)::jsonb`)
	code, text, stderr := command(t, settings(db, brokers...), "inbox", "skip", "--consumer", "ledger", "--topic",
		topic, "--partition", "0", "--to", "4", "--reason", "it is bad")
	if want := "  kafka-consumer-groups.sh --bootstrap-server " + strings.Join(brokers, ",") + " --group '" + topic +
		`'\''s' --topic ` + topic + ":0 --reset-offsets --to-offset 4 --execute\n"; code != codeOK || !strings.Contains(text, want) {
		t.Fatalf("exit code %d: no %q in\n%s%s", code, want, text, stderr)
	}
	work("select count(*) > 0 from effect where at = 4")
	if at := pgtest.One[[]int64](t, db, "select array_agg(at order by at) from effect"); !slices.Equal(at,
		[]int64{0, 1, 2, 4}) {
		t.Errorf("effects of %v", at)
	}
}

// TestSkipSaysWhatIsWrong: in words, and first that workers run, whatever Kafka knows.
func TestSkipSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	topic := kafkatest.Topic(t, 1)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', now(), 14), ('email',
		now(), 14)`)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, updated_at)
		values ('ledger', $1, 0, 7, 7, now() - interval '1 hour'), ('email', $1, 0, 7, 7, now())`, topic)
	for args, want := range map[string]string{
		"ledger --partition 9 --to 1":     `consumer "ledger" has handled nothing of ` + topic + "-9 yet",
		"ledger --partition 0 --to 7":     `consumer "ledger" is at offset 7 of ` + topic + "-0 already",
		"nobody --partition 0 --to 7":     `consumer "nobody" never started`,
		"email --partition 0 --to 100000": "stop its workers first",
	} {
		code, text, stderr := command(t, settings(db, kafkatest.Brokers(t)...), append([]string{
			"inbox", "skip", "--topic", topic, "--reason", "x", "--consumer",
		}, strings.Fields(args)...)...)
		if code != codeFailed || !strings.Contains(strings.ReplaceAll(stderr, `\"`, `"`), want) {
			t.Errorf("%s: exit code %d, no %q in\n%s%s", args, code, want, text, stderr)
		}
	}
	if n := pgtest.One[int](t, db, "select count(*) from inbox_audit"); n != 0 {
		t.Errorf("%d rows in the audit of what was refused", n)
	}
}

// TestReleaseAllOfNothing: that nothing matches is said, and why if it is quarantined; a consumer that nobody knows is
// an error.
func TestReleaseAllOfNothing(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	f.handle(t, "", "a", "bad alone")
	f.Exec(t, "update inbox_parked set kind = 'quarantined', code = 'other_content'")
	for _, verb := range []string{"release", "discard"} {
		for _, dry := range []string{"--reason=x", "--dry-run"} {
			for args, want := range map[string]string{
				"ledger --code=other_content": "what matches is 1 quarantined events, which --all leaves.",
				"ledger":                      "what matches is 1 quarantined events, which --all leaves.",
				"ledger --code=other":         "no parked key and no lone event matches.",
			} {
				text := f.must(t, append([]string{"parked", verb, "--all", dry, "--consumer"},
					strings.Fields(args)...)...)
				if !strings.HasPrefix(text, "Nothing is changed: "+want) {
					t.Errorf("%s %s %s: %s", verb, dry, args, text)
				}
			}
			code, text, stderr := command(t, f.env, "inbox", "parked", verb, "--all", dry, "--consumer", "ledgr")
			if code != codeFailed || !strings.Contains(stderr, "no consumer ledgr has ever started here") {
				t.Errorf("%s %s: exit code %d: %s%s", verb, dry, code, text, stderr)
			}
		}
	}
}

// TestConsumersShowTheirLag: the list has a consumer's position and the end of its log.
func TestConsumersShowTheirLag(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	topic := kafkatest.Topic(t, 1)
	record := kafkatest.Record{Value: []byte("v")}
	kafkatest.Produce(t, topic, record, record, record)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', now(), 14)`)
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, attempts, updated_at,
			effect_at)
		values ('ledger', $1, 0, 1, 3, 2, now() - interval '1 hour', now() - interval '2 hours')`, topic)
	for brokers, want := range map[string]string{
		"":                      `/0 +1 +- +- +1h\d+m\d+s +2h\d+m\d+s +2 +- `,
		kafkatest.Brokers(t)[0]: `/0 +1 +3 +2 +1h\d+m\d+s +2h\d+m\d+s +2 +- `,
	} {
		code, text, stderr := command(t, settings(db).with("RELAY_KAFKA_BROKERS", brokers), "inbox", "consumers")
		if code != codeOK || !regexp.MustCompile(topic+want).MatchString(text) {
			t.Errorf("exit code %d: no %s in\n%s%s", code, want, text, stderr)
		}
	}
	db.Exec(t,
		`update inbox_consumer set programs = jsonb_build_object('acme/copy', jsonb_build_object('host', 'b', 'seen',
				now()),
		'acme/ledger', jsonb_build_object('host', 'a', 'group', 'ledgers', 'seen', now()), 'old', jsonb_build_object('host', 'c', 'seen',
			now() - interval '4 min'))`)
	if code, text, stderr := command(t, settings(db), "inbox", "consumers"); code != codeOK ||
		!strings.Contains(text, "acme/copy@b AND acme/ledger@a   ledgers  ") || strings.Contains(text, "old@c") {
		t.Errorf("exit code %d: not both programs in\n%s%s", code, text, stderr)
	}
	code, text, _ := command(t, settings(db, kafkatest.Brokers(t)...), "inbox", "consumers", "--json")
	var list []consumerEnds
	if err := json.Unmarshal([]byte(text), &list); err != nil || code != codeOK || len(list) != 1 ||
		*list[0].Partitions[0].End != 3 || list[0].Partitions[0].From != 1 {
		t.Errorf("exit code %d, %v: %s", code, err, text)
	}
	// A topic that is gone is named, and hides nothing of the others.
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset)
		values ('ledger', $1 || '-deleted', 0, 1, 3)`, topic)
	code, text, stderr := command(t, settings(db, kafkatest.Brokers(t)...), "inbox", "consumers")
	if code != codeFailed || !regexp.MustCompile(topic+`/0 +1 +3 +2 `).MatchString(text) ||
		!regexp.MustCompile(topic+`-deleted/0 +1 +- +- `).MatchString(text) ||
		!strings.Contains(stderr, "topic "+topic+"-deleted does not exist any more: Records that it held") {
		t.Errorf("exit code %d:\n%s%s", code, text, stderr)
	}
}

// TestUnknownConsumer: an empty list says that a consumer has no trouble. One that is misspelt, or another database's,
// is an error.
func TestUnknownConsumer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', now(), 14)`)
	for _, list := range []string{"consumers", "parked list", "parked keys", "parked failures", "audit"} {
		args := append([]string{"inbox"}, strings.Fields(list)...)
		if code, text, stderr := command(t, settings(db), append(args, "--consumer=leger")...); code != codeFailed ||
			!strings.Contains(stderr, "no consumer leger has ever started here") {
			t.Errorf("%s: exit code %d: %s%s", list, code, text, stderr)
		}
		if code, text, stderr := command(t, settings(db), append(args, "--consumer=ledger")...); code != codeOK {
			t.Errorf("%s: exit code %d: %s%s", list, code, text, stderr)
		}
	}
}

// TestEditKeepsJSON: a new payload that is no JSON, as the old one is, is refused with where it breaks and what forces
// it.
func TestEditKeepsJSON(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	f.handle(t, "a", "bad")
	f.Exec(t, `update inbox_parked set record_value = '{"amount": 1}'`)
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, []byte(`{"amount": 2,}`), 0o600); err != nil {
		t.Fatal(err)
	}
	edit := []string{"parked", "edit", "--reason=x", "--payload-file", file, "--id"}
	edit = append(edit, pgtest.One[string](t, f.DB, "select id::text from inbox_parked"))
	code, text, stderr := command(t, f.env, append([]string{"inbox"}, edit...)...)
	if code != codeFailed || !strings.Contains(stderr, "at byte 14") || !strings.Contains(stderr, "--any-bytes") {
		t.Errorf("exit code %d: %s%s", code, text, stderr)
	}
	f.must(t, append(edit, "--any-bytes")...)
	if got := pgtest.One[string](t, f.DB, "select convert_from(record_value, 'utf8') from inbox_parked"); got !=
		`{"amount": 2,}` {
		t.Errorf("it has %s", got)
	}
}
