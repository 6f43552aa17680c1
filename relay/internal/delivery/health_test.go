package delivery

import (
	"slices"
	"testing"
	"time"
)

var born = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// health closes places that have failed for five seconds.
func health(pauses func() Pauses) *Health { return NewHealth(5*time.Second, born, pauses) }

func fixedPauses() Pauses { return fixed{} }

// at returns the time of a number of seconds.
func at(seconds int) time.Time { return born.Add(time.Duration(seconds) * time.Second) }

func ackedAt(places ...Place) func() map[Place]bool {
	return func() map[Place]bool { return setOf(places) }
}

// fails records an attempt at places that ended without an ack.
func fails(h *Health, began, now time.Time, places ...Place) int {
	failing := map[Place]error{}
	for _, p := range places {
		failing[p] = errUnknown
	}
	return len(h.Failed(failing, began, now))
}

// TestClosingPlaces: a place is closed depending on how long it has failed, and on whether others answer meanwhile.
func TestClosingPlaces(t *testing.T) {
	t.Parallel()
	bad, worse, good := At("t", 0), At("t", 1), At("t", 2)
	for name, c := range map[string]struct {
		before     func(h *Health)
		acked      int // in seconds, like all times; 0: never
		began, now int
		places     []Place
		want       int
	}{
		"others answer":             {nil, 2, 1, 6, []Place{bad}, 1},
		"not long enough":           {nil, 2, 1, 5, []Place{bad}, 0},
		"two, and others answer":    {nil, 2, 1, 6, []Place{bad, worse}, 2},
		"no other is tried":         {nil, 1, 2, 7, []Place{bad}, 1},
		"never acked":               {nil, 0, 2, 7, []Place{bad}, 0},
		"a second one fails":        {nil, 1, 2, 7, []Place{bad, worse}, 0},
		"acked as it began to fail": {nil, 2, 2, 7, []Place{bad, worse}, 0},
		"a closed one as well":      {func(h *Health) { h.Close(worse, at(1)) }, 1, 2, 7, []Place{bad}, 0},
		"it fails from the start":   {func(h *Health) { fails(h, at(1), at(2), bad) }, 3, 5, 6, []Place{bad}, 1},
		"it was acked meanwhile": {func(h *Health) {
			fails(h, at(1), at(2), bad)
			h.Acked(at(3), ackedAt(bad))
		}, 5, 4, 6, []Place{bad}, 0},
		"acked at the very beginning": {func(h *Health) { h.Acked(born.Add(1), nil) }, 0, 2, 7, []Place{bad}, 1},
	} {
		h := health(fixedPauses)
		if c.before != nil {
			c.before(h)
		}
		if c.acked > 0 {
			h.Acked(at(c.acked), ackedAt(good))
		}
		if got := fails(h, at(c.began), at(c.now), c.places...); got != c.want {
			t.Errorf("%s: %d are closed, want %d", name, got, c.want)
		}
	}
	h := NewHealth(0, born, fixedPauses)
	if h.Acked(at(1), nil); fails(h, at(0), at(0), bad) != 1 {
		t.Error("with a limit of zero the place is not closed at once")
	}
}

// TestOthersAnswer: the same rule for a caller outside of an attempt.
func TestOthersAnswer(t *testing.T) {
	t.Parallel()
	h := health(fixedPauses)
	h.Acked(at(3), nil)
	fails(h, at(1), at(1), At("t", 0), At("t", 1))
	if !h.OthersAnswer(at(2)) || h.OthersAnswer(at(3)) || h.OthersAnswer(at(4)) {
		t.Error("OthersAnswer is wrong about acks since the given time")
	}
}

func TestLastAcked(t *testing.T) {
	t.Parallel()
	h := health(fixedPauses)
	if _, ever := h.LastAcked(at(9)); ever {
		t.Error("an ack is reported before there was any")
	}
	for _, when := range []time.Time{born.Add(1), at(3)} {
		h.Acked(when, nil)
		if ago, ever := h.LastAcked(at(9)); ago != at(9).Sub(when) || !ever {
			t.Errorf("acked at %v: %v ago, %v", when, ago, ever)
		}
	}
}

// TestTroubleEnds: once no place fails or is closed, Acked does not evaluate the places, and claims see no closed
// place.
func TestTroubleEnds(t *testing.T) {
	t.Parallel()
	bad := At("t", 0)
	for name, end := range map[string]func(h *Health){
		"none began":      func(*Health) {},
		"acked":           func(h *Health) { fails(h, at(1), at(1), bad); h.Acked(at(2), ackedAt(bad)) },
		"opened":          func(h *Health) { h.Close(bad, at(1)); h.Open(bad, at(2)) },
		"paused, resumed": func(h *Health) { h.Pause([]string{"t"}); h.Pause(nil) },
	} {
		h := health(fixedPauses)
		end(h)
		h.Acked(at(3), func() map[Place]bool { t.Errorf("%s: the acked places were evaluated", name); return nil })
		if h.Closed() != nil {
			t.Errorf("%s: a claim has to check closed places: %v", name, h.Closed())
		}
		if !h.Well() {
			t.Errorf("%s: a place is still failing or closed", name)
		}
		fails(h, at(4), at(4), bad)
		if h.Well() {
			t.Errorf("%s: a failing place is not reported", name)
		}
	}
}

