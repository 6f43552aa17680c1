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

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// Two incarnations of an outbox's numbering, and another outbox.
const (
	epochOne   = "5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.1"
	epochTwo   = "5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.2"
	epochOther = "77777777-0c6d-4f57-8d3a-0f1f6f1a2b3c.9"
)

// number sets the epoch, the lane and consecutive numbers of events, beginning with from.
func number(events []event.Event, epoch string, from int64) []event.Event {
	for i := range events {
		p := &events[i].Position
		p.Epoch, p.Lane, p.Seq = epoch, 5, from+int64(i)
	}
	return events
}

// numbered returns n events with numbers from from.
func numbered(from int64, n int) []event.Event { return number(some(n), epochOne, from) }

// byWatermark returns an inbox that deduplicates by watermark.
func (w *world) byWatermark(cfg inbox.Config) *inbox.Inbox {
	w.t.Helper()
	cfg.Dedup = inbox.ByWatermark
	return w.inbox(cfg)
}

// noRows checks that the inbox has no row of an id.
func (w *world) noRows() {
	w.t.Helper()
	if days, others := w.rows(); days+others != 0 {
		w.t.Errorf("%d and %d ids are recorded, want none", days, others)
	}
}

func TestP9_8_AppliesOnceWithoutARow(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(*inbox.Inbox) inbox.Handler{
		"each":  func(in *inbox.Inbox) inbox.Handler { return in.Each(write) },
		"batch": func(in *inbox.Inbox) inbox.Handler { return in.Batch(writeAll) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			h := handler(w.byWatermark(inbox.Config{}))
			log := numbered(1, 20)
			for i := range log {
				log[i].Position.Lane = int16(i%3) - 1 // -1 is the lane of a log-based relay
			}
			log[4].ID = uuid.New() // any id is allowed
			other := number(some(3), epochOther, 7)
			log = append(log, other...)
			same(t, "first", handle(t, h, log[:12]), repeat(inbox.Applied, 12))
			// A late repeat, at a new offset, between new ones.
			again := append([]event.Event{log[3], log[11], log[12]}, log[5], log[13], log[13])
			same(t, "mixed", handle(t, h, again), []inbox.Outcome{
				inbox.Duplicate, inbox.Duplicate, inbox.Applied, inbox.Duplicate, inbox.Applied, inbox.Duplicate,
			})
			// Another process begins at the committed offset and sees what the first one decided.
			h = handler(w.byWatermark(inbox.Config{}))
			same(t, "redelivered", handle(t, h, log), append(repeat(inbox.Duplicate, 14), repeat(inbox.Applied, 9)...))
			same(t, "effects", w.effects(), ids(log))
			gap := numbered(1000, 1)
			same(t, "a gap", handle(t, h, gap), repeat(inbox.Applied, 1))
			w.noRows()
			if n := pgtest.One[int](t, w.DB, "select count(*) from inbox_watermark where version > 0"); n != 2 {
				t.Errorf("%d rows, want one for each outbox", n)
			}
		})
	}
}

// TestP9_8_TwinsAtTheSameTime: two members decide the same events. The second waits for the first, even if the
// partition has no row yet to lock.
func TestP9_8_TwinsAtTheSameTime(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"no row yet": 0, "behind a row": 7} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			handle(t, w.byWatermark(inbox.Config{}).Batch(writeAll), numbered(1, before+1)[:before])
			events := numbered(int64(before)+1, 50)
			entered, leave := make(chan struct{}), make(chan struct{})
			slow := w.byWatermark(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx,
				events []event.Event,
			) error {
				close(entered)
				<-leave
				return writeAll(ctx, tx, events)
			})
			var wg sync.WaitGroup
			wg.Go(func() { same(t, "first", handle(t, slow, events), repeat(inbox.Applied, 50)) })
			<-entered
			retried := make(chan struct{}, 1000)
			twin := w.byWatermark(inbox.Config{
				LockTimeout: 20 * time.Millisecond,
				Observer: inbox.Observer{Retried: func(r inbox.RetriedInfo) {
					if r.Reason == "conflict" {
						retried <- struct{}{}
					}
				}},
			}).Batch(writeAll)
			wg.Go(func() { same(t, "twin", handle(t, twin, events), repeat(inbox.Duplicate, 50)) })
			<-retried
			close(leave)
			wg.Wait()
			if n := len(w.effects()); n != before+50 {
				t.Errorf("%d effects, want %d", n, before+50)
			}
		})
	}
}

