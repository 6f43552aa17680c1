package publisher

import (
	"context"
	"crypto/rand"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/publishertest"
)

// outage is a transport that reaches no broker while down is set, and loses the next write, or its answer alone.
type outage struct {
	kafka.RoundTripper
	down, lost, unanswered atomic.Bool
}

// RoundTrip implements kafka.RoundTripper.
func (o *outage) RoundTrip(ctx context.Context, to net.Addr, request kafka.Request) (kafka.Response, error) {
	if o.down.Load() {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	_, write := request.(*rawproduce.Request)
	if write && o.lost.CompareAndSwap(true, false) {
		return nil, context.DeadlineExceeded
	}
	answer, err := o.RoundTripper.RoundTrip(ctx, to, request)
	if write && o.unanswered.CompareAndSwap(true, false) {
		return nil, context.DeadlineExceeded
	}
	return answer, err
}

func TestConformance(t *testing.T) {
	t.Parallel()
	publishertest.Run(t, func(t *testing.T) publishertest.Harness {
		brokers := &kafka.Transport{}
		t.Cleanup(brokers.CloseIdleConnections)
		topic := kafkatest.Topic(t, 3, map[string]string{"max.message.bytes": "20000"})
		transport := &outage{RoundTripper: brokers}
		h := publishertest.Harness{
			Publisher: newKafka(t, kafkatest.Brokers(t), Config{Transport: transport}), Topic: topic,
			Log: func() (log []event.Event, _ error) {
				for _, r := range kafkatest.ReadAll(t, topic) {
					headers := make([]event.Header, len(r.Headers))
					for i, h := range r.Headers {
						headers[i] = event.Header(h)
					}
					log = append(log, event.Decode(&event.Record{
						Topic: topic, Key: r.Key, Value: r.Value, Headers: headers, Time: r.Time,
					}, ""))
				}
				return log, nil
			},
			Break: func() (mend func()) {
				transport.down.Store(true)
				return func() { transport.down.Store(false) }
			},
			Refuse: func(e *event.Event) {
				e.Payload = make([]byte, 60_000)
				_, _ = rand.Read(e.Payload) // what cannot be compressed is too large for the topic
			},
			Lose: func(written bool) { transport.unanswered.Store(written); transport.lost.Store(!written) },
		}
		if _, fake, err := kafkatest.Shared(); fake || err != nil {
			h.Refuse = nil // a fake takes any size
		}
		return h
	})
}
