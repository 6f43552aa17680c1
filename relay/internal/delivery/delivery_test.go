package delivery

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

var (
	errUnknown = errors.New("outcome unknown")
	unsent     = outcome.Retryable(errors.New("not sent"))
	refused    = &outcome.Refusal{Err: errors.New("refused")}
	written    = &outcome.Refusal{Err: errors.New("refused"), MaybePublished: true}
	topical    = &outcome.Refusal{Err: errors.New("refused"), Topic: true}
)

// events makes events of lane 1, one for each word: a topic's letter, a partition and a key; "-" is no key.
func events(words string) (out []event.Event) {
	for _, w := range strings.Fields(words) {
		e := event.Event{Topic: w[:1], Tenant: w[1:2], Key: w[2:]}
		e.Position.Lane = 1
		out = append(out, e)
	}
	return out
}

func delivered(words string) (*Delivery, []Item) {
	events := events(words)
	items := make([]Item, len(events))
	for i := range items {
		items[i].Alone = events[i].Key == "-"
	}
	return New(events, items), items
}

// toPartition routes an event by its tenant, which is a digit here.
func toPartition(e *event.Event) Place {
	if e.Tenant == "?" {
		return Whole(e.Topic)
	}
	return At(e.Topic, int32(e.Tenant[0]-'0'))
}

// fates formats the fate of each item.
func fates(items []Item) string {
	var words []string
	for _, it := range items {
		word := [...]string{"undecided", "acked", "held", "parked"}[it.Fate]
		if it.Fate == Held {
			word += fmt.Sprint(it.Partition)
		}
		if it.Behind {
			word += " behind"
		}
		if it.MaybePublished {
			word += " sent"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// TestP4Judge: the table of P4, for events of one lane.
func TestP4Judge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events   string
		verdicts []error
		closed   []Place
		want     string
		failing  []Place
	}{
		"acked":              {"t0a t0b", []error{nil, nil}, nil, "acked, acked", nil},
		"unknown":            {"t0a t1b", []error{errUnknown, nil}, nil, "undecided sent, acked", []Place{At("t", 0)}},
		"not sent":           {"t0a", []error{unsent}, nil, "undecided", []Place{At("t", 0)}},
		"refused":            {"t0a t1b", []error{refused, nil}, nil, "parked, acked", nil},
		"maybe written":      {"t0a", []error{written}, nil, "parked sent", nil},
		"behind, of its key": {"t0a t0a", []error{refused, unsent}, nil, "parked, parked behind", nil},
		"behind, of another": {"t0a t0b", []error{refused, unsent}, nil, "parked, held0", nil},
		"behind, alone":      {"t0- t0-", []error{refused, unsent}, nil, "parked, held0", nil},
		"elsewhere":          {"t0a t1a", []error{refused, unsent}, nil, "parked, undecided", []Place{At("t", 1)}},
		"topic": {
			"t0a t1b u0c",
			[]error{topical, errUnknown, nil},
			nil, "held-1, held-1 sent, acked",
			nil,
		},
		"closed": {
			"t0a t1b",
			[]error{unsent, nil},
			[]Place{At("t", 0)},
			"held0, acked",
			[]Place{At("t", 0)},
		},
		"topic closed":       {"t0a", []error{unsent}, []Place{Whole("t")}, "held-1", []Place{At("t", 0)}},
		"no partition known": {"t?a", []error{unsent}, nil, "undecided", []Place{Whole("t")}},
		"acked, then closed": {
			"t0a t0b", []error{nil, unsent}, []Place{At("t", 0)}, "acked, held0", []Place{At("t", 0)},
		},
		"refused, then closed": {"t0a", []error{refused}, []Place{At("t", 0)}, "parked", nil},
		"topic, maybe written": {
			"t0a t0b",
			[]error{&outcome.Refusal{Err: errUnknown, Topic: true, MaybePublished: true}, unsent},
			nil,
			"held-1 sent, held-1", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, items := delivered(c.events)
			d.Take(c.verdicts)
			topics := d.RefusedTopics(c.verdicts)
			failing, refusals := d.Judge(c.verdicts, topics, toPartition)
			d.HoldClosed(setOf(c.closed), toPartition)
			if got := fates(items); got != c.want {
				t.Errorf("fates are %s; want %s", got, c.want)
			}
			if !maps.EqualFunc(failing, setOf(c.failing), func(error, bool) bool { return true }) {
				t.Errorf("failing places are %v, want %v", failing, c.failing)
			}
			if want := strings.Contains(c.want, "parked") || len(topics) > 0; refusals != want {
				t.Errorf("there are refusals: %v", refusals)
			}
			left := strings.Count(c.want, "undecided")
			if d.DropDecided(); d.Len() != left || len(d.Events()) != left || d.Lanes()[1] != (left > 0) {
				t.Errorf("%d events remain to be sent, want %d", d.Len(), left)
			}
		})
	}
}