// TestP9_8_ManyTwins: four members handle the same log at the same time, in batches of different sizes.
func TestP9_8_ManyTwins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := numbered(1, 300)
	var wg sync.WaitGroup
	for m := range 4 {
		h := w.byWatermark(inbox.Config{}).Batch(writeAll)
		wg.Go(func() {
			for at := 0; at < len(log); at += 7 + m {
				handleTwin(t, h, log[at:min(at+7+m, len(log))])
			}
		})
	}
	wg.Wait()
	same(t, "effects", w.effects(), ids(log))
}

// TestP9_8_NewNumberingHalts: after an incarnation rose, repeats of published events cannot be told from new events, so
// each partition halts until an operator accepts the numbering. A late event of the old incarnation is a duplicate, or
// quarantined.
func TestP9_8_NewNumberingHalts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.byWatermark(inbox.Config{}).Batch(writeAll)
	old, young := numbered(1, 10), number(some(5), epochTwo, 1)
	young = append(young, number(some(1), epochOther, 3)...)
	log := append(append([]event.Event{}, old[:8]...), young...)
	out, err := h.Handle(t.Context(), log)
	if _, code := outcome.Of(halted(t, err, young[0].ID)); code != inbox.CodeNewNumbering ||
		!strings.Contains(err.Error(), "relay inbox accept --epoch "+epochTwo) {
		t.Errorf("code %q: %v", code, err)
	}
	same(t, "outcomes", out, append(repeat(inbox.Applied, 8), repeat(inbox.Undecided, 6)...))
	o := w.operator()
	if _, err := o.AcceptNumbering(t.Context(), "nonsense", "looked"); err == nil {
		t.Error("AcceptNumbering accepts a malformed epoch")
	}
	if n, err := o.AcceptNumbering(t.Context(), epochTwo+"9", "a typo"); !errors.Is(err, operator.ErrNotHalted) {
		t.Errorf("a numbering that no partition waits for is accepted: %d, %v", n, err)
	}
	if n, err := o.AcceptNumbering(t.Context(), epochTwo, "looked"); err != nil || n != 1 {
		t.Fatalf("%d partitions go on: %v", n, err)
	}
	same(t, "accepted", handle(t, h, young), repeat(inbox.Applied, 6))
	// A partition that was added may get repeats of another partition's events, so it halts too.
	added := number(some(2), strings.TrimSuffix(epochTwo, "2")+"3", 1)
	for i := range added {
		added[i].Position.Partition = 9
	}
	if _, err := h.Handle(t.Context(), added); err == nil {
		t.Error("an added partition begins with an unaccepted numbering")
	}
	// A partition that is behind gets its old events first, and then goes on by itself.
	far := func(events []event.Event) []event.Event {
		for i := range events {
			events[i].Position.Partition = 1
		}
		return events
	}
	same(t, "another partition", handle(t, h, far(append(numbered(100, 3), number(some(3), epochTwo, 50)...))),
		repeat(inbox.Applied, 6))
	// Late events of a relay that lost its lanes.
	late := []event.Event{old[7], old[8], young[2], old[9]}
	same(t, "late", handle(t, h, late), []inbox.Outcome{
		inbox.Duplicate, inbox.Quarantined, inbox.Duplicate,
		inbox.Quarantined,
	})
	same(t, "once more", handle(t, h, late), repeat(inbox.Duplicate, 4))
	same(t, "quarantined", w.parked(), []string{
		"quarantined old_numbering " + old[8].ID.String(),
		"quarantined old_numbering " + old[9].ID.String(),
	})
	w.noRows()
}

