package ui_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

// consumer writes a consumer that went so far in the topic payments and has halted there.
func consumer(t *testing.T, db *pgtest.DB, name, dedup, code, why string) {
	t.Helper()
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days, dedup, programs) values ($1, now(), 14, $2,
		jsonb_build_object('acme', jsonb_build_object('host', 'h1', 'seen', now(), 'group', 'g 1')))`, name, dedup)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, halted_at,
			halted_code, halted_reason, updated_at)
		values ($1, 'payments', 3, 41, 50, now(), $2, $3, now() - interval '1 hour')`, name, code, why)
}

// TestConsumerVerbs: what the command does with a consumer the page does, with its words, and each leaves its row.
func TestConsumerVerbs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	const epoch = "5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.2"
	consumer(t, db, "ledger", "id", "POISON", "it <kills>")
	consumer(t, db, "numbers", "watermark", "new_numbering", "its numbering "+epoch+" is newer")
	consumer(t, db, "offsets", "offset", "offsets_went_back", "made again")
	db.Exec(t, `insert into inbox_watermark (consumer_name, topic, partition, outbox_id, incarnation, version, lanes, seqs,
			latest)
		values ('offsets', 'payments', 3, '00000000-0000-0000-0000-000000000000', 0, 1, '{0}', '{40}', 0)`)
	s := serve(t, ui.Config{}, of("in", db))
	s.examined()
	page := s.get("/consumers")
	in := " --schema=" + db.Schema + " --consumer="
	wants(t, page, "Inbox days in wrong", "relay inbox maintain", "halted – POISON it <kills>",
		"relay inbox skip"+in+"ledger --topic=payments --partition=3 --to=42 --reason",
		`kafka-consumer-groups.sh --bootstrap-server "${BOOTSTRAP_SERVER:?}" --group 'g 1' --topic payments:3 --reset-offsets --to-offset 42 --execute`,
		"relay inbox accept"+in+"numbers --epoch="+epoch+" --reason", "relay inbox forget-offsets"+in+"offsets",
		"relay inbox move"+in+"ledger --to=... --reason", "relay inbox retire"+in+"ledger --reason",
		"Stop its workers first (acme on h1 runs it)")
	lacks(t, page, "<kills>")
	at := "/db/in/inbox/"
	skip := []string{"consumer", "ledger", "topic", "payments", "partition", "3", "to", "42"}
	if status, page := s.post(at+"skip", skip...); status != http.StatusUnprocessableEntity ||
		!contains(page, "stop its workers first") {
		t.Errorf("skip beside a worker: %d %s", status, words(page))
	}
	db.Exec(t, `update inbox_progress set updated_at = now() - interval '1 hour'`)
	db.Exec(t, `update inbox_consumer set programs = '{}'`)
	for _, c := range []struct {
		verb   string
		form   []string
		status int
		says   string
	}{
		{
			"skip",
			[]string{"consumer", "ledger", "topic", "payments", "partition", "3", "to", "42"},
			http.StatusOK,
			"The consumer goes on at offset 42 of payments/3, after 41: the effects between do not run. Set its " +
				"group to the same offset as well",
		},
		{
			"skip",
			[]string{"consumer", "ledger", "topic", "payments", "partition", "3", "to", "42"},
			http.StatusUnprocessableEntity,
			"Nothing was changed. inbox: skip records: consumer \"ledger\" is at offset 42",
		},
		{
			"skip",
			[]string{"consumer", "ledger", "topic", "payments", "partition", "3", "to", "-1"},
			http.StatusUnprocessableEntity, "which offset is handled again",
		},
		{"skip", []string{"topic", "payments", "partition", "3", "to", "43"}, http.StatusBadRequest, "the page anew"},
		{
			"accept",
			[]string{"consumer", "numbers", "epoch", "newest"},
			http.StatusUnprocessableEntity,
			"is not the ce_epoch",
		},
		{
			"accept",
			[]string{"consumer", "numbers", "epoch", epoch},
			http.StatusOK,
			"Numbering " + epoch + " is accepted. 1 halted partitions go on",
		},
		{
			"forget-offsets",
			[]string{"consumer", "offsets", "topic", "payments"},
			http.StatusOK,
			"The offsets of payments are forgotten. 1 halted partitions",
		},
		{
			"forget-offsets",
			[]string{"consumer", "offsets", "topic", "payments"},
			http.StatusUnprocessableEntity,
			"knows no offsets of topic",
		},
		{"move", []string{"consumer", "ledger", "to", "id"}, http.StatusUnprocessableEntity, "watermark or offset"},
		{
			"move",
			[]string{"consumer", "ledger", "to", "watermark"},
			http.StatusOK,
			"The consumer deduplicates by watermark. Start its workers with that setting",
		},
		{"move", []string{"consumer", "ledger", "to", "offset"}, http.StatusUnprocessableEntity, "does not go by ids"},
	} {
		status, page := s.post(at+c.verb, c.form...)
		if status != c.status || !contains(page, c.says) {
			t.Errorf("%s %q: %d %s", c.verb, c.form, status, words(page))
		}
	}
	db.Exec(t, `update inbox_progress set updated_at = now() - interval '1 hour'`)
	db.Exec(t, `update inbox_consumer set programs = '{}'`)
	status, page := s.post(at+"retire", "consumer", "ledger")
	if status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	wants(t, page, "The consumer is retired. Days are kept for the windows of the others; what it has parked stays.",
		"relay inbox retire"+in+"ledger --reason='it'\\''s <late>'")
	lacks(t, s.get("/consumers"), "POISON", "new_numbering", "offsets_went_back", "Retire consumer ledger")
	for action, want := range map[string]int64{
		"skip records": 1, "accept numbering": 1, "forget offsets": 1, "move consumer": 1, "retire consumer": 1,
	} {
		if n := pgtest.One[int64](t, db, `select count(*) from inbox_audit where action = $1
			and operator = 'night <b>shift</b>' and reason = 'it''s <late>'`, action); n != want {
			t.Errorf("the audit has %d of %q", n, action)
		}
	}
}

