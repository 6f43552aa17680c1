package inbox_test

import (
	"errors"
	"slices"
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

// TestP9_1_Quarantine: ids older than the window or too far ahead are set aside alone, never with their key, and never
// run.
func TestP9_1_Quarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// Another consumer's window is longer, so nothing is dropped yet.
	w.Exec(t, "insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', current_date - 30, "+
		"10), ('long', current_date - 30, 15)")
	in := w.inbox(quick(inbox.Config{Window: 10 * oneDay, DaysAhead: 1}))
	h := in.Each(write)
	e := keyed("a", "a", "a", "a")
	e[0].ID, e[2].ID = idAt(w.noon(-12)), idAt(w.noon(40))
	A, Q, D := inbox.Applied, inbox.Quarantined, inbox.Duplicate
	same(t, "outcomes", handle(t, h, append(e, e[0], e[2])), []inbox.Outcome{Q, A, Q, A, D, D})
	same(t, "again", handle(t, h, e), repeat(D, 4))
	same(t, "effects", w.effects(), []uuid.UUID{e[1].ID, e[3].ID})
	same(t, "parked", w.parked(), []string{"quarantined too_old " + e[0].ID.String(), "quarantined too_far_ahead " +
		e[2].ID.String()})
	list, err := w.operator().Parked(t.Context(), admin.ParkedFilter{Kind: "quarantined"})
	if err != nil || len(list) != 2 || !list[0].Alone ||
		!strings.Contains(list[0].Error, "older than what is remembered") || list[0].Key != "a" {
		t.Fatalf("%+v, %v", list, err)
	}
	// A released event gets its row in its own day, which is made if it is missing, so that its duplicates are found.
	for _, q := range list {
		if err := w.operator().ReleaseEvent(t.Context(), q.ID, "looked at its business row"); err != nil {
			t.Fatal(err)
		}
	}
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked")
	same(t, "effects", w.effects(), []uuid.UUID{e[1].ID, e[3].ID, e[0].ID, e[2].ID})
	for _, days := range []int{-12, 40} {
		if n := pgtest.One[int](t, w.DB, "select count(*) from "+w.table(days)); n != 1 {
			t.Errorf("%d rows in %s", n, w.table(days))
		}
	}
	same(t, "released, and delivered again", handle(t, h, e), repeat(D, 4))
}

// TestP9_1_ReleasedBelowDropped: the day of a parked event is dropped while it waits. It is still released first, its
// row goes to inbox_message_any, and a late duplicate is recognized.
func TestP9_1_ReleasedBelowDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', current_date - 30, 10)")
	in := w.inbox(quick(inbox.Config{Window: 10 * oneDay, DaysAhead: 1}))
	e := keyed("a", "a")
	e[0].ID = idAt(w.noon(-8))
	s := &switchable{bad: map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)}}
	h := in.Each(s.effect)
	same(t, "outcomes", handle(t, h, e), repeat(inbox.Parked, 2))
	w.shrink(4)
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.exists(w.table(-8)) {
		t.Fatal("the day was not dropped")
	}
	s.mended.Store(true)
	w.releaseKey("a", 2)
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
	same(t, "effects", w.effects(), ids(e))
	if n := pgtest.One[int](t, w.DB, "select count(*) from inbox_message_any where message_id = $1",
		e[0].ID.String()); n != 1 {
		t.Errorf("%d rows in any", n)
	}
	if w.exists(w.table(-8)) {
		t.Error("a dropped day was made again")
	}
	same(t, "late duplicate", handle(t, h, e[:1]), repeat(inbox.Duplicate, 1)) // its row decides, whatever its age
	same(t, "effects", w.effects(), ids(e))
}

