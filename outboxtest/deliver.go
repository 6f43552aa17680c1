package outboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// Deliver passes events to a handler as a consumer does: encoded as Kafka records and decoded again, each topic as one
// partition in the given order. An event without an ID gets one. It returns the outcome of each event, in the order of
// events, and the handler's first error; events after an error are Undecided.
//
// A handler retries a failing effect, by default for minutes. Configure the test's inbox to log the error and to give
// up at once:
//
//	inbox.Config{MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
//
// Deliver logs a topic that takes longer than 5 s.
//
// Topics are delivered one after the other, and none after an error. For a redelivery call it again with the same
// events, IDs included, or use [Redeliver].
func Deliver(ctx context.Context, t testing.TB, h inbox.Handler, events ...event.Event) ([]inbox.Outcome, error) {
	t.Helper()
	if h == nil {
		t.Fatal("outboxtest: Deliver needs a handler, such as inbox.Each(effect)")
	}
	return deliver(ctx, t, h, asConsumed(t, events))
}

// deliver passes the events of each topic to h, in the order in which topics first occur.
func deliver(ctx context.Context, t testing.TB, h inbox.Handler, events []event.Event) ([]inbox.Outcome, error) {
	outcomes := make([]inbox.Outcome, len(events))
	topics := map[string][]int{}
	var order []string
	for i, e := range events {
		if topics[e.Topic] == nil {
			order = append(order, e.Topic)
		}
		topics[e.Topic] = append(topics[e.Topic], i)
	}
	for _, topic := range order {
		batch := make([]event.Event, 0, len(topics[topic]))
		for _, i := range topics[topic] {
			batch = append(batch, events[i])
		}
		done := logWhenSlow(t, topic)
		out, err := h.Handle(ctx, batch)
		done()
		for n, i := range topics[topic] {
			if n < len(out) {
				outcomes[i] = out[n]
			}
		}
		if err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

const slow = 5 * time.Second

// logWhenSlow logs unless done is called in time. It does not log after done has returned.
func logWhenSlow(t testing.TB, topic string) (done func()) {
	logged := make(chan struct{})
	timer := time.AfterFunc(slow, func() {
		defer close(logged)
		t.Logf("outboxtest: the handler has not processed topic %q after %v: a failing effect is retried, "+
			"by default for minutes; set MaxAttempts: 1 and a Logger, for the error, in the test's inbox.Config",
			topic, slow)
	})
	return func() {
		if !timer.Stop() {
			<-logged
		}
	}
}

// asConsumed encodes events as a relay does, and decodes them as a consumer does. The result shares no memory with
// events.
func asConsumed(t testing.TB, events []event.Event) []event.Event {
	t.Helper()
	offsets := map[string]int64{}
	read := make([]event.Event, len(events))
	for i, e := range events {
		if e.Topic == "" {
			t.Fatalf("outboxtest: event %d has no topic", i)
		}
		if e.ID == uuid.Nil {
			e.ID = event.NewID()
		}
		record := event.Record{
			Topic: e.Topic, Offset: offsets[e.Topic], Time: e.Time,
			Headers: event.AppendHeaders(nil, &e),
		}
		offsets[e.Topic]++
		if e.Key != "" {
			record.Key = []byte(e.Key)
		}
		if e.Payload != nil {
			record.Value = append([]byte{}, e.Payload...)
		}
		read[i] = event.Decode(&record, event.HeaderID)
		read[i].ID = e.ID // without a number, as of no relay, it depends on the source
	}
	return read
}
