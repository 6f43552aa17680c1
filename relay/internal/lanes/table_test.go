package lanes

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/effectonce/effectonce/relay/internal/delivery"
)

var (
	now   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	later = now.Add(time.Minute)
	held  = delivery.At("orders", 3)
)

// leased returns a table with lane 1 under fence 7, granted to a pump.
func leased(t testing.TB) (*Table, *Grant) {
	t.Helper()
	table := New(Pumps)
	table.Leased(map[int16]int64{1: 7}, later)
	grants := table.Take(0, 1, now)
	if len(grants) != 1 || !grants[0].Fresh || len(table.Take(0, 1, now)) != 0 {
		t.Fatalf("the pump has %+v", grants)
	}
	return table, &grants[0]
}

// is names the state of a lane.
func (l *state) is() string {
	if l == nil {
		return "gone"
	}
	words := []string{[]string{"pumps", "wal", "unassigned", "offered"}[l.feed]}
	for _, f := range []struct {
		word string
		is   bool
	}{
		{"fresh", l.fresh},
		{"ready", l.ready},
		{"busy", l.busy},
		{"doubt", l.doubt},
		{"leaving", l.leaving},
		{"due", l.due},
		{"parked", l.parked},
		{"releasing", l.releasing},
		{"bulk", l.bulk},
		{"holds", len(l.groups) > 0},
	} {
		if f.is {
			words = append(words, f.word)
		}
	}
	return strings.Join(words, " ")
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	closed := map[delivery.Place]bool{held: true}
	for name, c := range map[string]struct {
		do   func(t *Table, g *Grant)
		want string
	}{
		"taken":        {func(*Table, *Grant) {}, "pumps fresh ready busy due"},
		"given back":   {func(t *Table, g *Grant) { t.home(GiveBack(g), nil) }, "pumps fresh ready due"},
		"in doubt":     {func(t *Table, g *Grant) { t.Doubt(1, 7) }, "pumps fresh ready doubt due"},
		"all in doubt": {func(t *Table, g *Grant) { t.DoubtAll() }, "pumps fresh ready busy doubt due"},
		"unsettled": {
			func(t *Table, g *Grant) { t.MovedDue(1, 7, false); t.home(Unsettled(g, false), nil) },
			"pumps fresh ready",
		},
		"unsettled, late": {func(t *Table, g *Grant) {
			t.home(Unsettled(g, true), nil)
		}, "pumps fresh ready doubt due"},
		"empty": {func(t *Table, g *Grant) {
			t.MovedDue(1, 7, false)
			t.home(Empty(g, false), nil)
		}, "pumps"},
		"empty, more is due": {
			func(t *Table, g *Grant) { t.MovedDue(1, 7, true); t.home(Empty(g, false), nil) },
			"pumps ready due",
		},
		"empty, other work left": {
			func(t *Table, g *Grant) { t.MovedDue(1, 7, false); t.home(Empty(g, true), nil) },
			"pumps ready",
		},
		"empty, then found": {func(t *Table, g *Grant) {
			t.MovedDue(1, 7, false)
			t.home(Empty(g, false), nil)
			t.Found([]int16{1, 2}, nil, nil)
		}, "pumps ready"},
		"woken while busy": {
			func(t *Table, g *Grant) { t.MovedDue(1, 7, false); t.Woken(); t.home(Empty(g, false), nil) },
			"pumps ready",
		},
		"renumbered while busy": {func(t *Table, g *Grant) {
			t.MovedDue(1, 7, false)
			t.Renumber("2")
			t.home(Empty(g, false), nil)
		}, "pumps ready"},
		"settled": {func(t *Table, g *Grant) {
			t.MovedDue(1, 7, false)
			t.home(Settled(g, &Settlement{}), nil)
		}, "pumps"},
		"settled, more": {func(t *Table, g *Grant) {
			t.MovedDue(1, 7, false)
			t.home(Settled(g, &Settlement{More: true, Bulk: true}), nil)
		}, "pumps ready bulk"},
		"settled, held and closed": {func(t *Table, g *Grant) {
			t.MovedDue(1, 7, false)
			t.home(Settled(g, &Settlement{Held: []delivery.Place{held}, Parked: true}), closed)
		}, "pumps parked holds"},
		"settled, held and open": {func(t *Table, g *Grant) {
			t.MovedDue(1, 7, false)
			t.home(Settled(g, &Settlement{Held: []delivery.Place{held}}), nil)
		}, "pumps ready holds"},
		"opened while busy": {func(t *Table, g *Grant) {
			g.Groups = delivery.Groups{}.With([]delivery.Place{held})
			t.Claimed(g)
			t.MovedDue(1, 7, false)
			t.Opened("orders")
			t.home(Settled(g, &Settlement{}), closed)
		}, "pumps ready holds"},
		"opened while busy, and holds since": {func(t *Table, g *Grant) {
			t.MovedDue(1, 7, false)
			t.Opened("orders")
			t.home(Settled(g, &Settlement{Held: []delivery.Place{held}}), closed)
		}, "pumps ready holds"},
		"released": {func(t *Table, g *Grant) {
			t.MovedDue(1, 7, false)
			t.home(Settled(g, &Settlement{Parked: true}), nil)
			t.Found(nil, []int16{1}, nil)
		}, "pumps ready parked releasing"},
		"leaving": {func(t *Table, g *Grant) { t.Leave(1); t.home(GiveBack(g), nil) }, "pumps fresh ready leaving due"},
		"leaving, and back": {
			func(t *Table, g *Grant) { t.Leave(-1); t.Stay(); t.home(GiveBack(g), nil) },
			"pumps fresh ready due",
		},
		"forgotten": {func(t *Table, g *Grant) { t.Forget([]int16{1}); t.home(GiveBack(g), nil) }, "gone"},
		"lost":      {func(t *Table, g *Grant) { t.Leased(nil, later); t.Doubt(1, 7) }, "gone"},
		"under another fence": {func(t *Table, g *Grant) {
			t.Leased(map[int16]int64{1: 8}, later)
			t.Claimed(&Grant{Lane: 1, Fence: 7, Parked: true})
			t.MovedDue(1, 7, false)
			t.home(Settled(g, &Settlement{Bulk: true}), nil)
			t.Doubt(1, 7)
			t.HandedOver(1, 7)
		}, "pumps fresh ready due"},
		"offered": {func(t *Table, g *Grant) { t.home(GiveBack(g), nil); t.Offer() }, "offered fresh ready due"},
		"withdrawn": {func(t *Table, g *Grant) {
			t.home(GiveBack(g), nil)
			t.Offer()
			t.Withdraw()
		}, "pumps fresh ready due"},
		"handed over": {func(t *Table, g *Grant) {
			t.home(Empty(g, false), nil)
			t.Offer()
			t.HandedOver(1, 7)
		}, "wal due"},
		"handed back": {func(t *Table, g *Grant) {
			t.home(Empty(g, false), nil)
			t.Offer()
			t.HandedOver(1, 7)
			t.MovedDue(1, 7, false)
			t.HandedBack(1, 7)
		}, "pumps fresh ready due"},
		"no longer read": {func(t *Table, g *Grant) {
			t.home(Empty(g, false), nil)
			t.Offer()
			t.HandedOver(1, 7)
			t.Unfollowed()
		}, "unassigned ready due"},
		"offered, then not read": {
			func(t *Table, g *Grant) { t.home(GiveBack(g), nil); t.Offer(); t.Unfollowed() },
			"pumps fresh ready due",
		},
		"assigned to the wal": {func(t *Table, g *Grant) {
			t.home(Empty(g, false), nil)
			t.Offer()
			t.HandedOver(1, 7)
			t.Unfollowed()
			t.Assign([]int16{1, 2}, WAL)
		}, "wal due parked"},
		"read again": {func(t *Table, g *Grant) {
			t.home(Empty(g, false), nil)
			t.Reread([]int16{1})
		}, "pumps ready due"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table, g := leased(t)
			c.do(table, g)
			if got := table.owned[1].is(); got != c.want {
				t.Errorf("the lane is %q, want %q", got, c.want)
			}
		})
	}
}