// TestP9_1_OldAppliedIDIsDuplicate: an id is older than a consumer's window, and its row is in a day that another
// consumer's longer window keeps. It is a duplicate, not quarantined.
func TestP9_1_OldAppliedIDIsDuplicate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	long := newInbox(t, w.Pool, "long", inbox.Config{Window: 9 * oneDay, DaysAhead: 1})
	if err := long.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', current_date - 30, 9)")
	id := idAt(w.noon(-5))
	e := []event.Event{of(id)[0], of(idAt(w.noon(-5)))[0]}
	same(t, "while it counts", handle(t, w.inbox(inbox.Config{Window: 9 * oneDay, DaysAhead: 1}).Each(write), e[:1]),
		repeat(inbox.Applied, 1))
	short := w.inbox(inbox.Config{Window: 2 * oneDay, DaysAhead: 1, AllowShortWindow: true}).Each(write)
	same(t, "later", handle(t, short, e), []inbox.Outcome{inbox.Duplicate, inbox.Quarantined})
}

// TestP9_1_QuarantinedEventIsDecidedMeanwhile: an event is to be quarantined while another transaction decides its
// parked twin. The insert waits for that transaction, and the event is a duplicate.
func TestP9_1_QuarantinedEventIsDecidedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.inbox(inbox.Config{}).Each(write)
	e := keyed("a")
	e[0].ID = idAt(w.noon(40))
	same(t, "outcomes", handle(t, h, e), repeat(inbox.Quarantined, 1))
	tx, err := w.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"insert into inbox_message_any (consumer_name, message_id, status) select consumer_name, message_id, " +
			"'discarded' from inbox_parked",
		"delete from inbox_parked",
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	again := make(chan []inbox.Outcome, 1)
	go func() { again <- handle(t, h, e) }()
	pgtest.AwaitBlocking(t, w.DB, tx.Conn().PgConn().PID())
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "again", <-again, repeat(inbox.Duplicate, 1))
	same(t, "parked", w.parked(), []string{})
}

