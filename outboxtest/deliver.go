package outboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// Deliver hands events to a handler as a consumer does: through the headers of a Kafka record and back, and each topic
// as one partition in the order given. An event without an ID gets one. It returns what became of each event, in the
// order of events; Undecided are those behind an error, which is the handler's first.
//
// A handler tries a failing effect again, by default for minutes. Let the test's inbox say why, and give up at once:
//
//	inbox.Config{MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
//
// A topic that takes longer than 5 s is logged.
//
// Topics come one after the other; a topic behind an error is not delivered. Call it again with the same events, IDs
// included, for a redelivery, or use [Redeliver].
func Deliver(ctx context.Context, t testing.TB, h inbox.Handler, events ...event.Event) ([]inbox.Outcome, error) {
	t.Helper()
	if h == nil {
		t.Fatal("outboxtest: Deliver needs a handler, such as inbox.Each(effect)")
	}
	return deliver(ctx, t, h, asConsumed(t, events))
}

// deliver gives h the events of each topic, in the order in which topics first occur.
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
		said := logWhenSlow(t, topic)
		out, err := h.Handle(ctx, batch)
		said()
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

// slow is when a test should hear of a handler that is still at it.
const slow = 5 * time.Second

// logWhenSlow logs when the function that it returns is not called for a while. Nothing is logged after that returns.
func logWhenSlow(t testing.TB, topic string) (done func()) {
	said := make(chan struct{})
	timer := time.AfterFunc(slow, func() {
		defer close(said)
		t.Logf("outboxtest: the handler has not decided the events of topic %q after %v: a failing effect is tried "+
			"again, by default "+
			"for minutes; set MaxAttempts: 1 and a Logger in the test's inbox.Config, which then says why it fails",
			topic, slow)
	})
	return func() {
		if !timer.Stop() {
			<-said
		}
	}
}

// asConsumed is what a consumer makes of the records that a relay makes of events. It shares nothing with events.
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
	}
	return read
}
