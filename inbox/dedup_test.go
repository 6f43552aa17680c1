package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestP9_8_OtherStrategies: a consumer's strategy is fixed, because another one does not know its applied events.
func TestP9_8_OtherStrategies(t *testing.T) {
	t.Parallel()
	for _, was := range []inbox.Dedup{inbox.ByID, inbox.ByWatermark, inbox.ByOffset} {
		t.Run(was.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if err := w.inbox(inbox.Config{Dedup: was}).Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, is := range []inbox.Dedup{inbox.ByID, inbox.ByWatermark, inbox.ByOffset} {
				_, err := w.inbox(inbox.Config{Dedup: is}).Each(write).Handle(t.Context(), numbered(1, 1))
				if is != was && (err == nil || !strings.Contains(err.Error(), "goes by "+was.String())) {
					t.Errorf("by %s: %v", is, err)
				}
				if _, err := w.operator().Move(t.Context(), is, "as the test wants it"); err == nil &&
					(was != inbox.ByID || is == inbox.ByID) {
					t.Errorf("the consumer moved to %s", is)
				} else if was == inbox.ByID && is == inbox.ByWatermark {
					w.Exec(t, "update inbox_consumer set dedup = 'id'")
				}
			}
		})
	}
	if _, err := inbox.New(newWorld(t).Pool, "x", inbox.Config{Dedup: 3}); err == nil {
		t.Error("New accepts an unknown Dedup")
	}
}

// TestP9_8_SwitchedFromIDs: a consumer switches from ids to the watermark. The events that it applied by ids are
// duplicates, although no numbers are recorded for them, and a process that still uses ids is refused.
func TestP9_8_SwitchedFromIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := numbered(1, 40)
	log[7].ID = uuid.New()
	log[22].ID = uuid.New()
	log[38].ID = idAt(time.Now().Add(-72 * time.Hour)) // older than the window
	s := &switchable{bad: map[uuid.UUID]error{log[3].ID: outcome.Terminal("x", errBad)}}
	log[3].Key = "other"
	in := w.inbox(inbox.Config{})
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "update inbox_consumer set floor = floor - 30")
	entered, leave := make(chan uint32), make(chan struct{})
	var stop sync.Once
	byID := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.ID == log[29].ID {
			stop.Do(func() { entered <- tx.Conn().PgConn().PID(); <-leave })
		}
		return s.effect(ctx, tx, e)
	})
	handle(t, byID, log[:25])
	if _, err := w.operator().Move(t.Context(), inbox.ByWatermark, "no more rows"); err == nil ||
		!strings.Contains(err.Error(), "stop its workers first") {
		t.Fatalf("beside a worker: %v", err)
	}
	w.Exec(t, "update inbox_progress set updated_at = now() - interval '2 minutes'")
	w.Exec(t, "update inbox_consumer set programs = '{}'")
	// The move waits for a zombie's open transaction.
	var wg sync.WaitGroup
	wg.Go(func() { handle(t, byID, log[25:30]) })
	zombie := <-entered
	moved := make(chan error, 1)
	go func() {
		_, err := w.operator().Move(t.Context(), inbox.ByWatermark, "no more rows")
		moved <- err
	}()
	pgtest.AwaitBlocking(t, w.DB, zombie)
	close(leave)
	wg.Wait()
	if err := <-moved; err != nil {
		t.Fatal(err)
	}
	_, err := byID.Handle(t.Context(), log[30:31])
	if h := halted(t, err, log[30].ID); !strings.Contains(h.Error(), "goes by watermark") {
		t.Errorf("a process that uses ids halts for another reason: %v", h)
	}
	if err := w.operator().Resume(t.Context(), log[30].Topic, log[30].Position.Partition,
		"it was started anew"); err != nil {
		t.Error("the halt cannot be resumed:", err)
	}
	h := w.byWatermark(inbox.Config{}).Each(s.effect)
	// The committed offset is behind the decided events, which are read again in batches.
	same(t, "redelivered", handle(t, h, log[:10]), repeat(inbox.Duplicate, 10))
	same(t, "redelivered", handle(t, h, log[10:32]), append(repeat(inbox.Duplicate, 20), repeat(inbox.Applied, 2)...))
	same(t, "new", handle(t, h, log[30:]), append(append(repeat(inbox.Duplicate, 2), repeat(inbox.Applied, 6)...),
		inbox.Quarantined, inbox.Applied))
	if days, others := w.rows(); days+others != 29 {
		t.Errorf("%d and %d ids are recorded, want those from before the move", days, others)
	}
	w.Exec(t, "update inbox_consumer set ids_until = now() - interval '1 second'")
	more := numbered(41, 2)
	more[1].ID = log[9].ID // another event with this id, a duplicate by ids
	same(t, "later", handle(t, h, more), repeat(inbox.Applied, 2))
	// 39 of the log, without the parked and the quarantined event, and two more.
	if n := len(w.effects()); n != 40 {
		t.Errorf("%d effects", n)
	}
}

