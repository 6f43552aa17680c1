package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// keyed returns one event per key, in that order.
func keyed(keys ...string) []event.Event {
	events := some(len(keys))
	for i, k := range keys {
		events[i].Key = k
	}
	return events
}

// failing returns an effect that fails for the ids of bad, with their errors, and otherwise is write.
func failing(bad map[uuid.UUID]error) inbox.Effect {
	return func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if err := bad[e.ID]; err != nil {
			return errors.Join(write(ctx, tx, e), err)
		}
		return write(ctx, tx, e)
	}
}

// failingAll is failing for a batch effect, which does not name the event that failed.
func failingAll(bad map[uuid.UUID]error) inbox.BatchEffect {
	return func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		for _, e := range events {
			if err := bad[e.ID]; err != nil {
				return err
			}
		}
		return writeAll(ctx, tx, events)
	}
}

// parked lists the parked events in order, each as kind, code and id.
func (w *world) parked() (list []string) {
	w.t.Helper()
	rows, err := w.Pool.Query(w.t.Context(), "select kind || ' ' || code || ' ' || message_id from inbox_parked "+
		"order by id")
	if err != nil {
		w.t.Fatal(err)
	}
	if list, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		w.t.Fatal(err)
	}
	return list
}

// TestP9_6_ParkKey: an event that finally fails parks its key. Later events of the key are parked behind it without a
// run; other keys go on. A parked event has no inbox row, and its duplicate is neither run nor parked again.
func TestP9_6_ParkKey(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(*inbox.Inbox, map[uuid.UUID]error) inbox.Handler{
		"each":  func(in *inbox.Inbox, bad map[uuid.UUID]error) inbox.Handler { return in.Each(failing(bad)) },
		"batch": func(in *inbox.Inbox, bad map[uuid.UUID]error) inbox.Handler { return in.Batch(failingAll(bad)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			e := keyed("a", "b", "a", "b", "c", "a")
			var told []inbox.ParkedInfo
			h := handler(w.inbox(inbox.Config{
				Observer: inbox.Observer{Parked: func(p inbox.ParkedInfo) { told = append(told, p) }},
			}),
				map[uuid.UUID]error{e[2].ID: outcome.Terminal("no_account", errBad)})
			A, P, D := inbox.Applied, inbox.Parked, inbox.Duplicate
			same(t, "first", handle(t, h, e), []inbox.Outcome{A, A, P, A, A, P})
			same(t, "effects", w.effects(), []uuid.UUID{e[0].ID, e[1].ID, e[3].ID, e[4].ID})
			more := keyed("a", "c")
			same(t, "again", handle(t, h, append(e, more...)), []inbox.Outcome{D, D, D, D, D, D, P, A})
			want := []string{"failed no_account " + e[2].ID.String(), "behind  " + e[5].ID.String(), "behind  " +
				more[0].ID.String()}
			same(t, "parked", w.parked(), want)
			if days, _ := w.rows(); days != 5 {
				t.Errorf("%d ids are recorded, want the 5 that ran", days)
			}
			if len(told) != 1 || told[0].Event.ID != e[2].ID || told[0].Code != "no_account" ||
				told[0].Event.Key != "" || told[0].Event.Payload != nil {
				t.Errorf("told %+v", told)
			}
			if got := pgtest.One[string](t, w.DB, "select state || code || tenant::text || topic || "+
				"convert_from(key, 'utf8') from inbox_parked_key"); got != `parkedno_account\xpaymentsa` {
				t.Errorf("mark %s", got)
			}
		})
	}
}

