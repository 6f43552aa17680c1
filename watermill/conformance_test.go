package watermill_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/publishertest"
	"github.com/effectonce/effectonce/watermill"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	publishertest.Run(t, func(t *testing.T) publishertest.Harness {
		var down, lost, unanswered atomic.Bool
		refused := errors.New("refused")
		b := &broker{}
		b.do = func(m *message.Message) error {
			switch {
			case down.Load():
				return errors.New("no broker")
			case lost.CompareAndSwap(true, false):
				return errors.New("timed out")
			case unanswered.CompareAndSwap(true, false):
				b.mu.Lock()
				defer b.mu.Unlock()
				b.sent = append(b.sent, m)
				return errors.New("timed out")
			case string(m.Payload) == "refused":
				return refused
			}
			return nil
		}
		cfg := watermill.PublisherConfig{Refused: func(_ string, err error) watermill.Meaning {
			if errors.Is(err, refused) {
				return watermill.RecordRefused
			}
			return watermill.NotRefused
		}}
		return publishertest.Harness{
			Publisher: newPublisher(t, b, cfg), Topic: "t",
			Log: func() (log []event.Event, _ error) {
				b.mu.Lock()
				defer b.mu.Unlock()
				for _, m := range b.sent {
					var headers []event.Header
					for name, value := range m.Metadata {
						headers = append(headers, event.Header{Key: name, Value: []byte(value)})
					}
					key := []byte(m.Metadata.Get(watermill.MetadataKey))
					log = append(log,
						event.Decode(&event.Record{Topic: "t", Key: key, Value: m.Payload, Headers: headers}, ""))
				}
				return log, nil
			},
			Break: func() func() {
				down.Store(true)
				return func() { down.Store(false) }
			},
			Refuse: func(e *event.Event) { e.Payload = []byte("refused") },
			Lose:   func(written bool) { unanswered.Store(written); lost.Store(!written) },
		}
	})
}