// TestP9_8_FirstIncarnationIsAccepted: a consumer accepts the first incarnation that it sees, because it has applied
// nothing of that outbox.
func TestP9_8_FirstIncarnationIsAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.byWatermark(inbox.Config{}).Batch(writeAll)
	same(t, "first", handle(t, h, number(some(3), epochTwo, 1)), repeat(inbox.Applied, 3))
	// An event of an older, unseen incarnation may have been published under the new one too.
	same(t, "older", handle(t, h, numbered(1, 1)), repeat(inbox.Quarantined, 1))
}

// TestP9_8_MaybePublishedIsParked: an event whose earlier number may be in the log is parked with its key, until an
// operator decides whether it was applied.
func TestP9_8_MaybePublishedIsParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.byWatermark(quick(inbox.Config{}))
	h := in.Each(write)
	log := number(keyed("a", "b", "a", "b", "a", "c"), epochOne, 1)
	handle(t, h, log[:2])
	again, unseen := log[0], log[3]
	again.Position.Seq, again.Position.MaybePublished = 3, true
	unseen.Position.MaybePublished = true
	rest := []event.Event{again, unseen, log[4], log[5], again}
	same(t, "outcomes", handle(t, h, rest), []inbox.Outcome{
		inbox.Parked, inbox.Parked, inbox.Parked, inbox.Applied,
		inbox.Duplicate,
	})
	same(t, "redelivered", handle(t, w.byWatermark(inbox.Config{}).Each(write), rest), repeat(inbox.Duplicate, 5))
	same(t, "parked", w.parked(), []string{
		"failed maybe_published " + again.ID.String(), "failed maybe_published " + unseen.ID.String(), "behind  " +
			log[4].ID.String(),
	})
	w.noRows()
	o := w.operator()
	list, err := o.Parked(t.Context(), admin.ParkedFilter{Key: "a"})
	if err != nil || len(list) != 2 {
		t.Fatalf("%v: %v", list, err)
	}
	if _, err := o.DiscardEvent(t.Context(), list[0].ID, "its business row is there"); err != nil {
		t.Fatal(err)
	}
	w.releaseKey("a", 1)
	w.releaseKey("b", 1)
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
	got := map[uuid.UUID]int{}
	for _, id := range w.effects() {
		got[id]++
	}
	for _, e := range []event.Event{log[0], log[1], unseen, log[4], log[5]} {
		if got[e.ID] != 1 {
			t.Errorf("event %d has %d effects", e.Position.Seq, got[e.ID])
		}
	}
	// Published again under a third number, the event is a duplicate: the operator's decision stays.
	assigned(h) // since another handler has read the log again
	again.Position.Seq, unseen.Position.Seq = 7, 8
	same(t, "a third number", handle(t, h, []event.Event{again, unseen}), repeat(inbox.Duplicate, 2))
}

// TestP9_8_ReplayedIsQuarantined: a replayed event is quarantined without its key, because newer events of the key were
// applied before it anyway.
func TestP9_8_ReplayedIsQuarantined(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.byWatermark(quick(inbox.Config{}))
	h := in.Each(write)
	log := numbered(1, 6)
	handle(t, h, log[:3])
	again, unseen := log[1], log[4]
	again.Position.Seq, again.Position.Replayed = 4, true
	unseen.Position.Seq, unseen.Position.Replayed = 5, true
	same(t, "outcomes", handle(t, h, []event.Event{again, unseen, log[5], again}), []inbox.Outcome{
		inbox.Quarantined, inbox.Quarantined, inbox.Applied, inbox.Duplicate,
	})
	same(t, "redelivered", handle(t, h, []event.Event{again, unseen, log[5]}), repeat(inbox.Duplicate, 3))
	same(t, "quarantined", w.parked(), []string{"quarantined replayed " + again.ID.String(), "quarantined replayed " +
		unseen.ID.String()})
	o := w.operator()
	list, err := o.Parked(t.Context(), admin.ParkedFilter{})
	if err != nil || len(list) != 2 {
		t.Fatalf("%v: %v", list, err)
	}
	if _, err := o.DiscardEvent(t.Context(), list[0].ID, "its business row is there"); err != nil {
		t.Fatal(err)
	}
	if err := o.ReleaseEvent(t.Context(), list[1].ID, "it is not"); err != nil {
		t.Fatal(err)
	}
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked")
	same(t, "effects", w.effects(), ids([]event.Event{log[0], log[1], log[2], log[5], unseen}))
	again.Position.Seq, unseen.Position.Seq = 7, 8
	same(t, "a third number", handle(t, h, []event.Event{again, unseen}), repeat(inbox.Duplicate, 2))
}

