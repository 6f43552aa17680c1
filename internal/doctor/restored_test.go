package doctor

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// strange is a client with a transport that is not kafka-go's.
type strange struct{}

func (strange) RoundTrip(context.Context, net.Addr, kafka.Request) (kafka.Response, error) {
	return nil, nil
}

func (strange) Client(time.Duration) (*kafka.Client, func()) {
	return &kafka.Client{Addr: kafka.TCP("127.0.0.1:1"), Transport: strange{}}, func() {}
}
func (strange) Warning() string { return "" }
func (strange) LookAt() string  { return "" }

// TestNotCompared: what cannot be read is said, and an inbox alone has nothing to compare.
func TestNotCompared(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 1)`)
	expect(t, Restored(t.Context(), Subject{DB: db.Pool, Schema: db.Schema, Kafka: strange{}}), "restored", Warn,
		"transport of its own kind")
	inbox := pgtest.New(t, migrations.Inbox)
	if list := Restored(t.Context(), Subject{DB: inbox.Pool, Schema: inbox.Schema, Kafka: strange{}}); len(list) > 0 {
		t.Errorf("%+v", list)
	}
	if list := Restored(t.Context(), Subject{DB: db.Pool, Schema: db.Schema}); len(list) > 0 {
		t.Errorf("%+v", list)
	}
}
