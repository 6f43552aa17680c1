package inbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/event"
)

// trial is an event's results, one byte per run; the last one repeats. "+" is success, "t" a terminal error, "r" a
// retryable one, "f" one without a class. In capitals the error does not name the event.
type trial string

func (r trial) run(n int) byte { return r[min(n, len(r)-1)] }

// traceWalk walks over events as a batch does. It returns each transaction's range, with "!" if it failed and "c" if it
// was counted, and "X" with the number of runs where an event was given up.
func traceWalk(t *testing.T, events []trial, left span, waitedOut bool) string {
	t.Helper()
	w := startWalk(len(events))
	ran := make([]int, len(events))
	var steps []string
	for w.pos < len(events) {
		if len(steps) > 100 {
			t.Fatalf("the walk does not end: %v", steps)
		}
		if w.givesUp() {
			steps = append(steps, fmt.Sprintf("%dX%d", w.pos, w.runs))
			w.limit = w.pos + 1
			w.done(len(events))
			continue
		}
		offsets := make([]int64, len(events))
		for i := range offsets {
			offsets[i] = int64(10 * i)
		}
		counted := w.reach(left, func(i int) int64 { return offsets[i] })
		step := fmt.Sprintf("%d-%d", w.pos, w.limit)
		if counted {
			step += "c"
		}
		result := byte('+')
		var i int
		for i = w.pos; i < w.limit && result == '+'; i++ {
			result = events[i].run(ran[i])
			ran[i]++
		}
		if result == '+' {
			steps = append(steps, step)
			w.done(len(events))
			continue
		}
		steps = append(steps, step+"!")
		index := i - 1
		if result < 'a' {
			index = w.pos - 1
		}
		c := map[byte]class{'t': classTerminal, 'r': classRetryable, 'f': classNone}[result|0x20]
		w.failed(index, c, 3, waitedOut)
	}
	return strings.Join(steps, " ")
}

// TestWalk checks the transactions of batches with failing events.
func TestWalk(t *testing.T) {
	t.Parallel()
	all := func(n int, except map[int]trial) []trial {
		events := make([]trial, n)
		for i := range events {
			if events[i] = "+"; except[i] != "" {
				events[i] = except[i]
			}
		}
		return events
	}
	for name, c := range map[string]struct {
		n      int
		except map[int]trial
		left   span
		want   string
	}{
		"nothing fails":       {n: 8, want: "0-8"},
		"terminal":            {8, map[int]trial{5: "t"}, span{}, "0-8! 0-5 5X1 6-8"},
		"the first":           {8, map[int]trial{0: "t"}, span{}, "0-8! 0X1 1-8"},
		"the last":            {3, map[int]trial{2: "t"}, span{}, "0-3! 0-2 2X1"},
		"once":                {8, map[int]trial{5: "f+"}, span{}, "0-8! 0-5 5-6 6-8"},
		"always":              {8, map[int]trial{5: "f"}, span{}, "0-8! 0-5 5-6! 5-6! 5X3 6-8"},
		"then terminal":       {8, map[int]trial{5: "ft"}, span{}, "0-8! 0-5 5-6! 5X2 6-8"},
		"retryable":           {4, map[int]trial{2: "rrrrr+"}, span{}, "0-4! 0-2 2-3! 2-3! 2-3! 2-3! 2-3 3-4"},
		"retryable and not":   {4, map[int]trial{2: "rfrf+"}, span{}, "0-4! 0-2 2-3! 2-3! 2-3! 2-3 3-4"},
		"two":                 {8, map[int]trial{2: "t", 5: "f+"}, span{}, "0-8! 0-2 2X1 3-8! 3-5 5-6 6-8"},
		"neighbours":          {4, map[int]trial{1: "t", 2: "t"}, span{}, "0-4! 0-1 1X1 2-4! 2X1 3-4"},
		"not named":           {16, map[int]trial{11: "T"}, span{}, "0-16! 0-8 8-12! 8-10 10-11 11-12! 11X1 12-16"},
		"not named, first":    {4, map[int]trial{0: "F"}, span{}, "0-4! 0-2! 0-1! 0-1! 0-1! 0X3 1-4"},
		"not named, of three": {3, map[int]trial{1: "F+"}, span{}, "0-3! 0-1 1-2 2-3"},
		"not named, two":      {4, map[int]trial{1: "T", 3: "T"}, span{}, "0-4! 0-2! 0-1 1-2! 1X1 2-4! 2-3 3-4! 3X1"},
		"not named, once":     {8, map[int]trial{6: "F+"}, span{}, "0-8! 0-4 4-6 6-7 7-8"},
		"not named any more":  {2, map[int]trial{0: "f+", 1: "T"}, span{}, "0-2! 0-1 1-2! 1X1"},
		// P9.4: one event's failures do not count against another.
		"a doom is not passed on": {4, map[int]trial{0: "+f+", 2: "t"}, span{}, "0-4! 0-2! 0-1 1-4! 1-2 2X1 3-4"},
		"nor are tries": {
			4, map[int]trial{0: "+ff+", 2: "ff+"}, span{}, "0-4! 0-2! 0-1! 0-1 1-4! 1-2 2-3 3-4",
		},
		// P9.5: the events of an earlier process's unfinished range run alone, and counted.
		"a range was left":     {n: 12, left: span{from: 40, to: 80}, want: "0-4 4-5c 5-6c 6-7c 7-8c 8-12"},
		"between offsets":      {n: 6, left: span{from: 15, to: 35}, want: "0-2 2-3c 3-4c 4-6"},
		"from the beginning":   {n: 3, left: span{from: 0, to: 10}, want: "0-1c 1-3"},
		"up to the last":       {n: 3, left: span{from: 20, to: 30}, want: "0-2 2-3c"},
		"behind all":           {n: 3, left: span{from: 30, to: 40}, want: "0-3"},
		"all of an event":      {n: 3, left: span{from: 10, to: 11}, want: "0-1 1-2c 2-3"},
		"a failing one before": {6, map[int]trial{1: "t"}, span{from: 30, to: 40}, "0-3! 0-1 1X1 2-3 3-4c 4-6"},
		"a failing one in it":  {4, map[int]trial{1: "F+"}, span{from: 10, to: 20}, "0-1 1-2c! 1-2c 2-4"},
	} {
		if got := traceWalk(t, all(c.n, c.except), c.left, false); got != c.want {
			t.Errorf("%s: %s\nwant %s", name, got, c.want)
		}
	}
	if got := traceWalk(t, []trial{"+", "rf", "+"}, span{}, true); got != "0-3! 0-1 1-2! 1-2! 1-2! 1X4 2-3" {
		t.Errorf("after MaxRetryFor: %s", got)
	}
	if got := traceWalk(t, []trial{"+", "rr", "+"}, span{}, true); got != "0-3! 0-1 1-2! 1X2 2-3" {
		t.Errorf("retryable, after MaxRetryFor: %s", got)
	}
}