// TestP9_8_HaltInsteadOfQuarantine: with Halt an event that would be parked halts its partition.
func TestP9_8_HaltInsteadOfQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.byWatermark(inbox.Config{OnFailure: inbox.Halt}).Each(write)
	log := numbered(1, 3)
	log[1].Position.MaybePublished = true
	out, err := h.Handle(t.Context(), log)
	if _, code := outcome.Of(halted(t, err, log[1].ID)); code != inbox.CodeMaybePublished {
		t.Errorf("code %q", code)
	}
	same(t, "outcomes", out, []inbox.Outcome{inbox.Applied, inbox.Undecided, inbox.Undecided})
}

// TestP9_8_ParkedAndReleased: a parked event advances the watermark, and later events of its key are parked behind it.
// Neither has an inbox row before it runs.
func TestP9_8_ParkedAndReleased(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(*inbox.Inbox, *switchable) inbox.Handler{
		"each": func(in *inbox.Inbox, s *switchable) inbox.Handler { return in.Each(s.effect) },
		"batch": func(in *inbox.Inbox, s *switchable) inbox.Handler {
			return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
				for _, e := range events {
					if err := s.effect(ctx, tx, e); err != nil {
						return err
					}
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			e := number(keyed("a", "b", "a", "b", "a", "a"), epochOne, 1)
			s := &switchable{bad: map[uuid.UUID]error{e[2].ID: outcome.Terminal("x", errBad)}}
			in := w.byWatermark(quick(inbox.Config{}))
			h := handler(in, s)
			same(t, "outcomes", handle(t, h, e[:5]), []inbox.Outcome{
				inbox.Applied, inbox.Applied, inbox.Parked,
				inbox.Applied, inbox.Parked,
			})
			same(t, "again", handle(t, handler(w.byWatermark(inbox.Config{}), s), e[:5]), repeat(inbox.Duplicate, 5))
			w.noRows()
			same(t, "behind", handle(t, h, e[5:]), repeat(inbox.Parked, 1))
			s.mended.Store(true)
			w.releaseKey("a", 3)
			runs(t, in)
			pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
			same(t, "released", handle(t, h, e), repeat(inbox.Duplicate, 6))
			same(t, "effects", w.effects(), ids([]event.Event{e[0], e[1], e[3], e[2], e[4], e[5]}))
			if days, others := w.rows(); days+others != 3 {
				t.Errorf("%d and %d ids are recorded, want those of the released ones", days, others)
			}
		})
	}
}

// TestP9_8_ReleasedIDFromAhead: by watermark, an event whose id has a future time is parked like any other. Its release
// makes no day for the id, which a worker's role may not do, but uses inbox_message_any.
func TestP9_8_ReleasedIDFromAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := number(keyed("a", "a", "b"), epochOne, 1)
	ahead := time.Now().Add(30 * 24 * time.Hour).UTC()
	for i := range log {
		log[i].ID = idAt(ahead)
	}
	s := &switchable{bad: map[uuid.UUID]error{
		log[0].ID: outcome.Terminal("x", errBad),
		log[2].ID: outcome.Terminal("x", errBad),
	}}
	in := w.byWatermark(quick(inbox.Config{}))
	h := in.Each(s.effect)
	same(t, "outcomes", handle(t, h, log), repeat(inbox.Parked, 3))
	s.mended.Store(true)
	w.releaseKey("a", 2)
	if _, err := w.operator().DiscardKey(t.Context(), "", "payments", "b", admin.Seen{}, "not wanted"); err != nil {
		t.Fatal(err)
	}
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
	same(t, "effects", w.effects(), ids(log[:2]))
	same(t, "released and discarded", handle(t, h, log), repeat(inbox.Duplicate, 3))
	day := "inbox_message_" + ahead.Format("20060102")
	if _, others := w.rows(); others != 3 || pgtest.One[bool](t, w.DB, "select to_regclass($1) is not null", day) {
		t.Errorf("%d ids are in inbox_message_any, want 3 and no %s", others, day)
	}
}

