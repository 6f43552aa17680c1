package inbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestP9_2_ProgressIsWrittenAtRevocation: Revoked writes the progress, so that the next owner does not read decided
// events again whose days may be dropped by then. It does so even if its ctx has ended.
func TestP9_2_ProgressIsWrittenAtRevocation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, e := w.inbox(inbox.Config{}).Each(write), some(30)
	assigned(h)
	handle(t, h, e[:10])
	inbox.KeepProgressFresh(h)
	handle(t, h, e[10:20])
	if w.progress() != [3]int64{10, 10, 0} {
		t.Fatalf("progress %v: the second batch must not move it", w.progress())
	}
	h.Revoked(t.Context(), "payments", 3)
	if w.progress()[0] != 20 {
		t.Errorf("revoked at 20, the progress is %d", w.progress()[0])
	}
	handle(t, h, e[20:])
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	h.Revoked(ended, "payments", 3)
	if w.progress()[0] != 30 {
		t.Errorf("the process ends at 30, the progress is %d", w.progress()[0])
	}
}

// TestTheLastEffectIsKept: effect_at is when an effect was last committed. Duplicates do not change it.
func TestTheLastEffectIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	last := func() time.Time {
		t.Helper()
		return pgtest.One[time.Time](t, w.DB, `select coalesce(effect_at, '2000-01-01') from inbox_progress`)
	}
	h, e := w.inbox(inbox.Config{}).Each(write), some(20)
	assigned(h)
	handle(t, h, e[:10])
	first := last()
	inbox.KeepProgressFresh(h)
	handle(t, h, e[10:])
	if w.progress()[0] != 10 || !last().Equal(first) {
		t.Fatal("the second batch advanced the progress")
	}
	h.Revoked(t.Context(), "payments", 3)
	second := last()
	if first.Year() == 2000 || !second.After(first) {
		t.Errorf("the last effect: %v after the first batch, %v after the second", first, second)
	}
	again := w.inbox(inbox.Config{}).Each(write)
	assigned(again)
	handle(t, again, e)
	again.Revoked(t.Context(), "payments", 3)
	if !last().Equal(second) {
		t.Errorf("duplicates moved effect_at from %v to %v", second, last())
	}
}

func TestTheAccountFollowsWhenIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.inbox(inbox.Config{})
	h, e := in.Each(write), some(20)
	assigned(h)
	handle(t, h, e[:10])
	handle(t, h, e[10:])
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- in.Run(ctx) }()
	pgtest.AwaitSQL(t, w.DB, "select from_offset = 20 from inbox_progress")
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// TestP9_2_AbsentMovesTheProgress: offsets without a record behind the decided events advance the progress, also of a
// process that has decided none.
func TestP9_2_AbsentMovesTheProgress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := some(10)
	for i, want := range []int64{12, 13} {
		h := w.inbox(inbox.Config{}).Each(write)
		assigned(h)
		at, err := h.Progress(t.Context(), "payments", 3)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := h.Begin(t.Context(), "payments", 3, 0, inbox.Beginning{Reason: "a test"}); err != nil {
				t.Fatal(err)
			}
			handle(t, h, e)
			at.Next = 10
		}
		h.Absent("payments", 3, at.Next, want)
		h.Revoked(t.Context(), "payments", 3)
		n := pgtest.One[[]int64](t, w.DB, "select array[from_offset, accounted] from inbox_progress")
		if n[0] != want || n[1] != want {
			t.Errorf("progress and account are %d, want %d", n, want)
		}
	}
}

// TestSkipWaitsForTheWorkers: a worker that runs does not look at what an operator skips, so it is refused. What was
// skipped before is no sign of a worker.
func TestSkipWaitsForTheWorkers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.inbox(inbox.Config{}).Each(write)
	assigned(h)
	handle(t, h, some(5))
	w.Exec(t, "insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset) values ('ledger', "+
		"'payments', 4, 7, 7)")
	o := newOperator(t, w, "ledger")
	for _, stopped := range []string{
		"update inbox_progress set updated_at = now() - interval '2 minutes'",
		"update inbox_consumer set programs = '{}'",
	} {
		if _, err := o.SkipTo(t.Context(), "payments", 3, 8, "it is no event"); err == nil ||
			!strings.Contains(err.Error(), "stop its workers first") {
			t.Errorf("beside a worker: %v", err)
		}
		w.Exec(t, stopped)
	}
	for partition := range int32(2) {
		if _, err := o.SkipTo(t.Context(), "payments", 3+partition, 8, "it is no event"); err != nil {
			t.Error(err)
		}
	}
}