// TestP9_6_Alone: an event without a key is parked alone, as is every event with ParkEvent.
func TestP9_6_Alone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy inbox.FailurePolicy
		key    string
	}{"no key": {inbox.ParkKey, ""}, "by option": {inbox.ParkEvent, "a"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			e := keyed(c.key, c.key, c.key)
			h := w.inbox(inbox.Config{OnFailure: c.policy}).Each(
				failing(map[uuid.UUID]error{e[1].ID: outcome.Terminal("x", errBad)}))
			same(t, "outcomes", handle(t, h, e), []inbox.Outcome{inbox.Applied, inbox.Parked, inbox.Applied})
			same(t, "again", handle(t, h, e), repeat(inbox.Duplicate, 3))
			same(t, "parked", w.parked(), []string{"failed x " + e[1].ID.String()})
			if n := pgtest.One[int](t, w.DB, "select count(*) from inbox_parked_key"); n != 0 {
				t.Errorf("%d keys are marked", n)
			}
		})
	}
}

// TestP9_6_KeyIsTenantTopicAndKey: the same key of another tenant or topic is another key.
func TestP9_6_KeyIsTenantTopicAndKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "a", "a")
	e[1].Tenant, e[2].Tenant, e[2].Key = "t", "ta", ""
	h := w.inbox(inbox.Config{}).Each(failing(map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)}))
	same(t, "outcomes", handle(t, h, e), []inbox.Outcome{inbox.Parked, inbox.Applied, inbox.Applied, inbox.Parked})
	other := keyed("a")
	other[0].Topic = "refunds"
	same(t, "another topic", handle(t, h, other), repeat(inbox.Applied, 1))
}

// TestP9_6_Bound: when a key has ParkedPerKey parked events, the next one halts its partition.
func TestP9_6_Bound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "b", "a", "b")
	halted := 0
	cfg := inbox.Config{ParkedPerKey: 2, Observer: inbox.Observer{Halted: func(*inbox.HaltError) { halted++ }}}
	in := w.inbox(cfg)
	h := in.Each(failing(map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)}))
	same(t, "outcomes", handle(t, h, e[:2]), repeat(inbox.Parked, 2))
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := h.Handle(t.Context(), e[2:])
	if err == nil || !strings.Contains(err.Error(), "ParkedPerKey") || halted != 1 {
		t.Fatalf("%v, halted %d times", err, halted)
	}
	same(t, "outcomes", out, []inbox.Outcome{inbox.Applied, inbox.Undecided, inbox.Undecided})
	if n := pgtest.One[int](t, w.DB, "select count(*) from inbox_progress where halted_at is not null and "+
		"halted_code = 'list_full'"); n != 1 {
		t.Errorf("%d halts are recorded, want 1", n)
	}
	// Once the list is shorter, the partition goes on by itself.
	list, err := w.operator().Parked(t.Context(), admin.ParkedFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.operator().DiscardEvent(t.Context(), list[1].ID, "wrong"); err != nil {
		t.Fatal(err)
	}
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "outcomes", handle(t, h, e[3:]), []inbox.Outcome{inbox.Parked, inbox.Applied})
	if n := pgtest.One[int](t, w.DB, "select count(*) from inbox_progress where halted_at is not null"); n != 0 {
		t.Errorf("%d halts are still recorded", n)
	}
}

// TestP9_6_ProcessTx: in a caller's transaction too, an event of a parked key is parked, and a parked event is a
// duplicate.
func TestP9_6_ProcessTx(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "b")
	in := w.inbox(inbox.Config{})
	handle(t, in.Each(failing(map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)})), e[:1])
	for _, want := range [][]inbox.Outcome{{inbox.Duplicate, inbox.Parked, inbox.Applied}, repeat(inbox.Duplicate, 3)} {
		err := pgx.BeginFunc(t.Context(), w.Pool, func(tx pgx.Tx) error {
			for i := range e {
				if got, err := in.ProcessTx(t.Context(), tx, e[i], write); err != nil || got != want[i] {
					t.Errorf("event %d is %v, want %v: %v", i, got, want[i], err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	same(t, "parked", w.parked(), []string{"failed x " + e[0].ID.String(), "behind  " + e[1].ID.String()})
	same(t, "effects", w.effects(), []uuid.UUID{e[2].ID})
	if days, _ := w.rows(); days != 1 {
		t.Errorf("%d ids recorded", days)
	}
}