// TestLaneIsReadAgainOnAnotherServer: knowledge about one server is not applied to another.
func TestLaneIsReadAgainOnAnotherServer(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(t *Table){
		"a connection was lost":    func(t *Table) { t.Reset() },
		"a new numbering":          func(t *Table) { t.Renumber("2") },
		"an open entry was found":  func(t *Table) { t.Reread([]int16{1}) },
		"and during a claim":       nil,
		"the fence was raised":     func(t *Table) { t.Leased(map[int16]int64{1: 8}, later) },
		"the lane was handed back": func(t *Table) { t.HandedBack(1, 7) },
	} {
		table, g := leased(t)
		g.Next, g.End = 5, 9
		table.Claimed(g)
		if again == nil {
			table.Reset()
		}
		table.home(Settled(g, &Settlement{First: 3, More: true}), nil)
		if again != nil {
			again(table)
		}
		next := table.Take(0, 1, now)
		if len(next) != 1 || !next[0].Fresh || next[0].Floor != 0 {
			t.Errorf("%s: the next claim is %+v", name, next)
		}
		if table.Refresh(next); name == "a connection was lost" && next[0].Next != 0 {
			t.Errorf("%s: the next claim uses the old block of numbers", name)
		}
	}
}

// TestFloors: a floor follows the claims, up to the id that was decided when they read, and falls when its basis does.
func TestFloors(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	table.ResetFloors("n")
	table.Decided("n", 100, nil)
	table.Decided("other", 900, nil)
	at := func(what string, floor, reach int64) {
		t.Helper()
		if l := table.owned[1]; l.floor != floor || l.reach != reach {
			t.Errorf("%s: floor %d, reach %d; want %d and %d", what, l.floor, l.reach, floor, reach)
		}
	}
	refresh := func() {
		grants := []Grant{*g}
		table.Refresh(grants)
		*g = grants[0]
	}
	refresh()
	table.home(Settled(g, &Settlement{Floor: 40}), nil)
	at("a claim up to 40", 40, 40)
	table.Decided("n", 200, []string{"17"})
	refresh()
	if g.IDs != "n {17}" || g.Decided != 100 || g.Reached != 200 {
		t.Errorf("a claim knows of %+v", g)
	}
	table.home(Settled(g, &Settlement{Floor: 150}), nil)
	at("with an excepted transaction", 100, 150)
	table.ExceptedEnded("n", nil, true)
	at("the exception may have committed", 100, 100)
	table.home(Settled(g, &Settlement{Floor: 180}), nil)
	at("an earlier claim", 100, 100)
	if table.RaiseFloors("n", g.Falls, map[int16]int64{1: 150}, nil); table.owned[1].reach != 100 {
		t.Error("a slice from before the fall raises a floor")
	}
	_, _, _, falls := table.NextSlice(200, 50)
	table.RaiseFloors("n", falls, map[int16]int64{1: 150, 2: 150}, nil)
	at("a slice", 150, 150)
	table.DropFloors([]int16{1})
	at("a row below the floor", 0, 0)
}

