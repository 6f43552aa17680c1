package ui_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

// hold sets an event aside as a relay does, and returns its message id. Partition -1 is the topic as a whole.
func hold(t *testing.T, db *pgtest.DB, topic string, partition int, sent bool) string {
	t.Helper()
	return pgtest.One[string](t, db, `insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source,
			tenant, key, type, content_type, created_at)
		select 1, n.id, $1, $2, n.id, $3, gen_random_uuid(), '', '', 'k<i>', 'Paid', '', now()
		from (select nextval('outbox_event_id_seq') as id) n returning message_id::text`, topic, partition, sent)
}

func brokers(t *testing.T) *kafka.Client {
	t.Helper()
	transport := &kafka.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &kafka.Client{Addr: kafka.TCP(kafkatest.Brokers(t)...), Transport: transport}
}

// TestTopic: one topic is shown as Kafka, the outbox and its consumers have it; a count is accepted only in the
// knowledge of what that risks, and what is held is given up one by one or as a whole.
func TestTopic(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	client, name := brokers(t), kafkatest.Topic(t, 3)
	kafkatest.Produce(t, name, kafkatest.Record{Key: []byte("k"), Value: []byte("v")})
	// The first group of a new cluster has no coordinator for a moment.
	pgtest.Await(t, "the group's coordinator", func() (bool, error) {
		res, err := client.OffsetCommit(t.Context(), &kafka.OffsetCommitRequest{
			GroupID: "g-" + name, GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{
				name: {{Partition: 0, Offset: 41}},
			},
		})
		if err == nil {
			err = res.Topics[name][0].Error
		}
		if code, ok := errors.AsType[kafka.Error](err); ok && code.Temporary() {
			return false, nil
		}
		return err == nil, err
	})
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ($1, 2)`, name)
	db.Exec(t, `update outbox_meta set kafka_cluster = 'the-old-one'`)
	first := hold(t, db, name, 1, false)
	hold(t, db, name, -1, true)
	hold(t, db, name, -1, false)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days, programs) values ('ledger', now(), 14,
		jsonb_build_object('acme', jsonb_build_object('host', 'h', 'seen', now(), 'group', $1::text)))`, "g-"+name)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset)
		values ('ledger', $1, 0, 37, 37)`, name)
	s := serve(t, ui.Config{Kafka: client}, of("orders", db))
	s.get("/consumers") // who reads the topic is known
	path, at := "/topic/orders/"+name, "/db/orders/topics/"
	page := s.get(path)
	wants(t, page, "It has 3 partitions and is pinned to 2.", "the outbox publishes to the-old-one",
		"127.0.0.1:", "the topic as a whole – – – 2", "Decided up to Group g-"+name, "0 37 41",
		"0 events are being published and 2 are held", "k<i> Paid", "0 events of all topics are being published",
		"relay topics accept --schema="+db.Schema+" --topic="+name+" --partitions=3 --anyway --reason")
	lacks(t, page, "<i>")
	status, page := s.post(at+"accept", "topic", name, "partitions", "3")
	if status != http.StatusUnprocessableEntity || !contains(page, "Nothing was changed.") ||
		!contains(page, "--anyway accepts that these may appear twice") {
		t.Errorf("what may be there twice is accepted without a word: %d %s", status, page)
	}
	if status, page = s.post(at+"accept", "topic", name, "partitions", "0"); status != http.StatusUnprocessableEntity {
		t.Errorf("%d %s", status, page)
	}
	status, page = s.post(at+"accept", "topic", name, "partitions", "3", "anyway", "1")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "is pinned to 3 partitions", "--partitions=3 --anyway --reason")
	lacks(t, s.get(path), "is pinned to 2")
	if status, page = s.post(at+"discard", "topic", name); status != http.StatusUnprocessableEntity {
		t.Errorf("neither one nor all: %d %s", status, page)
	}
	if status, page = s.post(at+"discard", "topic", name, "message-id", first); status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	if status, page = s.post(at+"discard", "topic", name, "message-id", first); status != http.StatusConflict {
		t.Errorf("what is gone: %d %s", status, page)
	}
	status, page = s.post(at+"discard", "topic", name, "all", "1")
	if status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	wants(t, page, "2 events are given up for good. An attempt to send 1 of them may have reached Kafka",
		"--all --reason")
	if status, page = s.post(at+"accept-cluster", "cluster", "the-new-one"); status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	wants(t, s.get(path), "the-new-one", "0 of its events may have been written", "Topic "+name+" held")
	for action, want := range map[string]int64{"accept partitions": 1, "discard held": 2, "accept cluster": 1} {
		if n := audited(t, db, action); n != want {
			t.Errorf("the audit has %d of %q", n, action)
		}
	}
}

// TestTopicUnknown: a name that nobody knows is no page, and whoever may only read gets no buttons.
func TestTopicUnknown(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	hold(t, db, "payments", 0, false)
	s := serve(t, ui.Config{}, ui.Database{Name: "orders", Pool: reader(t, db), Schema: db.Schema})
	page := s.get("/topic/orders/payments")
	wants(t, page, "Kafka is not asked", "relay topics discard --schema="+db.Schema+" --topic=payments --all")
	lacks(t, page, `method="post"`)
	if status, page := s.do(s.request(http.MethodGet, "/topic/orders/none", nil)); status != http.StatusNotFound ||
		!strings.Contains(page, "Neither this outbox nor a consumer here knows this topic.") {
		t.Errorf("%d %s", status, page)
	}
}