// TestP9_8_ParkingReadsTheMark: an event fails for good in one member while another member applies it. It is a
// duplicate and not parked.
func TestP9_8_ParkingReadsTheMark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := numbered(1, 3)
	other := w.byWatermark(inbox.Config{}).Each(write)
	var once sync.Once
	h := w.byWatermark(inbox.Config{MaxAttempts: 3, Observer: inbox.Observer{Retried: func(r inbox.RetriedInfo) {
		// After a rollback, before the last attempt.
		if r.Reason == "failed" {
			once.Do(func() {
				same(t, "elsewhere", handle(t, other, log), []inbox.Outcome{
					inbox.Duplicate, inbox.Applied,
					inbox.Applied,
				})
			})
		}
	}}}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.ID == log[1].ID {
			return errBad
		}
		return write(ctx, tx, e)
	})
	out := handle(t, h, log)
	same(t, "outcomes", out[1:], repeat(inbox.Duplicate, 2))
	same(t, "effects", w.effects(), ids(log))
	if list := w.parked(); len(list) != 0 {
		t.Error(list)
	}
}

// TestP9_8_RecordWithoutNumber: a partition that begins with a record without a number halts, because no relay writes
// its topic. A single such record among numbered ones is quarantined.
func TestP9_8_RecordWithoutNumber(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.byWatermark(inbox.Config{}).Batch(writeAll)
	stray := some(1)[0]
	_, err := h.Handle(t.Context(), []event.Event{stray})
	if _, code := outcome.Of(halted(t, err, stray.ID)); code != inbox.CodeNoNumber ||
		!strings.Contains(err.Error(), "ByOffset") {
		t.Errorf("code %q: %v", code, err)
	}
	log := numbered(1, 2)
	broken := number(some(2), "no epoch", 3)
	broken[1].Position.Epoch, broken[1].Position.Seq = epochOne, 0
	same(t, "outcomes", handle(t, h, []event.Event{log[0], stray, broken[0], broken[1], log[1]}), []inbox.Outcome{
		inbox.Applied, inbox.Quarantined, inbox.Quarantined, inbox.Quarantined, inbox.Applied,
	})
	same(t, "again", handle(t, h, []event.Event{stray, broken[0], broken[1]}), repeat(inbox.Duplicate, 3))
}

// TestP9_8_IDTwiceInBatch: events with one id and different numbers are two events, whichever transactions they come
// in, and skipping one does not skip the other.
func TestP9_8_IDTwiceInBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := numbered(1, 5)
	log[3].ID, log[4].ID = log[1].ID, log[1].ID
	skipSecond := func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		for _, e := range events {
			if e.Position.Seq == log[1].Position.Seq {
				return inbox.Of(e, inbox.Skip)
			}
		}
		return writeAll(ctx, tx, events)
	}
	want := []inbox.Outcome{inbox.Applied, inbox.Skipped, inbox.Applied, inbox.Applied, inbox.Applied}
	same(t, "outcomes", handle(t, w.byWatermark(inbox.Config{}).Batch(skipSecond), log), want)
	if effects := w.effects(); len(effects) != 4 {
		t.Errorf("effects: got %v, want 4", effects)
	}
}

func TestP9_8_ProcessTxIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.byWatermark(inbox.Config{})
	tx, err := w.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := in.ProcessTx(t.Context(), tx, numbered(1, 1)[0], write); err == nil ||
		!strings.Contains(err.Error(), "out of order") {
		t.Errorf("got %v", err)
	}
}

// TestP9_8_MarksOfAnotherDatabase: watermarks in memory are not used for a database that lacks them.
func TestP9_8_MarksOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.byWatermark(inbox.Config{}).Batch(writeAll)
	log := numbered(1, 10)
	handle(t, h, log[:5])
	// As a restore of an older backup does.
	w.Exec(t, "set local effectonce.inbox = 'forget'; delete from effect; delete from inbox_watermark")
	changed(t, h, log[4:])
	same(t, "forgotten", handle(t, h, log[4:]), repeat(inbox.Applied, 6))
}