// TestFloorsOnTheirWay: a claim does not read far above a floor that will rise, and probes leave its lane out.
func TestFloorsOnTheirWay(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	if table.ExpectFloors(); table.Lagging() != 1 {
		t.Error("no lane waits for its first floor")
	}
	table.ResetFloors("n")
	table.Decided("n", 3*farIDs, nil)
	table.MovedDue(1, 7, false)
	table.home(Empty(g, false), nil)
	if probe, _, _ := table.ToProbe(); len(probe) > 0 {
		t.Error("a lane is probed from a low floor")
	}
	lanes, floors, tops, falls := table.NextSlice(3*farIDs, 10)
	if !slices.Equal(lanes, []int16{1}) || floors[0] != 0 || tops[0] != 10 {
		t.Errorf("the next slice is %v from %v to %v", lanes, floors, tops)
	}
	if !table.RaiseFloors("n", falls, map[int16]int64{1: 20}, map[int16]int64{1: 21}) {
		t.Error("the found row makes no lane ready")
	}
	if next := table.Take(0, 1, now); len(next) != 1 || next[0].Top != 20+farIDs {
		t.Errorf("the claim is %+v", next)
	}
	if table.Undecidable(); table.Lagging() != 1 {
		t.Error("the lane has passed all decided ids")
	}
	table.RaiseFloors("n", falls, map[int16]int64{1: 3 * farIDs}, nil)
	if table.Lagging() != 0 {
		t.Error("the lane still lags")
	}
}