// TestP4HoldBack: events that cannot be sent now are held before any is sent.
func TestP4HoldBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events string
		from   From
		in     int32 // partition of the events' group
		closed []Place
		groups []Place
		want   string
	}{
		"nothing":                    {"t0a", FromOutbox, 0, nil, nil, "undecided"},
		"closed":                     {"t0a t1b", FromOutbox, 0, []Place{At("t", 0)}, nil, "held0, undecided"},
		"topic closed":               {"t0a u0b", FromOutbox, 0, []Place{Whole("t")}, nil, "held-1, undecided"},
		"behind a group":             {"t0a t1b", FromOutbox, 0, nil, []Place{At("t", 0)}, "held0, undecided"},
		"behind the topic's group":   {"t0a u0b", FromOutbox, 0, nil, []Place{Whole("t")}, "held-1, undecided"},
		"no partition known":         {"t?a", FromOutbox, 0, nil, []Place{At("u", 0)}, "undecided"},
		"no partition, behind":       {"t?a", FromOutbox, 0, nil, []Place{At("t", 3)}, "held-1"},
		"from its group":             {"t0a", FromHeld, 0, nil, []Place{At("t", 0)}, "undecided"},
		"from its group, closed":     {"t0a", FromHeld, 0, []Place{Whole("t")}, []Place{At("t", 0)}, "held0"},
		"from the topic's group":     {"t0a", FromHeld, WholeTopic, nil, []Place{At("t", 0), Whole("t")}, "held0"},
		"from a group, no partition": {"t?a", FromHeld, 2, nil, []Place{At("t", 2)}, "undecided"},
		"from the first group":       {"t?a", FromHeld, 0, nil, []Place{At("t", 0)}, "undecided"},
		"from a group, closed":       {"t2a", FromHeld, 2, []Place{Whole("t")}, []Place{At("t", 2)}, "held2"},
		"behind another group":       {"t3a", FromOutbox, 0, nil, []Place{At("t", 3)}, "held3"},
		"another closed":             {"t3a", FromOutbox, 0, []Place{At("t", 3)}, nil, "held3"},
	} {
		d, items := delivered(c.events)
		for i := range items {
			items[i].From, items[i].Partition = c.from, c.in
		}
		d.HoldBack(setOf(c.closed), map[int16]Groups{1: Groups{}.With(c.groups)}, toPartition)
		if got := fates(items); got != c.want {
			t.Errorf("%s: fates are %s; want %s", name, got, c.want)
		}
		if left := strings.Count(c.want, "undecided"); d.Len() != left || len(d.Events()) != left {
			t.Errorf("%s: %d events remain to be sent", name, d.Len())
		}
	}
	d, items := delivered("t0a t1b")
	if d.HoldBack(setOf([]Place{At("t", 0)}), nil, toPartition); fates(items) != "held0, undecided" {
		t.Errorf("with no held events in any lane the fates are %s", fates(items))
	}
}

// TestAttempt: an attempt sends the events without a fate, and returns how many were acked, where, and the errors of
// the others.
func TestAttempt(t *testing.T) {
	t.Parallel()
	_, items := delivered("t0a t1b t2c t3d t4e")
	items[0].Fate = Held
	d := New(events("t0a t1b t2c t3d t4e"), items)
	if d.Len() != 4 || d.Events()[0].Key != "b" {
		t.Errorf("%d events remain to be sent: %v", d.Len(), d.Events())
	}
	other := errors.New("another one")
	n, unknown, first := d.Take([]error{nil, errUnknown, unsent, other})
	if n != 1 || !errors.Is(unknown, errUnknown) || !errors.Is(first, unsent) {
		t.Errorf("%d acked, unknown %v, not sent %v", n, unknown, first)
	}
	if acked := d.Acked(toPartition); !maps.Equal(acked, setOf([]Place{At("t", 1)})) {
		t.Errorf("acked at %v", acked)
	}
	d.DropDecided()
	for range 2 {
		if got := d.Events(); len(got) != 3 || got[0].Key != "c" || got[2].Key != "e" {
			t.Errorf("events that remain to be sent: %v", got)
		}
	}
}

// TestRefusalsAreKept: an operator can read why an event was parked, and for an event behind it, the refusal of that
// one.
func TestRefusalsAreKept(t *testing.T) {
	t.Parallel()
	d, items := delivered("t0a t0a t0b")
	verdicts := []error{refused, unsent, unsent}
	d.Take(verdicts)
	d.Judge(verdicts, nil, toPartition)
	if items[0].Cause == nil || items[1].Cause != items[0].Cause || items[2].Cause != nil {
		t.Errorf("causes %v, %v, %v", items[0].Cause, items[1].Cause, items[2].Cause)
	}
	for which := range 2 { // one of them is already, or will be, parked without its key
		d, items := delivered("t0a t0a")
		items[which].Alone = true
		d.Take(verdicts[:2])
		if d.Judge(verdicts[:2], nil, toPartition); fates(items) != "parked, held0" {
			t.Errorf("event %d alone: fates are %s", which, fates(items))
		}
	}
}

