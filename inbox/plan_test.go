package inbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
)

// onDay returns an id of the given day.
func onDay(d days.Number) uuid.UUID { return event.IDAt(days.Begin(d).Add(time.Hour)) }

// TestWalkRoutes checks the table of an id's row, and which ids are undecidable (P9.1).
func TestWalkRoutes(t *testing.T) {
	t.Parallel()
	const window, ahead = 10, 2
	normal := days.State{Today: 100, Dropped: 85, Until: -1, Floor: 50}
	started := days.State{Today: 100, Dropped: 95, Until: -1, Floor: 98}
	dropped := days.State{Today: 120, Dropped: 105, Until: -1, Floor: 98}
	jumped := days.State{Today: 130, Dropped: 85, Until: 102, Floor: 50}
	atZero := days.State{Today: 100, Until: 0}
	for name, c := range map[string]struct {
		state days.State
		day   days.Number
		want  route
	}{
		"today":                       {normal, 100, inDay},
		"oldest of the window":        {normal, 90, inDay},
		"older than the window":       {normal, 89, tooOld},
		"dropped":                     {days.State{Today: 100, Dropped: 96, Until: -1, Floor: 50}, 95, tooOld},
		"first not dropped":           {days.State{Today: 100, Dropped: 96, Until: -1, Floor: 50}, 96, inDay},
		"last made":                   {normal, 102, inDay},
		"further ahead":               {normal, 103, tooFuture},
		"before the first start":      {started, 97, inAny},
		"long before":                 {started, 20, inAny},
		"of the first start":          {started, 98, inDay},
		"dropped up to the start":     {days.State{Today: 100, Dropped: 98, Until: -1, Floor: 98}, 97, inAny},
		"before, and dropped since":   {dropped, 97, tooOld},
		"dropped since":               {dropped, 104, tooOld},
		"the clock has jumped":        {jumped, 92, inDay},
		"the clock has jumped, older": {jumped, 91, tooOld},
		"the clock has jumped, ahead": {jumped, 132, inDay},
		"the clock is behind":         {days.State{Today: 100, Dropped: 85, Until: 110, Floor: 50}, 90, inDay},
		"day zero":                    {atZero, 0, inDay},
		"no day made, no jump":        {days.State{Today: 100, Until: -1}, 89, tooOld},
	} {
		if got := (state{c.state}).route(onDay(c.day), window, ahead); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := (state{normal}).route(uuid.New(), window, ahead); got != inAny {
		t.Errorf("an id without a day: %d", got)
	}
	said := map[string]bool{}
	for p := inDay; p <= otherEvents; p++ {
		if want := !slices.Contains([]route{inDay, inAny, numbered}, p); p.undecidable() != want {
			t.Errorf("route %d is undecidable: %v", p, !want)
		}
		if p.undecidable() {
			said[whyUndecidable(p, &event.Event{ID: onDay(3)}, state{normal}, window).Error()] = true
		}
	}
	if len(said) != 6 {
		t.Errorf("%d reasons, want 6: %v", len(said), said)
	}
}

// TestWalkPlansIDs checks the order and the table of the inserted ids, and which events are new.
func TestWalkPlansIDs(t *testing.T) {
	t.Parallel()
	s := &state{days.State{Today: 100, Dropped: 85, Until: -1, Floor: 50}}
	old, today, foreign, later := onDay(60), onDay(100), uuid.UUID{0xff}, onDay(101)
	var events []event.Event
	for _, id := range []uuid.UUID{foreign, today, later, old, today} {
		events = append(events, event.Event{ID: id, Payload: id[:]})
	}
	p, f := s.plan(events, 10, 2, false)
	if f != nil {
		t.Fatal(f.err)
	}
	var order []int32
	for _, id := range p.ids {
		order = append(order, id.index)
	}
	if !slices.Equal(order, []int32{3, 1, 4, 2, 0}) || p.undecidable != 1 || p.wrote() {
		t.Errorf("order %v, %d undecidable", order, p.undecidable)
	}
	if !slices.Equal(idsOf(p, inDay), []uuid.UUID{today, later}) ||
		!slices.Equal(idsOf(p, inAny), []uuid.UUID{foreign}) || len(idsOf(p, tooFuture)) > 0 {
		t.Errorf("day ids %v, other ids %v", idsOf(p, inDay), idsOf(p, inAny))
	}
	if _, got := p.of(inDay); !slices.Equal(got, []int64{sql.Content(&events[1]), sql.Content(&events[2])}) {
		t.Errorf("contents %v, want one beside each id", got)
	}
	if p.new(uuid.New()) || !p.new(today) || !p.new(foreign) || !p.wrote() {
		t.Error("an id that was not sent is new, or one that was sent is not")
	}
	if got := p.newIDs(); !slices.Equal(got, []uuid.UUID{today, foreign}) {
		t.Errorf("new ids: %s", got)
	}
	out := make([]Outcome, len(events))
	a := &aside{outcomes: map[int]Outcome{3: Quarantined}}
	fresh := p.fresh(events, map[uuid.UUID]bool{foreign: true}, a, out)
	if !slices.Equal(fresh, []int{1}) ||
		!slices.Equal(out, []Outcome{Skipped, Applied, Duplicate, Quarantined, Duplicate}) {
		t.Errorf("fresh events %v, outcomes %v", fresh, out)
	}
	p.new(later)
	if fresh := p.fresh(events, nil, a, out); !slices.Equal(fresh, []int{0, 1, 2}) {
		t.Errorf("fresh events %v, want the order of the log", fresh)
	}
	moved := *s
	moved.Dropped = 101
	if !p.holds(s, 10, 2) || p.holds(&moved, 10, 2) {
		t.Error("a plan must hold exactly while every id belongs to its table")
	}
	for index, halt := range map[int]bool{2: false, 3: true} {
		events := slices.Clone(events)
		if !halt {
			events[index].ID = uuid.Nil
		}
		if _, f := s.plan(events, 10, 2, halt); f == nil || f.kind != undecidable || f.index != index || f.err == nil {
			t.Errorf("event %d: %+v", index, f)
		}
	}
}

func idsOf(p *planned, where route) []uuid.UUID {
	ids, _ := p.of(where)
	return ids
}

// TestWalkPlansTwins: of the occurrences of an id, the first in the log is the new one.
func TestWalkPlansTwins(t *testing.T) {
	t.Parallel()
	s := &state{days.State{Today: 100, Dropped: 85, Until: -1, Floor: 50}}
	ids := []uuid.UUID{onDay(99), onDay(97), onDay(98)}
	var events []event.Event
	for i := range 60 {
		events = append(events, event.Event{ID: ids[i%3]})
	}
	p, _ := s.plan(events, 10, 2, false)
	if got := idsOf(p, inDay); !slices.Equal(got, []uuid.UUID{ids[1], ids[2], ids[0]}) {
		t.Errorf("inserted ids: %v", got)
	}
	if !p.new(ids[2]) || !p.wrote() {
		t.Error("an inserted id is not new")
	}
	for i := range 20 {
		if got := p.ids[20+i]; int(got.index) != 3*i+2 || got.isNew != (i == 0) {
			t.Errorf("twin %d is event %d, new: %v", i, got.index, got.isNew)
		}
	}
}

// TestWalkPlansOtherEvents: an event with the id of another event before it ends the transaction.
func TestWalkPlansOtherEvents(t *testing.T) {
	t.Parallel()
	s := &state{days.State{Today: 100, Dropped: 85, Until: -1, Floor: 50}}
	ids := map[rune]uuid.UUID{'a': onDay(99), 'b': onDay(97)}
	for texts, want := range map[string]int{ // each event's id and payload
		"a1 a1 b1 b1":       0,
		"a1 a2":             1,
		"a1 b1 b1 a1 b2 a2": 4,
		"b1 a1 a1 b1 a2 b2": 4,
	} {
		var events []event.Event
		for _, text := range strings.Fields(texts) {
			events = append(events, event.Event{ID: ids[rune(text[0])], Payload: []byte(text[1:])})
		}
		_, f := s.plan(events, 10, 2, false)
		if want == 0 && f != nil || want > 0 && (f == nil || f.kind != bounded || f.index != want) {
			t.Errorf("%s: %+v, want the end at %d", texts, f, want)
		}
	}
}

var (
	outbox  = uuid.MustParse("5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c")
	another = uuid.MustParse("77777777-0c6d-4f57-8d3a-0f1f6f1a2b3c")
)

// watermarkAt returns an incarnation's watermark: lane 5 is decided up to 10, at the time 1 s.
func watermarkAt(id uuid.UUID, incarnation int32) watermark {
	return watermark{numbering: numbering{id, incarnation}, version: 3, lanes: map[int16]int64{5: 10}, latest: 1000}
}

// numberOf parses an event from "incarnation lane number" and the flags after it.
func numberOf(text string) event.Event {
	var incarnation, lane int
	e := event.Event{ID: event.NewID(), Topic: "orders", Time: time.UnixMilli(2000)}
	e.Position.Partition = 3
	fmt.Sscan(text, &incarnation, &lane, &e.Position.Seq)
	e.Position.Lane, e.Position.Epoch = int16(lane), numbering{outbox, int32(incarnation)}.String()
	e.Position.MaybePublished, e.Position.Replayed = strings.Contains(text, "maybe"), strings.Contains(text, "replayed")
	switch {
	case strings.Contains(text, "another"):
		e.Position.Epoch = numbering{another, int32(incarnation)}.String()
	case strings.Contains(text, "nameless"):
		e.Position.Epoch = ""
	case strings.Contains(text, "broken"):
		e.Position.Epoch = "broken"
	}
	return e
}

var verdicts = [...]string{
	"new", "repeat", "maybe", "replayed", "old", "unknown", "foreign", "later", "relay", "backward",
}

// TestWalkJudges checks the verdicts of a transaction's events by their numbers, in the order of the log.
func TestWalkJudges(t *testing.T) {
	t.Parallel()
	first, second, third := watermarkAt(outbox, 1), watermarkAt(outbox, 2), watermarkAt(outbox, 3)
	fresh, freshSecond := first, second
	fresh.version, freshSecond.version = 1, 1
	accepted := func(n int32) map[uuid.UUID]int32 { return map[uuid.UUID]int32{outbox: n} }
	for name, c := range map[string]struct {
		watermarks watermarks
		events     string // separated by ";"
		want       string
	}{
		"at, below and above": {watermarks{of: []watermark{first}}, "1 5 10;1 5 9;1 5 11", "repeat repeat new"},
		"a repeat among new ones": {
			watermarks{of: []watermark{first}}, "1 5 12;1 5 11;1 5 12;1 5 13", "new repeat repeat new",
		},
		"lanes have their own": {
			watermarks{of: []watermark{first}}, "1 6 1;1 5 10;1 6 1;1 5 11", "new repeat repeat new",
		},
		"two outboxes": {
			watermarks{of: []watermark{first}}, "1 5 11;9 5 1 another;1 5 11;9 5 1 another", "new new repeat repeat",
		},
		"the first of all":         {watermarks{}, "2 5 1;2 5 1", "new repeat"},
		"without a number":         {watermarks{of: []watermark{first}}, "1 5 0;1 5 11", "unknown new"},
		"without any":              {watermarks{}, "1 5 0;1 5 1", "foreign new"},
		"behind one with a number": {watermarks{}, "1 5 1;1 5 0", "new unknown"},
		"an epoch that is none": {
			watermarks{of: []watermark{first}}, "1 5 11;1 5 12 broken;1 5 12", "new unknown new",
		},
		"perhaps published": {watermarks{of: []watermark{first}}, "1 5 11 maybe;1 5 11 maybe", "maybe repeat"},
		"replayed": {
			watermarks{of: []watermark{first}}, "1 5 11 replayed;1 5 10 replayed", "replayed repeat",
		},
		"later twice":           {watermarks{of: []watermark{first}}, "2 5 1;2 5 1", "later later"},
		"behind a later one":    {watermarks{of: []watermark{first}}, "2 5 1;1 5 11 nameless", "later unknown"},
		"later, of a fresh row": {watermarks{of: []watermark{fresh}}, "2 5 1", "later"},
		"left, of a fresh row":  {watermarks{of: []watermark{first, freshSecond}}, "1 5 11", "old"},
		"another one is later":  {watermarks{of: []watermark{first, watermarkAt(another, 9)}}, "1 5 11", "new"},
		"a new incarnation":     {watermarks{of: []watermark{first}}, "2 5 1;1 5 11;2 5 1", "later new later"},
		"accepted": {
			watermarks{of: []watermark{first}, accepted: accepted(2)}, "2 5 1;2 5 2;2 5 1", "new new repeat",
		},
		"an earlier one accepted": {watermarks{of: []watermark{first}, accepted: accepted(1)}, "2 5 1", "later"},
		"of another outbox":       {watermarks{of: []watermark{first}}, "2 5 1 another", "new"},
		"met elsewhere":           {watermarks{first: accepted(1)}, "2 5 1", "later"},
		"met elsewhere, the same": {watermarks{first: accepted(2)}, "2 5 1", "new"},
		"left, and decided": {
			watermarks{of: []watermark{first, second}}, "1 5 10;1 5 11;2 5 11", "repeat old new",
		},
		"left, and perhaps":      {watermarks{of: []watermark{first, second}}, "1 5 11 maybe", "old"},
		"between two":            {watermarks{of: []watermark{first, third}}, "2 5 1", "old"},
		"between two, elsewhere": {watermarks{of: []watermark{third}, first: accepted(1)}, "2 5 1", "old"},
	} {
		j := newJudge(&c.watermarks, false)
		var got []string
		for text := range strings.SplitSeq(c.events, ";") {
			e := numberOf(text)
			got = append(got, verdicts[j.judge(&e)])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
	if first.lanes[5] != 10 || len(first.lanes) != 1 || first.version != 3 {
		t.Errorf("a watermark was changed to %+v", first)
	}
}

// TestWalkJudgesOffsets checks the verdicts by offset, for a topic with one writer that may be created again.
func TestWalkJudgesOffsets(t *testing.T) {
	t.Parallel()
	m := watermarks{of: []watermark{{version: 3, lanes: map[int16]int64{0: 8}, latest: 1000}}}
	for name, c := range map[string]struct {
		of      watermarks
		offset  int64
		written int64 // Unix milliseconds
		relay   bool
		want    verdict
	}{
		"the next":                  {m, 8, 1000, false, verdictNew},
		"the next, of before":       {m, 8, 500, false, verdictNew},
		"a repeat":                  {m, 7, 1000, false, verdictRepeat},
		"decided, and written late": {m, 7, 1001, false, verdictBackward},
		"the first of all":          {watermarks{}, 0, 1, false, verdictNew},
		"of a relay":                {m, 8, 1000, true, verdictRelay},
	} {
		for _, timestamp := range []bool{true, false} {
			j := newJudge(&c.of, true)
			e := event.Event{Time: time.UnixMilli(c.written)}
			if timestamp {
				e.Time, e.Position.Timestamp = time.UnixMilli(9999), time.UnixMilli(c.written)
			}
			if e.Position.Offset = c.offset; c.relay {
				e.Position.Epoch = "x.1"
			}
			if got := j.judge(&e); got != c.want {
				t.Errorf("%s: %s, want %s", name, verdicts[got], verdicts[c.want])
			}
			if again := j.judge(&e); c.want == verdictNew && again != verdictRepeat {
				t.Errorf("%s: again %s", name, verdicts[again])
			}
			e.Position.Offset++
			if next := j.judge(&e); c.want == verdictNew && next != verdictNew {
				t.Errorf("%s: the next one is %s", name, verdicts[next])
			}
		}
	}
}

// TestWalkPlansNumbers checks which watermarks a transaction moves, how far, and which events it sets aside.
func TestWalkPlansNumbers(t *testing.T) {
	t.Parallel()
	before := &watermarks{of: []watermark{watermarkAt(outbox, 1), watermarkAt(another, 1)}}
	var events []event.Event
	for _, text := range []string{"1 5 11", "1 5 12", "1 5 9", "1 5 13 replayed", "1 5 14", "1 5 0", "1 6 4"} {
		events = append(events, numberOf(text))
	}
	events[5].Time = time.Time{}
	p, f := before.plan(events, false, false, false)
	if f != nil {
		t.Fatal(f.err)
	}
	var isNew, routes []int
	for i, id := range p.ids {
		if id.id != events[i].ID || int(id.index) != i {
			t.Errorf("event %d is planned as %+v", i, id)
		}
		if routes = append(routes, int(id.route)); id.isNew {
			isNew = append(isNew, i)
		}
	}
	n := int(numbered)
	if !slices.Equal(isNew, []int{0, 1, 4, 6}) || p.inserted != 4 || p.undecidable != 2 ||
		!slices.Equal(routes, []int{n, n, n, int(replayed), n, int(unnumbered), n}) || !p.wrote() ||
		p.name != (partitionName{"orders", 3}) {
		t.Errorf("new events %v, routes %v, plan %+v", isNew, routes, p)
	}
	if got := p.watermarks.of[0]; !slices.Equal(p.replaced, []int{0}) || got.lanes[5] != 14 || got.lanes[6] != 4 ||
		got.version != 4 || got.latest != 2000 {
		t.Errorf("replaced watermarks %v, watermark %+v", p.replaced, got)
	}
	if again, _ := before.plan(events[2:3], false, false, false); again.watermarks.of[0].lanes[5] != 10 ||
		!again.wrote() ||
		again.inserted != 0 {
		t.Errorf("a repeat advanced its watermark to %+v", again.watermarks.of[0])
	}
	j := newJudge(before, false)
	for _, text := range []string{"1 5 11 another", "2 5 1", "1 5 12 another"} {
		e := numberOf(text)
		j.judge(&e)
	}
	if got := j.of[1]; got.outbox != another || got.version != 4 || got.lanes[5] != 12 {
		t.Errorf("with an unaccepted incarnation in the batch, the other outbox's watermark is %+v", got)
	}
	left := &watermarks{of: []watermark{watermarkAt(outbox, 1), watermarkAt(outbox, 2)}}
	twins := []event.Event{numberOf("1 5 11"), numberOf("2 5 11"), numberOf("2 5 0")}
	twins[2].ID = twins[1].ID
	if p, _ := left.plan(twins, false, false, false); p.ids[0].route != oldNumbering || p.ids[2].route != unnumbered ||
		p.undecidable != 2 || p.inserted != 1 {
		t.Errorf("plan %+v", p)
	}
	early := numberOf("1 5 15")
	early.Time = time.UnixMilli(1)
	if p, _ := before.plan([]event.Event{early}, false, false, false); p.watermarks.of[0].latest != 1000 {
		t.Errorf("latest time %d", p.watermarks.of[0].latest)
	}
	nameless := numberOf("1 5 12")
	nameless.ID = uuid.Nil
	for name, c := range map[string]struct {
		second event.Event
		halt   bool
		want   failureKind
	}{
		"no id":           {nameless, false, undecidable},
		"not accepted":    {numberOf("2 5 1"), false, undecidable},
		"old, halting":    {numberOf("1 7 0"), true, undecidable},
		"perhaps applied": {numberOf("1 5 12 maybe"), false, unsure},
	} {
		_, f := before.plan([]event.Event{numberOf("1 5 11"), c.second}, false, c.halt, false)
		if f == nil || f.kind != c.want || f.index != 1 || f.err == nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
	twice := numberOf("1 5 12")
	twice.ID = events[0].ID
	if _, f := before.plan([]event.Event{events[0], twice}, false, false, false); f == nil || f.kind != bounded ||
		f.index != 1 {
		t.Errorf("the id of the event before: %+v", f)
	}
	p, f = before.plan([]event.Event{numberOf("1 5 12 maybe")}, false, false, true)
	if f != nil || !p.ids[0].isNew || p.inserted != 1 {
		t.Errorf("given up: %+v, %+v", p, f)
	}
}