// changed handles events in a database that has lost effects: it decides nothing.
func changed(t *testing.T, h inbox.Handler, events []event.Event) {
	t.Helper()
	out, err := h.Handle(t.Context(), events)
	if _, ok := errors.AsType[*inbox.DatabaseChangedError](err); !ok {
		t.Errorf("outcomes %v, error %v, want a DatabaseChangedError", out, err)
	}
}

// backup keeps what a consumer has decided, and returns the SQL that restores it in place.
func (w *world) backup() (restore string) {
	w.t.Helper()
	restore = "set local session_replication_role = replica"
	for _, table := range []string{"inbox_watermark", "inbox_progress", "inbox_message", "effect"} {
		w.Exec(w.t, fmt.Sprintf("create table old_%s as table %[1]s", table))
		restore += fmt.Sprintf("; delete from %s; insert into %[1]s overriding system value table old_%[1]s", table)
	}
	return restore
}

// TestP9_8_LostMarksDecideNothing: a backup was restored under a process whose progress is not due. No number is
// decided past the lost effects, which would come as repeats.
func TestP9_8_LostMarksDecideNothing(t *testing.T) {
	t.Parallel()
	for name, dedup := range map[string]inbox.Dedup{"watermark": inbox.ByWatermark, "offset": inbox.ByOffset} {
		for lost, kept := range map[string]int{"back": 10, "gone": 0} {
			t.Run(name+" "+lost, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				log := some(40)
				if dedup == inbox.ByWatermark {
					number(log, epochOne, 1)
				}
				h := w.inbox(inbox.Config{Dedup: dedup}).Each(write)
				if kept > 0 {
					handle(t, h, log[:kept])
				}
				restore := w.backup()
				handle(t, h, log[kept:20])
				inbox.KeepProgressFresh(h)
				handle(t, h, log[20:30])
				w.Exec(t, restore)
				changed(t, h, log[30:])
				same(t, "effects", w.effects(), ids(log[:kept]))
				same(t, "read again", handle(t, h, log[kept:]), repeat(inbox.Applied, 40-kept))
				same(t, "all", w.effects(), ids(log))
			})
		}
	}
}

// TestP9_8_LostMarksBeforeANumbering: as above, and what comes next is of a later incarnation. Behind it the lost
// events would be old ones.
func TestP9_8_LostMarksBeforeANumbering(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := append(numbered(1, 20), number(some(10), epochTwo, 1)...)
	for i := range log {
		log[i].Position.Offset = int64(i)
	}
	w.Exec(t, "insert into inbox_numbering (consumer_name, outbox_id, incarnation) values ('ledger', $1, 2)",
		strings.TrimSuffix(epochTwo, ".2"))
	h := w.byWatermark(inbox.Config{}).Each(write)
	handle(t, h, log[:10])
	restore := w.backup()
	handle(t, h, log[10:20])
	inbox.KeepProgressFresh(h)
	w.Exec(t, restore)
	changed(t, h, log[20:])
	same(t, "read again", handle(t, h, log[10:]), repeat(inbox.Applied, 20))
	same(t, "all", w.effects(), ids(log))
}

// TestP9_8_MarksStayFlat: while a session keeps a snapshot, a watermark's old row versions are not removed. Moving the
// watermark must not read them all.
func TestP9_8_MarksStayFlat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	snapshot, err := w.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snapshot.Rollback(t.Context()) }()
	if _, err := snapshot.Exec(t.Context(), "select count(*) from effect"); err != nil {
		t.Fatal(err)
	}
	h := w.byWatermark(inbox.Config{}).Each(func(context.Context, pgx.Tx, event.Event) error { return inbox.Skip })
	pages := func() (n int) {
		// The worker's statement, with the values of the current watermark.
		if _, err := w.Pool.Exec(t.Context(), "vacuum analyze inbox_watermark"); err != nil {
			t.Fatal(err)
		}
		return pgtest.One[int](t, w.DB, `select n from `+w.Schema+`.pages_of_a_move()`)
	}
	w.Exec(t, pagesOfAMove)
	log := numbered(1, draw.Size(1001, 2001))
	handle(t, h, log[:1])
	first := pages()
	for i := range log[1:] {
		handle(t, h, log[i+1:i+2])
	}
	if last := pages(); last > first+12 {
		t.Errorf("a move reads %d pages, %d at the start", last, first)
	}
}