// TestNoteOvertaken: an event that is held for a topic as a whole may follow its successor under another partition
// count.
func TestNoteOvertaken(t *testing.T) {
	t.Parallel()
	list := []struct {
		lane int16
		word string
		item Item
		want bool
	}{
		{1, "t0a", Item{Fate: Held, Partition: WholeTopic}, true},
		{1, "u0a", Item{Fate: Held, Partition: WholeTopic}, false}, // acked in another topic
		{1, "t0a", Item{Fate: Held, Partition: 0}, false},          // its partition is known
		{1, "t0a", Item{Fate: Parked, Partition: WholeTopic}, false},
		{2, "t0a", Item{Fate: Held, Partition: WholeTopic}, false}, // no other event of its lane
		{3, "t0a", Item{Fate: Held, Partition: WholeTopic}, false}, // acked in another lane
		{3, "u0a", Item{Fate: Held, Partition: WholeTopic, MaybePublished: true}, true},
		{2, "t0a", Item{Fate: Acked}, false},
		{1, "w0a", Item{Fate: Acked}, false},
		{1, "t0b", Item{Fate: Held, Partition: WholeTopic}, true},
		{1, "t0a", Item{Fate: Acked}, false},
		{1, "t0a", Item{Fate: Held, Partition: WholeTopic}, false}, // acked before it
		{4, "t0a", Item{Fate: Held, Partition: WholeTopic}, true},
		{4, "t0a", Item{Fate: Acked}, false},
	}
	var all []event.Event
	var items []Item
	for _, l := range list {
		e := events(l.word)[0]
		e.Position.Lane = l.lane
		all, items = append(all, e), append(items, l.item)
	}
	NoteOvertaken(all, items, map[int16]bool{1: true, 3: true, 4: true})
	for i, l := range list {
		if items[i].MaybePublished != l.want {
			t.Errorf("event %d, %q of lane %d: may have been sent: %v", i, l.word, l.lane, items[i].MaybePublished)
		}
	}
}

// TestUnanswered: an attempt without verdicts may have sent all its events.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	d, items := delivered("t0a t1b")
	items[0].Fate = Acked
	d.DropDecided()
	if d.Unanswered(); fates(items) != "acked, undecided sent" {
		t.Errorf("fates are %s", fates(items))
	}
}

func TestCause(t *testing.T) {
	t.Parallel()
	long := errors.New("\xff\x00" + strings.Repeat("é", longestError))
	r := causeOf(fmt.Errorf("wrapped: %w", &outcome.Refusal{Code: "CODE\x00", Err: long}))
	if r.Code != "CODE?" || !strings.HasPrefix(r.Error, "wrapped: ??é") || len(r.Error) > longestError+3 {
		t.Errorf("a refusal is %q, %d bytes: %.20q", r.Code, len(r.Error), r.Error)
	}
	for length, want := range map[int]int{longestError: longestError, longestError + 1: longestError + 3} {
		r := causeOf(&outcome.Refusal{Err: errors.New(strings.Repeat("x", length))})
		if len(r.Error) != want {
			t.Errorf("an error of %d bytes is kept as %d", length, len(r.Error))
		}
		if r.Code != "REFUSED" {
			t.Errorf("a refusal without a code has %q", r.Code)
		}
	}
}