// TestWalkSpreads checks which events may be given to parts.
func TestWalkSpreads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		w    walk
		left span
		want bool
	}{
		"nothing is known":                   {walk{suspect: -1}, span{}, true},
		"the first is known to fail":         {walk{suspect: 0}, span{}, false},
		"parts had others":                   {walk{pos: 2, spreadTo: 2, suspect: -1}, span{}, true},
		"parts had it":                       {walk{pos: 1, spreadTo: 2, suspect: -1}, span{}, false},
		"what failed is decided":             {walk{pos: 2, bad: 2, suspect: -1}, span{}, true},
		"a failing one is among the next":    {walk{pos: 2, bad: 3, suspect: -1}, span{}, false},
		"an earlier process left what ended": {walk{pos: 2, suspect: -1}, span{from: 0, to: 20}, true},
		"an earlier process left it":         {walk{pos: 2, suspect: -1}, span{from: 0, to: 21}, false},
	} {
		if got := c.w.spreads(c.left, func(i int) int64 { return int64(10 * i) }); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestWalkTurns checks what the caller is told to do next. The wait for one event does not count for another.
func TestWalkTurns(t *testing.T) {
	t.Parallel()
	w := startWalk(4)
	for i, c := range []struct {
		index     int
		class     class
		waitedOut bool
		want      turn
	}{
		{2, classRetryable, true, turnAhead},
		{0, classRetryable, true, turnAgain}, // another event
		{0, classRetryable, false, turnAgain},
		{0, classRetryable, true, turnOver},
	} {
		if got := w.failed(c.index, c.class, 3, c.waitedOut); got != c.want {
			t.Errorf("failure %d: turn %d, want %d", i, got, c.want)
		}
	}
	w = startWalk(4)
	if got := w.failed(-1, classTerminal, 3, false); got != turnSplit || w.givesUp() {
		t.Errorf("an unnamed failure: turn %d", got)
	}
}

// TestWalkStops: the events before an undecidable one are decided first.
func TestWalkStops(t *testing.T) {
	t.Parallel()
	w := startWalk(8)
	if !w.upTo(3) || w.limit != 3 || w.givesUp() {
		t.Errorf("before the event: %+v", w)
	}
	w.careful = true
	w.done(8)
	if w.pos != 3 || w.limit != 8 || w.careful {
		t.Errorf("after the events before it: %+v", w)
	}
	if w.upTo(3) || w.limit != 8 {
		t.Errorf("at the event: %+v", w)
	}
	if w.spent(2); w.suspect != 3 || w.runs != 2 || !w.givesUp() {
		t.Errorf("an event whose runs are used up: %+v", w)
	}
	w.limit = 4
	if w.done(8); w.suspect != -1 || w.givesUp() {
		t.Errorf("after it: %+v", w)
	}
	if w.stops(); w.suspect != 4 || w.runs != 0 || w.givesUp() {
		t.Errorf("the event that halts: %+v", w)
	}
}

// TestWalkWithin: a transaction that begins with a proven event has only proven ones; another one is not cut.
func TestWalkWithin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pos  int
		of   proven
		want int
	}{
		"none is proven":   {0, proven{}, 5},
		"the first":        {0, proven{from: 0, to: 1}, 1},
		"the first three":  {0, proven{from: 0, to: 30}, 3},
		"from the second":  {1, proven{from: 0, to: 30}, 3},
		"all":              {0, proven{from: 0, to: 50}, 5},
		"behind the range": {3, proven{from: 0, to: 30}, 5},
		"only the last":    {0, proven{from: 40, to: 50}, 5},
		"between":          {0, proven{from: 10, to: 30}, 5},
	} {
		w, calls := walk{pos: c.pos, limit: 5}, 0
		w.within(c.of, func(i int) int64 {
			if calls++; calls > 100 {
				t.Fatalf("%s: it does not end", name)
			}
			return []int64{0, 10, 20, 30, 40}[i]
		})
		if w.pos != c.pos || w.limit != c.want {
			t.Errorf("%s: the transaction is [%d, %d), want [%d, %d)", name, w.pos, w.limit, c.pos, c.want)
		}
	}
}

