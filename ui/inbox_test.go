package ui_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outboxtest"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/ui"
)

// failed delivers events whose effect fails for good: the first of each key is parked, the others behind it.
func failed(t *testing.T, db *pgtest.DB, keys ...string) {
	t.Helper()
	in, err := inbox.New(db.Pool, "ledger", inbox.Config{Schema: db.Schema, MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var events []event.Event
	for _, key := range keys {
		events = append(events, event.Event{
			Topic: "payments", Key: key, Type: "Paid", Payload: []byte("canary-payload"), ID: event.NewID(),
		})
	}
	_, err = outboxtest.Deliver(t.Context(), t, in.Each(func(context.Context, pgx.Tx, event.Event) error {
		return outcome.Terminal("NO_ACCOUNT", errors.New("no such <account>"))
	}), events...)
	if err != nil {
		t.Fatal(err)
	}
}

// TestInboxKeys: what failed in an effect is named, revealed, released and given up as in an outbox.
func TestInboxKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	failed(t, db, "k", "k", "other", "\xff\x00")
	s := serve(t, ui.Config{}, of("ledger-db", db))
	page := s.get("/keys")
	wants(t, page, "ledger payments k parked", "no such <account>", "Release 2 events",
		"relay inbox parked release --schema="+db.Schema+" --consumer=ledger --topic=payments --key=k --head=")
	lacks(t, page, "canary-payload")
	key := func(key string) []string {
		return []string{"consumer", "ledger", "topic", "payments", "tenant", "", "key", ui.B64(key)}
	}
	status, page := s.post("/db/ledger-db/inbox/keys/release", key("k")...)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "a worker that has the effect applies 2 events of its list, in order")
	if status, page = s.post("/db/ledger-db/inbox/keys/discard", key("\xff\x00")...); status != http.StatusOK {
		t.Errorf("a key that is no text: %d %s", status, page)
	}
	id := pgtest.One[int64](t, db, `select id from inbox_parked where record_key = 'other'`)
	path := fmt.Sprintf("/db/ledger-db/inbox/events/%d", id)
	wants(t, s.get(path), "Consumer ledger", "Partition payments/0", "no such <account>")
	status, page = s.post(path + "/reveal")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "canary-payload", "ce_id")
	form := fields(page)
	_, page = s.post(path+"/preview", "was", form["was"], "payload", "mended")
	wants(t, page, "- canary-payload", "+ mended")
	form = fields(page)
	if status, page = s.post(path+"/edit", "before", form["before"], "after", form["after"]); status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	if status, page = s.post(path+"/edit", "before", form["before"], "after", form["after"]); status !=
		http.StatusConflict {
		t.Errorf("a form of before: %d %s", status, page)
	}
	if status, page = s.post(path + "/discard"); status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	page = s.get("/audit")
	wants(t, page, "reveal parked", "edit parked", "discard event", "release key", "discard key")
	lacks(t, page, "canary-payload")
}

// TestConsumers: a partition that has halted says why, how far it is behind the end of its log, and goes on.
func TestConsumers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	failed(t, db, "k")
	topic := kafkatest.Topic(t, 1)
	var records []kafkatest.Record
	for range 7 {
		records = append(records, kafkatest.Record{Key: []byte("k"), Value: []byte("v")})
	}
	kafkatest.Produce(t, topic, records...)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, halted_at,
		halted_code, halted_reason) values ('ledger', $1, 0, 2, 7, now(), 'POISON', 'it kills its <process>')`, topic)
	transport := &kafka.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := &kafka.Client{Addr: kafka.TCP(kafkatest.Brokers(t)...), Transport: transport}
	s := serve(t, ui.Config{Kafka: client}, of("ledger-db", db))
	s.examined()
	var page string
	pgtest.Await(t, "Kafka's ends", func() (bool, error) {
		page = s.get("/consumers")
		return contains(page, topic+"/0 2 7 5"), nil
	})
	// The topic that its events came from is not there, which hides nothing of the other.
	wants(t, page, "halted – POISON it kills its <process>", "1 event parked, 0 quarantined",
		"Kafka says: topic payments does not exist any more")
	wants(t, s.examined(), "Something is wrong.", "halted: POISON: it kills its <process>: "+topic+"/0 (at 2)")
	wants(t, s.get("/"), "Effects of ledger – waiting: not known", "1 partition halted")
	form := []string{"consumer", "ledger", "topic", topic, "partition", "0"}
	status, page := s.post("/db/ledger-db/inbox/resume", form...)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "resumes within seconds")
	lacks(t, s.get("/consumers"), "POISON")
	db.Exec(t, `update inbox_progress set from_offset = 9, halted_at = null where topic = $1`, topic)
	pgtest.Await(t, "a progress that is newer than Kafka's end", func() (bool, error) {
		return contains(s.get("/consumers"), topic+"/0 9 9 0"), nil
	})
	db.Exec(t, `update inbox_progress set attempts = 0 where topic = $1`, topic)
	if status, page = s.post("/db/ledger-db/inbox/resume", form...); status != http.StatusConflict {
		t.Errorf("one that runs: %d %s", status, page)
	}
	if n := pgtest.One[int64](t, db, `select count(*) from inbox_audit where action = 'resume partition'
		and operator = 'night <b>shift</b>'`); n != 1 {
		t.Errorf("the audit has %d", n)
	}
}