// TestConsumerStates: the page says what each partition does, in the words of its error, and no failing effect "runs".
func TestConsumerStates(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days, programs)
		select c, now(), 14, jsonb_build_object('acme', jsonb_build_object('host', 'h1', 'seen', now() - a))
		from (values ('ledger', interval '0'), ('old', '17 min'), ('ledgre', '0')) c (c, a)`)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, attempts, halted_at,
			halted_code, halted_reason, trying_at, trying_reason)
		values ('ledger', 'payments', 0, 41, 41, 0, now(), 'rejected', 'rejected: no column', null, ''),
			('ledger', 'payments', 1, 42, 42, 0, null, '', '', now(), 'event 7 at offset 42, attempt 4: refused'),
			('ledger', 'payments', 2, 43, 43, 5, null, '', '', null, ''),
			('ledger', 'payments', 3, 44, 44, 0, null, '', '', null, ''),
			('old', 'payments', 0, 45, 45, 0, null, '', '', null, '')`)
	worker := db.Connect(t)
	for _, sql := range []string{
		`begin`, `set application_name = 'shop'`,
		`select pg_advisory_xact_lock_shared(hashtextextended('ledger payments/3', '` + db.Schema +
			`.inbox_progress'::regclass::oid::bigint))`,
	} {
		if _, err := worker.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s := serve(t, ui.Config{}, of("in", db))
	s.examined()
	page := words(s.get("/consumers"))
	wants(t, page, "0 rejected, tried again – rejected no column",
		"0 the effect fails – event 7 at offset 42, attempt 4: refused", " shop on 127.0.0.1",
		"5 ends its worker – Skip For a record that can be neither decided nor parked, or is not to end its worker",
		"no worker runs it, the last one left 17 min", "Is its name a typo?")
	if strings.Index(page, "Inbox days") < strings.Index(page, "payments/3") {
		t.Errorf("the days are above the consumers: %s", page)
	}
}