// TestSkipHolds: the effects of what an operator has skipped never run, wherever the group is set to, by whatever the
// consumer deduplicates. What is at these offsets once the topic was made again, or the log was cut, is another event.
func TestSkipHolds(t *testing.T) {
	t.Parallel()
	D, A := inbox.Duplicate, inbox.Applied
	log := uuid.New()
	for name, c := range map[string]struct {
		dedup inbox.Dedup
		again *inbox.Beginning // of the process after the skip; nil: it begins nothing
		next  int64
		lost  bool // the database lost the skip
		want  []inbox.Outcome
	}{
		"by id":        {want: []inbox.Outcome{D, D, D, D, A, A}},
		"by watermark": {dedup: inbox.ByWatermark, want: []inbox.Outcome{D, D, D, D, A, A}},
		"by offset":    {dedup: inbox.ByOffset, want: []inbox.Outcome{D, D, D, D, A, A}},
		"decided": {
			again: &inbox.Beginning{Log: log, Decided: 4}, next: -1, want: []inbox.Outcome{D, D, D, D, A, A},
		},
		"made again": {again: &inbox.Beginning{Log: uuid.New()}, want: []inbox.Outcome{D, D, A, A, A, A}},
		"cut":        {again: &inbox.Beginning{Log: log, Cut: true}, next: 2, want: []inbox.Outcome{D, D, A, A, A, A}},
		"restored":   {lost: true, want: []inbox.Outcome{D, D, A, A, A, A}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			e := numbered(1, 6)
			if c.dedup == inbox.ByOffset {
				e = some(6) // not a relay's
			}
			for i := range e {
				e[i].Position.Offset = int64(i)
			}
			begin := func(next int64, b inbox.Beginning) inbox.Handler {
				h := w.inbox(inbox.Config{Dedup: c.dedup}).Each(write)
				assigned(h)
				if _, err := h.Progress(t.Context(), "payments", 3); err != nil {
					t.Fatal(err)
				}
				if err := h.Begin(t.Context(), "payments", 3, next, b); err != nil {
					t.Fatal(err)
				}
				return h
			}
			h := begin(0, inbox.Beginning{Log: log})
			same(t, "at first", handle(t, h, e[:2]), repeat(A, 2))
			h.Revoked(t.Context(), "payments", 3)
			w.Exec(t, "update inbox_progress set updated_at = now() - interval '2 minutes'")
			w.Exec(t, "update inbox_consumer set programs = '{}'")
			if _, err := w.operator().SkipTo(t.Context(), "payments", 3, 4, "they are bad"); err != nil {
				t.Fatal(err)
			}
			if c.lost {
				w.Exec(t, "delete from inbox_audit")
			}
			if c.again != nil {
				h = begin(c.next, *c.again)
			} else {
				h = w.inbox(inbox.Config{Dedup: c.dedup}).Each(write)
				assigned(h)
			}
			same(t, "behind the skip", handle(t, h, e), c.want)
			h.Revoked(t.Context(), "payments", 3)
			if c.want[2] == D {
				if now := w.progress(); now != [3]int64{6, 6, 0} {
					t.Errorf("the progress is %v", now)
				}
				n := pgtest.One[int64](t, w.DB, "select from_offset - began_offset - accounted from inbox_progress")
				if n != 0 {
					t.Errorf("%d offsets are not accounted for", n)
				}
				// From the first record on, after an effect of another process advanced the progress back.
				w.Exec(t, "update inbox_progress set from_offset = 1, to_offset = 1, accounted = 1")
				h = w.inbox(inbox.Config{Dedup: c.dedup}).Each(write)
				assigned(h)
				same(t, "again", handle(t, h, e), repeat(D, 6))
				if n := len(w.effects()); n != 4 {
					t.Errorf("%d effects", n)
				}
			}
		})
	}
}

// TestSkipMovesProgress: SkipTo advances the progress, only forwards, with a reason and an audit entry.
func TestSkipMovesProgress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unfinished(7, 9, 2)
	w.Exec(t, "update inbox_progress set halted_at = now(), halted_code = 'rejected', halted_reason = 'r'")
	o := newOperator(t, w, "ledger")
	from, err := o.SkipTo(t.Context(), "payments", 3, 8, "it is no event")
	if err != nil || from != 7 || w.progress() != [3]int64{8, 8, 0} {
		t.Errorf("from %d, %v, progress %v", from, err, w.progress())
	}
	if _, err := o.SkipTo(t.Context(), "payments", 3, 8, "again"); err == nil ||
		!strings.Contains(err.Error(), "is at offset 8 of payments-3 already") {
		t.Error(err)
	}
	list, err := o.Consumers(t.Context())
	if err != nil || len(list) > 0 && list[0].Partitions[0].HaltedAt != nil {
		t.Errorf("%+v, %v", list, err)
	}
	audit, err := o.Audit(t.Context(), 10)
	if err != nil || len(audit) != 1 || audit[0].Action != "skip records" || audit[0].Reason != "it is no event" ||
		string(audit[0].Detail) != `{"to": 8, "from": 7, "partition": 3}` {
		t.Errorf("%+v, %v", audit, err)
	}
}