// TestP9_8_Offsets deduplicates by the offsets of a topic with one writer.
func TestP9_8_Offsets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := time.Now()
	topic := func(n int, at time.Time) []event.Event {
		log := some(n)
		for i := range log {
			log[i].Time = at.Add(time.Duration(i) * time.Millisecond)
			log[i].ID = event.RecordID(log[i].Topic, 3, int64(i), log[i].Time)
		}
		return log
	}
	h := w.inbox(inbox.Config{Dedup: inbox.ByOffset}).Batch(writeAll)
	log := topic(20, start)
	log[4].Time = start.Add(time.Minute) // clocks differ
	same(t, "first", handle(t, h, log[:10]), repeat(inbox.Applied, 10))
	h = w.inbox(inbox.Config{Dedup: inbox.ByOffset}).Batch(writeAll)
	same(t, "redelivered", handle(t, h, log[2:]), append(repeat(inbox.Duplicate, 8), repeat(inbox.Applied, 10)...))
	w.noRows()

	// The topic is deleted and created again: its offsets begin at 0.
	again := topic(5, start.Add(time.Hour))
	_, err := h.Handle(t.Context(), again)
	if _, code := outcome.Of(halted(t, err, again[0].ID)); code != inbox.CodeOffsetsBack ||
		!strings.Contains(err.Error(), "forget-offsets") {
		t.Errorf("code %q: %v", code, err)
	}
	if n, err := w.operator().ForgetOffsets(t.Context(), "payments", "made again"); err != nil || n != 1 {
		t.Fatalf("%d partitions go on: %v", n, err)
	}
	same(t, "made again", handle(t, h, again), repeat(inbox.Applied, 5))
	same(t, "effects", w.effects(), ids(append(log, again...)))
	if _, err := w.operator().ForgetOffsets(t.Context(), "orders", "a slip"); err == nil {
		t.Error("no error for a partition without a mark")
	}

	relayed := number(some(6), epochOne, 1)
	_, err = h.Handle(t.Context(), relayed[5:])
	if _, code := outcome.Of(halted(t, err, relayed[5].ID)); code != inbox.CodeNumbered {
		t.Errorf("code %q: %v", code, err)
	}
}

// TestP9_8_StateIsShown: an operator sees a consumer's strategy and its marks.
func TestP9_8_StateIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.inbox(inbox.Config{}).Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "update inbox_consumer set programs = '{}'")
	until, err := w.operator().Move(t.Context(), inbox.ByOffset, "why not")
	if err != nil {
		t.Fatal(err)
	}
	list, err := w.operator().Consumers(t.Context())
	if err != nil || len(list) != 1 || list[0].Dedup != "offset" || list[0].IDsUntil == nil ||
		!list[0].IDsUntil.Equal(until) || time.Until(until) < 36*time.Hour {
		t.Errorf("%+v until %v: %v", list, until, err)
	}
	d, err := operator.Diagnose(t.Context(), w.Pool, w.Schema, false)
	if err != nil || len(d.Consumers) != 1 || d.Consumers[0].Dedup != "offset" {
		t.Errorf("%+v: %v", d, err)
	}
	audited, err := w.operator().Audit(t.Context(), 1)
	if err != nil || len(audited) != 1 || audited[0].Action != "move consumer" ||
		!strings.Contains(string(audited[0].Detail), "offset") {
		t.Errorf("%v: %v", audited, err)
	}
	nobody, err := operator.New(w.Pool, w.Schema, "", "ada")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nobody.Move(t.Context(), inbox.ByWatermark, "no consumer"); err == nil ||
		errors.Is(err, pgx.ErrNoRows) {
		t.Error(fmt.Sprint(err))
	}
}

// TestP9_8_OffsetsOfEventsWithATime: the producers' event times do not show whether a topic was created again. They may
// be in the future, and the same in the new topic.
func TestP9_8_OffsetsOfEventsWithATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	said := time.Now().AddDate(1, 0, 0)
	topic := func(written time.Time) []event.Event {
		log := some(5)
		for i := range log {
			log[i].Time = said.AddDate(0, 0, -i)
			log[i].Position.Timestamp = written.Add(time.Duration(i) * time.Millisecond)
		}
		return log
	}
	h := w.inbox(inbox.Config{Dedup: inbox.ByOffset}).Batch(writeAll)
	log := topic(time.Now())
	same(t, "first", handle(t, h, log), repeat(inbox.Applied, 5))
	same(t, "redelivered", handle(t, h, log), repeat(inbox.Duplicate, 5))
	again := topic(time.Now().Add(time.Minute))
	_, err := h.Handle(t.Context(), again)
	if _, code := outcome.Of(halted(t, err, again[0].ID)); code != inbox.CodeOffsetsBack {
		t.Errorf("code %q: %v", code, err)
	}
}