// TestTogether: lanes whose claims time out are claimed apart from the others, and fewer at a time.
func TestTogether(t *testing.T) {
	t.Parallel()
	table := New(Pumps)
	fences := map[int16]int64{}
	for i := range int16(Count) {
		fences[i] = 1
	}
	table.Leased(fences, later)
	round := func(want int, slow func(lane int16) bool) {
		t.Helper()
		grants := table.Take(0, 1, now)
		if len(grants) != want {
			t.Errorf("%d lanes are claimed together, want %d", len(grants), want)
		}
		for i := range grants {
			if slow(grants[i].Lane) {
				table.fail(2, grants[i])
			} else {
				table.home(GiveBack(&grants[i]), nil)
			}
		}
	}
	round(32, func(i int16) bool { return i < 20 })
	round(16, func(int16) bool { return true })  // slow lanes come first
	round(4, func(int16) bool { return true })   // the rest of the slow lanes
	round(12, func(int16) bool { return false }) // then the others
	for range mostStrikes * 3 {
		table.fail(2, Grant{Lane: 0, Fence: 1})
	}
	if got := table.owned[0].strikes; got != mostStrikes {
		t.Errorf("%d strikes, want %d", got, mostStrikes)
	}
}

// TestRandomTransitions: in any order of transitions, a lane has at most one grant, is granted only if it is certain,
// ready and assigned to the pumps, and a report about a busy lane is not lost.
func TestRandomTransitions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		table, clock := New(Pumps), now
		fence := map[int16]int64{0: 1, 1: 1}
		out := map[int16]*Grant{} // grants, by lane
		told := map[int16]bool{}  // reports that came while the lane was busy
		lane := rapid.Int16Range(0, 1)
		lease := func() {
			lost := func(i int16) { delete(out, i); delete(told, i) }
			taken, gone := table.Leased(fence, clock.Add(time.Second))
			for _, i := range slices.Concat(taken, gone) {
				lost(i)
			}
		}
		back := func(t *rapid.T, end func(g *Grant)) {
			for i := range int16(2) {
				g := out[i]
				if g == nil {
					continue
				}
				end(g)
				if l := table.owned[i]; l.busy || told[i] && !l.ready {
					t.Fatalf("lane %d is %s after it was given back", i, l.is())
				}
				delete(out, i)
				delete(told, i)
				return
			}
		}
		tell := func() {
			for i := range out {
				told[i] = true
			}
		}
		lease()
		t.Repeat(map[string]func(*rapid.T){
			"time passes":     func(*rapid.T) { clock = clock.Add(300 * time.Millisecond) },
			"a heartbeat":     func(*rapid.T) { lease() },
			"a lane is taken": func(t *rapid.T) { fence[lane.Draw(t, "lane")]++; lease() },
			"a lane is lost":  func(t *rapid.T) { delete(fence, lane.Draw(t, "lane")); lease() },
			"assigned": func(t *rapid.T) {
				lanes, _ := table.Unassigned()
				table.Assign(lanes, rapid.SampledFrom([]Feed{Pumps, WAL}).Draw(t, "feed"))
			},
			"offered":        func(*rapid.T) { table.Offer() },
			"withdrawn":      func(*rapid.T) { table.Withdraw() },
			"handed back":    func(t *rapid.T) { i := lane.Draw(t, "lane"); table.HandedBack(i, fence[i]) },
			"no relay reads": func(*rapid.T) { table.Unfollowed() },
			"leaving":        func(*rapid.T) { table.Leave(1) },
			"staying":        func(*rapid.T) { table.Stay() },
			"all in doubt":   func(*rapid.T) { table.DoubtAll() },
			"another server": func(*rapid.T) { table.Reset() },
			"woken":          func(*rapid.T) { table.Woken(); tell() },
			"found":          func(t *rapid.T) { table.Found([]int16{lane.Draw(t, "lane")}, nil, nil) },
			"a pump takes lanes": func(t *rapid.T) {
				for _, g := range table.Take(0, 1, clock) {
					l := table.owned[g.Lane]
					if out[g.Lane] != nil || l.feed != Pumps || !l.ready || !l.certain() ||
						!clock.Before(l.deadline) {
						t.Fatalf("lane %d was granted in state %s", g.Lane, l.is())
					}
					out[g.Lane] = &g
				}
			},
			"nothing is due": func(*rapid.T) {
				for i := range out {
					table.MovedDue(i, fence[i], false)
				}
			},
			"given back": func(t *rapid.T) { back(t, func(g *Grant) { table.home(GiveBack(g), nil) }) },
			"in doubt":   func(t *rapid.T) { back(t, func(g *Grant) { table.Doubt(g.Lane, g.Fence) }) },
			"empty":      func(t *rapid.T) { back(t, func(g *Grant) { table.home(Empty(g, false), nil) }) },
			"settled": func(t *rapid.T) {
				back(t, func(g *Grant) { table.home(Settled(g, &Settlement{Floor: 5}), nil) })
			},
			"unsettled": func(t *rapid.T) { back(t, func(g *Grant) { table.home(Unsettled(g, false), nil) }) },
			"": func(t *rapid.T) {
				for i, l := range table.owned {
					if l.busy != (out[i] != nil) || l.floor > l.reach {
						t.Fatalf("lane %d is %s (%v), its floor %d and its reach %d", i, l.is(), out[i], l.floor,
							l.reach)
					}
				}
				for _, i := range table.Releasable() {
					if out[i] != nil {
						t.Fatalf("lane %d is released while a pump has it", i)
					}
				}
			},
		})
	})
}

