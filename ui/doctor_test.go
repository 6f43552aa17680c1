package ui_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

// numbered is a record as a relay of the outbox writes it.
func numbered(t *testing.T, db *pgtest.DB, lane int16, seq int64) (r kafkatest.Record) {
	t.Helper()
	outbox := pgtest.One[string](t, db, `select outbox_id::text from outbox_meta`)
	for _, h := range event.AppendHeaders(nil, &event.Event{
		ID: event.NewID(), Type: "Paid", Position: event.Position{Epoch: outbox + ".1", Lane: lane, Seq: seq},
	}) {
		r.Headers = append(r.Headers, kafkatest.Header{Key: h.Key, Value: h.Value})
	}
	return r
}

// TestDoctorPage: each check stands there, what is wrong first, with the command on this database; and an outbox that
// is older than its topics is told, which "now" looks at anew.
func TestDoctorPage(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, numbered(t, db, 3, 50))
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ($1, 1)`, topic)
	db.Exec(t, `insert into outbox_paused_topic (topic, paused_by, reason) values ('refunds', 'ann', 'r')`)
	var mu sync.Mutex
	var conns []net.Conn
	away := false
	transport := &kafka.Transport{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if away {
			return nil, errors.New("no broker runs")
		}
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			conns = append(conns, c)
		}
		return c, err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	cfg := ui.Config{Kafka: &kafka.Client{Addr: kafka.TCP(kafkatest.Brokers(t)...), Transport: transport}}
	d := of("orders", db)
	d.Flags = []string{"--outbox=orders"}
	s := serve(t, cfg, d)
	now := func() string {
		t.Helper()
		status, page := s.as(ui.View).do(s.request(http.MethodGet, "/doctor/examine", nil))
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, page)
		}
		return page
	}
	page := now()
	on := " --outbox=orders --schema=" + db.Schema
	wants(t, page, "restored wrong relay: the outbox is older than what it has published",
		"relay fence"+on+` --reason="..."`, "Read docs/failover.md and docs/restore.md.",
		"relay topics resume"+on+` --topic=refunds --reason="..."`, "hash as on the servers it was tested on")
	if strings.Index(page, "restored") > strings.Index(page, "hash") {
		t.Error("what is wrong does not come first")
	}
	wants(t, s.examined(), "restored relay: the outbox is older", "relay fence"+on)
	db.Exec(t, `update outbox_lane set reserved_seq = 50, lease_until = now()`)
	wants(t, now(), "restored no number in Kafka that this outbox has not given out", "kafka 1 broker")
	mu.Lock()
	away = true // kafka-go has the metadata still
	for _, c := range conns {
		_ = c.Close()
	}
	mu.Unlock()
	page = now()
	wants(t, page, "kafka wrong", "no broker runs")
	if strings.Contains(page, "answer, of cluster") {
		t.Error("brokers that are away are said to answer")
	}
}

// TestDoctorAway: a database that does not answer is said to be away.
func TestDoctorAway(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t) // without tables
	s := serve(t, ui.Config{}, of("orders", db))
	wants(t, s.get("/doctor"), "This database cannot be looked at", "no tables of effectonce are here")
}
