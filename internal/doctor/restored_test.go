package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
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

// cutOff is a client with two connections to a broker: the second one asks once a third was refused.
type cutOff struct{ brokers []string }

func (c cutOff) Client(timeout time.Duration) (*kafka.Client, func()) {
	var dials atomic.Int32
	refused := make(chan struct{})
	refuse := sync.OnceFunc(func() { close(refused) })
	transport := &kafka.Transport{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		n := dials.Add(1)
		if n > 2 {
			refuse()
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if n == 2 && err == nil {
			conn = asksAfter{conn, &atomic.Int32{}, refused}
		}
		return conn, err
	}}
	return &kafka.Client{Addr: kafka.TCP(c.brokers...), Timeout: timeout, Transport: transport},
		transport.CloseIdleConnections
}

// asksAfter is a connection that sends its first request after the handshake once a channel is closed.
type asksAfter struct {
	net.Conn
	writes  *atomic.Int32
	refused <-chan struct{}
}

func (a asksAfter) Write(b []byte) (int, error) {
	if a.writes.Add(1) > 1 {
		<-a.refused
	}
	return a.Conn.Write(b)
}

func (cutOff) Warning() string { return "" }
func (cutOff) LookAt() string  { return "" }

// TestBrokerThatIsNotReached: the leader of a partition is dead, and another broker still names it. kafka-go answers
// with an unknown error for each partition where it has reached some.
func TestBrokerThatIsNotReached(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	db, topic := pgtest.New(t, migrations.Outbox), kafkatest.Topic(t, 3)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ($1, 3)`, topic)
	ends, err := CompareNumbers(t.Context(), db.Pool, db.Schema, cutOff{kafkatest.Brokers(t)})
	if err != nil || len(ends) != 1 || !ends[0].Away || !errors.Is(ends[0].Err, kafka.Unknown) {
		t.Errorf("%+v, %v: want one that is away for an unknown error", ends, err)
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

// TestNumbersOfOthers: other producers wrote the end of a topic to which this outbox has published. It tells nothing.
func TestNumbersOfOthers(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.New(t, migrations.Outbox), kafkatest.Topic(t, 1)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ($1, 1)`, topic)
	conn, err := kafkaconn.Config{Brokers: kafkatest.Brokers(t)}.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := Subject{DB: db.Pool, Schema: db.Schema, Kafka: conn}
	expect(t, Restored(t.Context(), s), "restored", OK, "no number in Kafka")
	kafkatest.Produce(t, topic, kafkatest.Record{Value: []byte("v")})
	expect(t, Restored(t.Context(), s), "restored", Skip, "are other producers' in "+topic)
}
