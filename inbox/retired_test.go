package inbox_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
)

// TestP9_1_RetiredConsumerReturns: a retired consumer does not keep days from being dropped. When it starts again, it
// recognizes the events that it applied.
func TestP9_1_RetiredConsumerReturns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var old, kept []event.Event
	for d := range 3 {
		old = append(old, of(idAt(w.noon(-7-d)))...)
		kept = append(kept, of(idAt(w.noon(-1-d)))...)
	}
	handle(t, w.long().Each(write), append(old, kept...))
	other := newInbox(t, w.Pool, "other", inbox.Config{Window: 4 * oneDay, AllowShortWindow: true, DaysAhead: 1})
	if err := other.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := newOperator(t, w, "ledger")
	if err := o.Retire(t.Context(), "gone"); err == nil || !strings.Contains(err.Error(), "stop its workers") {
		t.Fatalf("retired although it was just active: %v", err)
	}
	w.Exec(t, "update inbox_progress set updated_at = updated_at - interval '2 minutes'")
	w.Exec(t, `update inbox_consumer set programs = jsonb_build_object('ledger', jsonb_build_object('seen', now()))`)
	if err := o.Retire(t.Context(), "gone"); err == nil || !strings.Contains(err.Error(), "stop its workers") {
		t.Fatalf("retired although a program runs it: %v", err)
	}
	w.Exec(t, `update inbox_consumer set programs = '{}'`)
	if err := o.Retire(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if err := other.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.exists(w.table(-7)) || !w.exists(w.table(-3)) {
		t.Errorf("days %v", w.partitions())
	}
	if list, err := o.Consumers(t.Context()); err != nil || list[0].RetiredAt == nil {
		t.Errorf("%+v, %v", list, err)
	}
	for _, sql := range []string{"delete from inbox_consumer", "truncate inbox_consumer"} {
		if _, err := w.Pool.Exec(t.Context(), sql); err == nil ||
			!strings.Contains(err.Error(), "has forgotten which ids it knows") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	back := newInbox(t, w.Pool, "ledger", inbox.Config{Window: 10 * oneDay, DaysAhead: 1}).Each(write)
	same(t, "known", handle(t, back, kept), repeat(inbox.Duplicate, 3))
	same(t, "dropped", handle(t, back, old), repeat(inbox.Quarantined, 3))
	same(t, "effects", w.effects(), ids(append(old, kept...)))
	if list, err := o.Consumers(t.Context()); err != nil || list[0].RetiredAt != nil {
		t.Errorf("%+v, %v", list, err)
	}
	// One that was away while it was retired has not ended: what it reports next ends the retirement.
	said := &syncBuilder{}
	away := newInbox(t, w.Pool, "ledger", inbox.Config{
		Window: 10 * oneDay, DaysAhead: 1, Logger: slog.New(slog.NewTextHandler(said, nil)),
	})
	if err := away.Prepare(t.Context()); err != nil { // it starts
		t.Fatal(err)
	}
	w.Exec(t, "update inbox_consumer set retired_at = now() where consumer_name = 'ledger'")
	if err := inbox.Present(t.Context(), away); err != nil {
		t.Fatal(err)
	}
	if list, err := o.Consumers(t.Context()); err != nil || list[0].RetiredAt != nil ||
		strings.Count(said.String(), "was retired, and runs") != 1 {
		t.Errorf("%+v, %v\n%s", list, err, said)
	}
	if err := newOperator(t, w, "nobody").Retire(t.Context(), "gone"); err == nil ||
		!strings.Contains(err.Error(), "never started") {
		t.Error(err)
	}
}

func newOperator(t *testing.T, w *world, consumer string) *operator.Operator {
	t.Helper()
	o, err := operator.New(w.Pool, "", consumer, "kim")
	if err != nil {
		t.Fatal(err)
	}
	return o
}