const pagesOfAMove = `create function pages_of_a_move() returns table (n int) language plpgsql as $$
declare m record; plan json;
begin
	select * into m from inbox_watermark where version > 0;
	set local enable_seqscan = off;
	execute format('explain (analyze, buffers, format json) with base as (delete from inbox_watermark where consumer_name = %L and topic = %L
		and partition = %s and outbox_id = %L and incarnation = %s and version = %s returning version)
		insert into inbox_watermark select %L, %L, %s, %L, %s, %s, lanes, seqs, latest from (select %L::smallint[] as lanes, %L::bigint[] as seqs, 0::bigint as latest) v, base',
		m.consumer_name, m.topic, m.partition, m.outbox_id, m.incarnation, m.version,
		m.consumer_name, m.topic, m.partition, m.outbox_id, m.incarnation, m.version + 1, m.lanes, m.seqs) into plan;
	return query select (plan->0->'Plan'->>'Shared Hit Blocks')::int + (plan->0->'Plan'->>'Shared Read Blocks')::int;
	raise notice '%', plan;
end $$`

// TestP9_8_ReleaseStopsAtMaybePublished: an operator's release of a key decides about its first event only. The release
// stops at a later event that may have been applied.
func TestP9_8_ReleaseStopsAtMaybePublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := number(keyed("a", "a", "a"), epochOne, 1)
	log[1].Position.MaybePublished = true
	s := &switchable{bad: map[uuid.UUID]error{log[0].ID: outcome.Terminal("x", errBad)}}
	in := w.byWatermark(quick(inbox.Config{}))
	h := in.Each(s.effect)
	same(t, "outcomes", handle(t, h, log), repeat(inbox.Parked, 3))
	s.mended.Store(true)
	w.releaseKey("a", 3)
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 1 from inbox_parked_key where state = 'parked' and code = "+
		"'maybe_published'")
	same(t, "before it", w.effects(), ids(log[:1]))
	w.releaseKey("a", 2)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
	same(t, "all", w.effects(), ids(log))
}

// TestP9_8_OffsetsBehindACut: a log that was cut and grew again has other records at offsets that were decided. They
// are applied, also those of the same millisecond.
func TestP9_8_OffsetsBehindACut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, log, at := w.inbox(inbox.Config{Dedup: inbox.ByOffset}).Each(write), uuid.New(), time.Now()
	records := func(from, to int64) (list []event.Event) {
		for offset := from; offset < to; offset++ {
			list = append(list, event.Decode(&event.Record{
				Topic: "payments", Partition: 3, Offset: offset, Time: at,
				Headers: []event.Header{{Key: "ce_id", Value: []byte(uuid.NewString())}},
			}, ""))
		}
		return list
	}
	begin := func(next int64, cut bool) {
		assigned(h)
		if _, err := h.Progress(t.Context(), "payments", 3); err != nil {
			t.Fatal(err)
		}
		if err := h.Begin(t.Context(), "payments", 3, next, inbox.Beginning{
			Log: log, Reason: "a test", Cut: cut,
		}); err != nil {
			t.Fatal(err)
		}
	}
	begin(0, false)
	first := records(0, 10)
	same(t, "first", handle(t, h, first), repeat(inbox.Applied, 10))
	begin(0, false)
	same(t, "read again", handle(t, h, first), repeat(inbox.Duplicate, 10))
	begin(5, true)
	same(t, "before the cut", handle(t, h, first[3:5]), repeat(inbox.Duplicate, 2))
	same(t, "behind the cut", handle(t, h, records(5, 8)), repeat(inbox.Applied, 3))
}