// TestClosedPlaces: claims see each place from its closing to its opening, together with paused topics.
func TestClosedPlaces(t *testing.T) {
	t.Parallel()
	h := health(fixedPauses)
	first, second := At("t", 0), At("u", 0)
	sees := func(what string, want ...Place) {
		t.Helper()
		for range 2 {
			closed := h.Closed()
			if len(closed) != len(want) || slices.ContainsFunc(want, func(p Place) bool { return !closed[p] }) {
				t.Errorf("%s: %v are closed, want %v", what, closed, want)
			}
		}
	}
	told := func(what string, want bool) {
		t.Helper()
		select {
		case <-h.Changed():
			if !want {
				t.Error(what, "is told")
			}
		default:
			if want {
				t.Error(what, "is not told")
			}
		}
	}
	if alone := health(fixedPauses); !alone.Close(first, at(1)) || !alone.Closed()[first] {
		t.Error("a place is closed, and claims do not see it")
	}
	h.Pause([]string{"w"})
	sees("a paused topic", Whole("w"))
	told("a pause", false)
	h.Close(first, at(1))
	told("a closing", true)
	h.Close(second, at(2))
	sees("two", first, second, Whole("w"))
	told("another closing", true)
	if h.Age(first, at(3)) != 2*time.Second || h.Age(At("t", 9), at(3)) != 0 {
		t.Error("the ages are wrong")
	}
	if _, was := h.Open(first, at(3)); !was {
		t.Error("it was not closed")
	}
	if took, was := h.Open(first, at(4)); took != 0 || was {
		t.Errorf("opened again, it was closed for %v: %v", took, was)
	}
	sees("one", second, Whole("w"))
	if paused, resumed := h.Pause([]string{"x", "w"}); !slices.Equal(paused, []string{"x"}) || len(resumed) > 0 {
		t.Errorf("paused %v, resumed %v", paused, resumed)
	}
	told("another pause", false)
	if paused, resumed := h.Pause([]string{"x"}); len(paused) > 0 || !slices.Equal(resumed, []string{"w"}) {
		t.Errorf("paused %v, resumed %v", paused, resumed)
	}
	told("a resumed topic", true)
	sees("one and another topic", second, Whole("x"))
}

// growing are pauses of one second, two, three and so on, of all places together.
type growing struct{ n time.Duration }

func (g *growing) NextBackOff() time.Duration { g.n++; return g.n * time.Second }

// TestDue: closed places are tried together, but not all at once, and the next time is that of the first.
func TestDue(t *testing.T) {
	t.Parallel()
	g := &growing{}
	h := health(func() Pauses { return g })
	for i := range int32(3) {
		h.Close(At("t", i), born)
	}
	for range 5 { // whichever the map has first
		if places, next := h.Due(at(0)); len(places) != 0 || !next.Equal(at(1)) {
			t.Errorf("%v are tried, and again at %v", places, next)
		}
	}
	if places, next := h.Due(at(1)); !slices.Equal(places, []Place{At("t", 0)}) || !next.Equal(at(2)) {
		t.Errorf("%v are tried, and again at %v", places, next)
	}
	many := health(fixedPauses)
	for i := range int32(mostTries + 1) {
		many.Close(At("t", i), born)
	}
	first, _ := many.Due(at(1))
	rest, _ := many.Due(at(1))
	if len(first) != mostTries || len(rest) != 1 {
		t.Errorf("%d are tried, and then %d", len(first), len(rest))
	}
}

// TestClosedAgain: a place that is closed again soon is not tried as often as at first; later it is.
func TestClosedAgain(t *testing.T) {
	t.Parallel()
	p := At("t", 0)
	for _, c := range []struct{ opened, closed, next int }{{2, 5, 7}, {2, 13, 14}} {
		h := health(func() Pauses { return new(growing) })
		h.Close(p, born)
		h.Open(p, at(c.opened))
		h.Close(p, at(c.closed))
		if _, next := h.Due(at(c.closed)); !next.Equal(at(c.next)) {
			t.Errorf("opened after %d s and closed after %d s: tried at %v", c.opened, c.closed, next.Sub(born))
		}
	}
}

// TestHealthUnanswered: a place that was closed although no other was tried tells nothing of the others, until one
// answers.
func TestHealthUnanswered(t *testing.T) {
	t.Parallel()
	born := time.Unix(1000, 0)
	at := func(s int) time.Time { return born.Add(time.Duration(s) * time.Second) }
	one := map[Place]error{At("t", 1): errUnknown}
	for name, c := range map[string]struct {
		acked, more int
		want        bool
	}{"before": {1, 0, true}, "then": {2, 0, true}, "meanwhile": {3, 0, false}, "since": {1, 9, false}} {
		h := NewHealth(time.Second, born, func() Pauses { return fixed{} })
		h.Acked(at(1), func() map[Place]bool { return nil })
		h.Failed(one, at(2), at(2))
		h.Acked(at(c.acked), func() map[Place]bool { return nil })
		if h.Unanswered() || len(h.Failed(one, at(4), at(4))) != 1 {
			t.Errorf("%s: it is not closed", name)
		}
		if c.more > 0 {
			h.Acked(at(c.more), func() map[Place]bool { return nil })
		}
		if h.Unanswered() != c.want {
			t.Errorf("another place has answered %s: %v", name, h.Unanswered())
		}
		h.Open(At("t", 1), at(10))
		if h.Unanswered() {
			t.Errorf("%s: it is open", name)
		}
	}
}
