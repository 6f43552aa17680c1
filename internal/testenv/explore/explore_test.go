package explore_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/explore"
)

// jugs is the water jug puzzle: two jugs of 3 and 5 litres.
type jugs struct{ three, five int }

func pour(s *jugs, emit func(explore.Step[jugs])) {
	step := func(name string, to jugs) { emit(explore.Step[jugs]{Name: explore.Named(name), To: to}) }
	step("fill the small one", jugs{3, s.five})
	step("fill the large one", jugs{s.three, 5})
	step("empty the small one", jugs{0, s.five})
	step("empty the large one", jugs{s.three, 0})
	n := min(s.three, 5-s.five)
	step("small into large", jugs{s.three - n, s.five + n})
	n = min(s.five, 3-s.three)
	step("large into small", jugs{s.three + n, s.five - n})
}

func jugModel() explore.Model[jugs, jugs] {
	return explore.Model[jugs, jugs]{Start: []jugs{{}}, Next: pour, Key: func(s *jugs) jugs { return *s }}
}

func TestAllStates(t *testing.T) {
	t.Parallel()
	found := explore.Run(jugModel())
	if found.Violation != nil || !found.Complete || found.States != 16 || found.Steps != 16*6 || found.Depth != 7 {
		t.Fatalf("want 16 states and depth 7: %+v", found)
	}
}

func TestShortestTrace(t *testing.T) {
	t.Parallel()
	m := jugModel()
	m.Bad = func(s *jugs) string {
		if s.five == 4 {
			return "four litres"
		}
		return ""
	}
	found := explore.Run(m)
	want := []string{
		"fill the large one", "large into small", "empty the small one", "large into small", "fill the large one",
		"large into small",
	}
	if v := found.Violation; v == nil || v.What != "four litres" || !slices.Equal(v.Trace, want) || found.Complete {
		t.Fatal(found)
	}
	if text := found.String(); !strings.Contains(text, "   6  large into small") {
		t.Fatalf("the text does not list the steps:\n%s", text)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	m := jugModel()
	m.Good = func(*jugs) bool { return false } // not checked by a search that reaches a bound
	m.MaxStates = 5
	if found := explore.Run(m); found.Complete || found.Violation != nil || found.States < 5 ||
		!strings.Contains(found.String(), "NOT complete") {
		t.Fatal(found)
	}
	m.MaxStates, m.MaxDepth = 0, 2
	if found := explore.Run(m); found.Complete || found.Violation != nil || found.Depth != 2 {
		t.Fatal(found)
	}
}

// TestStuck: a lamp can be switched on and off, and a fault breaks it. Only another fault repairs it.
func TestStuck(t *testing.T) {
	t.Parallel()
	const (
		off = iota
		on
		broken
	)
	m := explore.Model[int, int]{
		Start: []int{off},
		Key:   func(s *int) int { return *s },
		Good:  func(s *int) bool { return *s == off },
		Next: func(s *int, emit func(explore.Step[int])) {
			switch *s {
			case off:
				emit(explore.Step[int]{Name: explore.Named("on"), To: on})
			case on:
				emit(explore.Step[int]{Name: explore.Named("off"), To: off})
				emit(explore.Step[int]{Name: explore.Named("breaks"), To: broken, Fault: true})
			case broken:
				emit(explore.Step[int]{Name: explore.Named("repaired"), To: on, Fault: true})
			}
		},
	}
	found := explore.Run(m)
	if v := found.Violation; v == nil || v.What != explore.Stuck || !slices.Equal(v.Trace, []string{"on", "breaks"}) ||
		!found.Complete {
		t.Fatal(found)
	}
	next := m.Next
	m.Next = func(s *int, emit func(explore.Step[int])) {
		next(s, func(step explore.Step[int]) {
			step.Fault = step.Fault && step.To == broken
			emit(step)
		})
	}
	if found := explore.Run(m); found.Violation != nil {
		t.Fatalf("a lamp that is repaired by a step that is not a fault is not stuck: %v", found)
	}
}

func TestNotDeterministic(t *testing.T) {
	t.Parallel()
	calls := 0
	m := explore.Model[int, int]{
		Start: []int{0},
		Key:   func(s *int) int { return *s },
		Bad:   func(s *int) string { return strings.Repeat("far", min(*s/100, 1)) },
		Next: func(s *int, emit func(explore.Step[int])) {
			calls += 100
			emit(explore.Step[int]{Name: explore.Named("on"), To: *s + calls})
		},
	}
	defer func() {
		if recover() == nil {
			t.Fatal("no panic although Next is not deterministic")
		}
	}()
	explore.Run(m)
}