// TestGroups: groups are replaced and not modified, and the group of a topic as a whole is sent last.
func TestGroups(t *testing.T) {
	t.Parallel()
	first := Groups{}.With([]Place{At("t", 0), Whole("t"), At("u", 1)})
	more := first.With([]Place{At("t", 5)})
	less := more.Without([]Place{At("t", 0), At("u", 1)})
	if first.Has(At("t", 5)) || !more.Has(At("t", 0)) || less.Has(At("u", 1)) || len(less["u"]) > 0 ||
		!less.HasPartOf("t") {
		t.Errorf("groups are %v, %v and %v", first, more, less)
	}
	if len(less) != 1 || len(first.With(nil)) != 2 {
		t.Errorf("%v is of one topic, and %v of two", less, first.With(nil))
	}
	whole := Groups{}.With([]Place{Whole("t")})
	if whole.HasPartOf("t") || !whole.With([]Place{At("t", 0)}).HasPartOf("t") {
		t.Error("the group of a topic as a whole equals that of a partition")
	}
	open := func(g Groups, closed ...Place) string {
		places := g.Open(setOf(closed))
		slices.SortFunc(places, func(a, b Place) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		return fmt.Sprint(places)
	}
	for _, c := range [][2]string{
		{open(first), "[{t 0} {u 1}]"},
		{open(first, At("t", 0)), "[{t -1} {u 1}]"},
		{open(first, Whole("t")), "[{u 1}]"},
		{open(first.Without([]Place{At("t", 0)})), "[{t -1} {u 1}]"},
		{open(first, At("t", 0), At("u", 1), At("u", 2)), "[{t -1}]"},
	} {
		if c[0] != c[1] {
			t.Errorf("%s can be sent, want %s", c[0], c[1])
		}
	}
}

// fixed always pauses for a second.
type fixed struct{}

func (fixed) NextBackOff() time.Duration { return time.Second }

// TestP4Health: a place is closed when it has failed for long enough while others answer.
func TestP4Health(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := NewHealth(5*time.Second, now, func() Pauses { return fixed{} })
	bad, good := At("t", 0), At("t", 1)
	fail := func(want int, began time.Time, places ...Place) {
		t.Helper()
		failing := map[Place]error{}
		for _, p := range places {
			failing[p] = errUnknown
		}
		if closed := h.Failed(failing, began, now); len(closed) != want {
			t.Errorf("%v are closed, want %d", closed, want)
		}
	}
	after := func(d time.Duration) { now = now.Add(d) }
	began := now
	after(6 * time.Second)
	fail(0, began, bad) // no event was ever acked
	after(time.Second)
	h.Acked(now, func() map[Place]bool { return map[Place]bool{good: true} })
	if !h.OthersAnswer(began) || h.Closed() != nil && len(h.Closed()) > 0 {
		t.Error("an ack of another place does not count, or closes a place")
	}
	closing := h.Closing()
	fail(1, now, bad)
	select {
	case <-closing:
	default:
		t.Error("waiting attempts are not notified")
	}
	<-h.Changed()
	if !h.Closed()[bad] || h.Age(bad, now.Add(time.Second)) != time.Second || h.Close(bad, now) {
		t.Error("the place is not closed")
	}
	if places, next := h.Due(now); len(places) != 0 || next.Sub(now) != time.Second {
		t.Errorf("%v are tried, next time at %v", places, next)
	}
	after(time.Second)
	if places, next := h.Due(now); len(places) != 1 || next.Sub(now) != time.Second {
		t.Errorf("%v are tried, next time at %v", places, next)
	}
	if paused, _ := h.Pause([]string{"t"}); len(paused) != 1 || !h.Closed()[Whole("t")] {
		t.Error("the topic is not paused")
	}
	if places, _ := h.Due(now.Add(time.Hour)); len(places) != 0 {
		t.Error("a place of a paused topic is tried")
	}
	if _, resumed := h.Pause(nil); len(resumed) != 1 || h.Closed()[Whole("t")] {
		t.Error("the topic is not resumed")
	}
	if took, was := h.Open(bad, now); !was || took != time.Second || len(h.Closed()) > 0 {
		t.Errorf("the place was closed for %v: %v", took, was)
	}
	// Two places fail and no other answers: it may be the cluster.
	began = now
	after(6 * time.Second)
	fail(0, began, bad, good)
	if h.OthersAnswer(began) {
		t.Error("others answer")
	}
}

// TestP4HealthOff: with a negative time only refused places are closed.
func TestP4HealthOff(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := NewHealth(-1, now, func() Pauses { return fixed{} })
	h.Acked(now.Add(time.Hour), nil)
	if closed := h.Failed(map[Place]error{At("t", 0): errUnknown}, now, now.Add(time.Hour)); len(closed) > 0 {
		t.Errorf("%v are closed", closed)
	}
}

func setOf(places []Place) map[Place]bool {
	set := map[Place]bool{}
	for _, p := range places {
		set[p] = true
	}
	return set
}

// TestPassed: it is the first event that is acked behind one of its topic, tenant and key that is not.
func TestPassed(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"a0k a0k a0k": "2 behind 0", "a0k a0k b0k": "none", "a0k a0k a1k": "none", "a0k a0k a0l": "none",
		"a0 a0 a0": "none", "a0l a0k a0k": "2 behind 1", "a0k a0l a0l": "2 behind 1",
	} {
		d, _ := delivered(words)
		acked, before, err := d.Passed([]error{refused, errUnknown, nil})
		got := "none"
		for i := range d.events {
			if before == &d.events[i] && acked == &d.events[2] && err == []error{refused, errUnknown}[i] {
				got = fmt.Sprint("2 behind ", i)
			}
		}
		if got != want || (acked == nil) != (want == "none") {
			t.Errorf("%s: %s, want %s", words, got, want)
		}
	}
	d, _ := delivered("a0k a0l a0k")
	if acked, _, _ := d.Passed([]error{nil, unsent, unsent}); acked != nil {
		t.Error("an event without an ack is behind an acked one")
	}
}