// TestWalkSpan checks when a range is written before a batch, and which decided event ends that.
func TestWalkSpan(t *testing.T) {
	t.Parallel()
	left := span{armed: true, from: 10, to: 20}
	for offset, want := range map[int64]bool{9: false, 19: false, 20: true, 21: true} {
		if left.writes(offset) != want {
			t.Errorf("at %d: writes %v", offset, !want)
		}
	}
	if (span{}).writes(5) {
		t.Error("a range is written although it is not armed")
	}
	finished := span{armed: true, from: 10, to: 10}
	if finished.decided(10, true); finished != (span{from: 10, to: 10}) {
		t.Errorf("after a finished range: %+v", finished)
	}
	for name, c := range map[string]struct {
		offset int64
		anyNew bool
		want   span
	}{
		"behind it, new":          {20, true, span{from: 10, to: 20}},
		"behind it, repeats":      {20, false, left},
		"its first":               {10, true, left},
		"its last":                {19, true, left},
		"before it, repeats":      {9, false, left},
		"before it, and yet new":  {9, true, span{armed: true}},
		"of its own, and repeats": {12, false, left},
	} {
		s := left
		if s.decided(c.offset, c.anyNew); s != c.want {
			t.Errorf("%s: %+v, want %+v", name, s, c.want)
		}
	}
}

// TestAccount: what is read again counts once, and an offset counts only if an event was decided or its absence is
// known.
func TestAccount(t *testing.T) {
	t.Parallel()
	events := func(at ...int64) (es []event.Event) { // pairs of an offset, and how many before it are absent
		for i := 0; i < len(at); i += 2 {
			es = append(es, event.Event{Position: event.Position{Offset: at[i], Absent: at[i+1]}})
		}
		return es
	}
	for name, c := range map[string]struct {
		events  []event.Event
		missing int64
		next    int64
	}{
		"in order":               {events(10, 0, 11, 0, 12, 0), 0, 13},
		"control records":        {events(12, 2, 13, 0, 20, 6), 0, 21},
		"left out":               {events(10, 0, 12, 0, 20, 6), 2, 21},
		"read again":             {events(3, 0, 7, 2, 9, 0, 10, 0), 0, 11},
		"read again, then a gap": {events(8, 0, 12, 2, 13, 0), 0, 14},
		"more absent than new":   {events(11, 9, 12, 0), 0, 13},
		"all read again":         {events(5, 0, 6, 0), 0, 10},
	} {
		before := account{kept: true, next: 10, n: 4}
		after := before.decided(c.events)
		if after.missing(before) != c.missing || after.next != c.next {
			t.Errorf("%s: %d missing up to %d, want %d up to %d", name, after.missing(before), after.next, c.missing,
				c.next)
		}
	}
}