// TestHeadsOfHeldEvents: the first held event of a topic as a whole is tried only if no older event of the topic is
// held in the lane.
func TestHeadsOfHeldEvents(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	whole := delivery.Whole("orders")
	g.Groups = delivery.Groups{}.With([]delivery.Place{held, whole})
	table.Claimed(g)
	found, without := table.FirstHeld([]delivery.Place{held, whole, delivery.At("other", 0)})
	if len(found) != 1 || found[held].Fence != 7 || len(without) != 2 {
		t.Errorf("%v are tried, and %v have no head", found, without)
	}
	if only, _ := of("whole").FirstHeld([]delivery.Place{whole}); len(only) != 1 {
		t.Error("the first held event of a topic as a whole is not tried although none older is held")
	}
	if !table.Holds(whole) || table.Holds(delivery.At("orders", 4)) {
		t.Error("the held events of the lane are unknown")
	}
	if table.Doubt(1, 7); fmt.Sprint(table.InDoubt()) != "[1]" || table.Fence(1) != 0 {
		t.Error("a lane in doubt counts as owned")
	}
	if found, _ := table.FirstHeld([]delivery.Place{held}); len(found) > 0 {
		t.Error("a held event of a lane in doubt is tried")
	}
	if _, ok := table.Deadline([]Grant{*g}); ok {
		t.Error("a lane in doubt has a deadline")
	}
}

// TestJournalsAreReadFromTheLastSettle: a check for reopened entries does not read entries before the lane's last
// settle.
func TestJournalsAreReadFromTheLastSettle(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	first := func() int64 {
		lanes, firsts := table.Journals()
		if len(lanes) != 1 || lanes[0] != 1 || len(firsts) != 1 {
			t.Fatalf("lanes %v from %v", lanes, firsts)
		}
		return firsts[0]
	}
	if n := first(); n != math.MaxInt64 {
		t.Errorf("the check begins at %d, and no entry was settled", n)
	}
	table.Claimed(g)
	table.home(Settled(g, &Settlement{First: 3}), nil)
	if n := first(); n != 3 {
		t.Errorf("the check begins at %d, and 3 was settled last", n)
	}
	table.Leased(map[int16]int64{1: 8}, later)
	if n := first(); n != math.MaxInt64 {
		t.Errorf("the check begins at %d under another fence", n)
	}
}