// TestP9_1_OneIDForTwoEvents: an id that two events have is no repeat of the first. The second is set aside under an id
// of its own, once, and can be released.
func TestP9_1_OneIDForTwoEvents(t *testing.T) {
	t.Parallel()
	A, Q, D, P := inbox.Applied, inbox.Quarantined, inbox.Duplicate, inbox.Parked
	other := func(e event.Event, payload string) event.Event {
		e.Payload = []byte(payload)
		return e
	}
	setUp := func(t *testing.T, cfg inbox.Config, s *switchable) (*world, *inbox.Inbox, inbox.Handler) {
		t.Helper()
		w := newWorld(t)
		w.Exec(t, "insert into inbox_consumer (consumer_name, floor, window_days) "+
			"values ('ledger', current_date - 30, 10)")
		cfg.Window = 10 * oneDay
		in := w.inbox(quick(cfg))
		return w, in, in.Each(s.effect)
	}
	ids := map[string]func(w *world) uuid.UUID{
		"of a day": func(w *world) uuid.UUID { return idAt(w.noon(0)) },
		"foreign":  func(*world) uuid.UUID { return uuid.New() },
	}
	for name, id := range ids {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, in, h := setUp(t, inbox.Config{}, &switchable{})
			e := keyed("a", "b")
			e[0].ID = id(w)
			e[1].ID = e[0].ID
			third := other(e[0], `{"third": 3}`)
			repeat := e[0]
			repeat.Headers = map[string]string{"traceparent": "another"}
			same(t, "one batch", handle(t, h, []event.Event{e[0], e[1], repeat}), []inbox.Outcome{A, Q, D})
			same(t, "later", handle(t, h, []event.Event{e[1], third, repeat, third}), []inbox.Outcome{D, Q, D, D})
			list, err := w.operator().Parked(t.Context(), admin.ParkedFilter{})
			if err != nil || len(list) != 2 || list[0].Code != inbox.CodeOtherContent || list[0].Key != "b" ||
				!strings.Contains(list[0].Error, e[0].ID.String()) || list[0].MessageID == list[1].MessageID {
				t.Fatalf("%+v, %v", list, err)
			}
			found := func(when string, want ...string) {
				t.Helper()
				f, err := w.operator().Find(t.Context(), e[0].ID.String())
				var got []string
				for _, e := range f.Events {
					got = append(got, e.Where+" "+e.MessageID.String())
				}
				slices.Sort(got)
				slices.Sort(want)
				if err != nil || !slices.Equal(got, want) || len(f.Unsearched) != 0 {
					t.Errorf("%s, under one id: %q, want %q; %q, %v", when, got, want, f.Unsearched, err)
				}
			}
			first, second, last := e[0].ID.String(), list[0].MessageID.String(), list[1].MessageID.String()
			found("quarantined", "decided "+first, "quarantined "+second, "quarantined "+last)
			if err := w.operator().ReleaseEvent(t.Context(), list[0].ID, "its producer is mended"); err != nil {
				t.Fatal(err)
			}
			if _, err := w.operator().DiscardEvent(t.Context(), list[1].ID, "nonsense"); err != nil {
				t.Fatal(err)
			}
			runs(t, in)
			pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked")
			same(t, "effects", w.effects(), []uuid.UUID{e[0].ID, list[0].MessageID})
			found("judged", "decided "+first, "decided "+second, "discarded "+last)
			same(t, "again", handle(t, h, []event.Event{e[1], third, repeat}), []inbox.Outcome{D, D, D})
		})
	}
	t.Run("parked", func(t *testing.T) {
		t.Parallel()
		e := keyed("a")[0]
		s := &switchable{bad: map[uuid.UUID]error{e.ID: outcome.Terminal("x", errBad)}}
		w, in, h := setUp(t, inbox.Config{}, s)
		second := other(e, "second")
		same(t, "outcomes", handle(t, h, []event.Event{e}), []inbox.Outcome{P})
		same(t, "outcomes", handle(t, h, []event.Event{second, e}), []inbox.Outcome{Q, D})
		list, err := w.operator().Parked(t.Context(), admin.ParkedFilter{})
		if err != nil || len(list) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		mended := []byte(`"mended"`)
		edit := admin.Edit{Payload: &mended}
		if err := w.operator().EditParked(t.Context(), list[0].ID, edit, "mended by hand"); err != nil {
			t.Fatal(err)
		}
		s.mended.Store(true)
		w.releaseKey("a", 1)
		runs(t, in)
		pgtest.AwaitSQL(t, w.DB, "select count(*) = 1 from inbox_parked")
		same(t, "the event as it was before the edit", handle(t, h, []event.Event{e, second}), []inbox.Outcome{D, D})
	})
	t.Run("undecidable", func(t *testing.T) {
		t.Parallel()
		w, _, h := setUp(t, inbox.Config{}, &switchable{})
		e := keyed("a")[0]
		e.ID = idAt(w.noon(-12))
		same(t, "outcomes", handle(t, h, []event.Event{e, other(e, "second"), e, other(e, "second")}),
			[]inbox.Outcome{Q, Q, D, D})
	})
	t.Run("halt", func(t *testing.T) {
		t.Parallel()
		w, _, h := setUp(t, inbox.Config{OnFailure: inbox.Halt}, &switchable{})
		e := keyed("a")[0]
		out, err := h.Handle(t.Context(), []event.Event{e, other(e, "second")})
		halted, ok := errors.AsType[*inbox.HaltError](err)
		if !ok || len(out) == 0 || out[0] != A {
			t.Fatalf("%v, %v", out, err)
		}
		if _, code := outcome.Of(halted); code != inbox.CodeOtherContent {
			t.Fatalf("code %q of %v", code, err)
		}
		same(t, "effects", w.effects(), []uuid.UUID{e.ID})
	})
	t.Run("in the caller's transaction", func(t *testing.T) {
		t.Parallel()
		w, in, _ := setUp(t, inbox.Config{}, &switchable{})
		e := keyed("a")[0]
		for i, e := range []event.Event{e, e, other(e, "second")} {
			err := pgx.BeginFunc(t.Context(), w.Pool, func(tx pgx.Tx) error {
				_, err := in.ProcessTx(t.Context(), tx, e, write)
				return err
			})
			if _, halts := errors.AsType[*inbox.HaltError](err); halts != (i == 2) || (err != nil) != halts {
				t.Errorf("event %d: %v", i, err)
			}
		}
	})
}
