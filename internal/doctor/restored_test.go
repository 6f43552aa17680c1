package doctor

import (
	"context"
	"fmt"
	"io"
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

// TestAway: a check for a restore that could not look waits, whatever the code. Only what no wait mends is passed over,
// with a warning.
func TestAway(t *testing.T) {
	t.Parallel()
	passed := map[kafka.Error]bool{
		kafka.TopicAuthorizationFailed: true, kafka.GroupAuthorizationFailed: true,
		kafka.ClusterAuthorizationFailed: true, kafka.UnsupportedVersion: true, kafka.InvalidTopic: true,
	}
	for code := kafka.Unknown; code < 200; code++ {
		err := fmt.Errorf("consumer: partition 3: %w", code)
		if code != 0 && isAway(t.Context(), strange{}, "payments", err) == passed[code] {
			t.Errorf("%d, %v: passed over: %v", int(code), code, !passed[code])
		}
	}
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded, &net.OpError{Err: io.EOF}} {
		if !isAway(t.Context(), strange{}, "payments", err) {
			t.Errorf("%v is passed over", err)
		}
	}
}

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
