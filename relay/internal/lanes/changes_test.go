package lanes

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/effectonce/effectonce/relay/internal/delivery"
)

// next returns the grant of a pump's next claim of the only lane.
func next(t *testing.T, table *Table) *Grant {
	t.Helper()
	grants := table.Take(0, 1, now)
	if len(grants) != 1 {
		t.Fatalf("the next claim is of %v", grants)
	}
	return &grants[0]
}

// TestNextClaimUsesFindings: the next claim starts with the findings of this one and of its settle.
func TestNextClaimUsesFindings(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	table.Renumber("e.1")
	groups := delivery.Groups{}.With([]delivery.Place{held})
	g.Next, g.End, g.Parked, g.Releasing, g.Groups = 5, 9, true, true, groups
	table.Claimed(g)
	pace := Pace{Last: 77, Size: 3, Gap: 1.5}
	if table.home(Settled(g, &Settlement{First: 4, More: true, Bulk: true, Pace: pace}), nil) {
		t.Error("a heartbeat is requested for an owned lane that stays")
	}
	got := next(t, table)
	if got.Next != 5 || got.End != 9 || !got.Parked || !got.Releasing || !got.Groups.Has(held) || got.Settled != 4 ||
		!got.Bulk || got.Pace != pace || got.Epoch != "e.1" || got.Turn != g.Turn+1 || !got.Due {
		t.Errorf("the next claim is %+v", got)
	}
	if !got.Fresh {
		t.Error("a claim under the old numbering made reading the journal unnecessary")
	}
	table.home(Settled(got, &Settlement{More: true}), nil)
	got = next(t, table)
	if got.Fresh || got.Bulk || got.Reads != 1 {
		t.Errorf("after a claim that read the journal: %+v", got)
	}
	table.home(Unsettled(got, false), nil)
	if got = next(t, table); !got.Fresh {
		t.Error("the journal is not read, and has an open entry")
	}
	table.home(Empty(got, true), nil)
	if got = next(t, table); got.Fresh || got.Bulk {
		t.Errorf("after an empty claim: %+v", got)
	}
	table.Reset()
	table.home(Empty(got, true), nil)
	if got = next(t, table); !got.Fresh {
		t.Error("a claim over a lost connection made reading the journal unnecessary")
	}
	table.home(Empty(got, true), nil)
	if next(t, table).Fresh {
		t.Error("the journal is read again after a claim that found it empty")
	}
}

// TestDrainedLaneIsNotBulk: a lane that was read empty is no longer a bulk lane.
func TestDrainedLaneIsNotBulk(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	table.home(Settled(g, &Settlement{More: true, Bulk: true}), nil)
	table.home(Empty(next(t, table), true), nil)
	if next(t, table).Bulk {
		t.Error("an empty lane is read in bulk")
	}
}

// TestBulkIsNotFarAboveTheFloor: a lane is read in bulk up to the last id that a lagging claim reads, and not above.
func TestBulkIsNotFarAboveTheFloor(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	for last, want := range map[int64]bool{farIDs: true, farIDs + 1: false} {
		table.home(Settled(g, &Settlement{More: true, Bulk: true, Pace: Pace{Last: last}}), nil)
		if g = next(t, table); g.Bulk != want {
			t.Errorf("after id %d: bulk %v", last, g.Bulk)
		}
	}
}

// TestBeats: a claim of a lane that is leaving or in doubt requests a heartbeat when it gives the lane back.
func TestBeats(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *Table, g *Grant) bool{
		"given back": func(t *Table, g *Grant) bool { return t.home(GiveBack(g), nil) },
		"unsettled":  func(t *Table, g *Grant) bool { return t.home(Unsettled(g, false), nil) },
		"empty":      func(t *Table, g *Grant) bool { return t.home(Empty(g, false), nil) },
		"settled":    func(t *Table, g *Grant) bool { return t.home(Settled(g, &Settlement{}), nil) },
	} {
		for kind, c := range map[string]struct {
			before func(t *Table)
			want   bool
		}{
			"certain": {func(*Table) {}, false},
			"leaving": {func(t *Table) { t.Leave(-1) }, true},
			"doubted": {(*Table).DoubtAll, true},
			"another": {func(t *Table) { t.DoubtAll(); t.Leased(map[int16]int64{1: 8}, later) }, false},
		} {
			table, g := leased(t)
			if c.before(table); end(table, g) != c.want {
				t.Errorf("%s, %s: a heartbeat is requested: %v", name, kind, !c.want)
			}
		}
	}
	for name, end := range map[string]func(g *Grant) Verdict{
		"late": func(g *Grant) Verdict { return Unsettled(g, true) }, "doubted": Doubted,
	} {
		table, g := leased(t)
		if !table.home(end(g), nil) || !slices.Equal(table.InDoubt(), []int16{1}) {
			t.Errorf("%s: no heartbeat is requested, or %v are in doubt", name, table.InDoubt())
		}
	}
}

// TestWokenOnce: a report about a busy lane makes the lane ready once.
func TestWokenOnce(t *testing.T) {
	t.Parallel()
	for name, report := range map[string]func(*Table){
		"woken":      (*Table).Woken,
		"opened":     func(t *Table) { t.Opened("orders") },
		"renumbered": func(t *Table) { t.Renumber("e.2") },
	} {
		table, g := leased(t)
		table.MovedDue(1, 7, false)
		g.Groups = delivery.Groups{}.With([]delivery.Place{held})
		table.Claimed(g)
		report(table)
		closed := map[delivery.Place]bool{held: true}
		table.home(Empty(g, false), closed)
		if !table.owned[1].ready {
			t.Errorf("%s: the lane is not ready", name)
			continue
		}
		table.home(Empty(next(t, table), false), closed)
		if table.owned[1].ready {
			t.Errorf("%s: the lane is ready again", name)
		}
		if table.Opened("other"); table.owned[1].ready {
			t.Error("a topic without held events in the lane makes it ready")
		}
		if table.Opened("orders"); !table.owned[1].ready {
			t.Error("the lane holds events of the topic that was opened, and is not ready")
		}
	}
}

// TestRenumbered: an idle lane reads its journal once for each incarnation, if it belongs to the pumps.
func TestRenumbered(t *testing.T) {
	t.Parallel()
	table := of("quiet", "wal", "offered", "unassigned")
	table.Renumber("e.1")
	for i, l := range table.owned {
		if want := l.polled(); l.ready != want || l.woken {
			t.Errorf("%s is ready: %v", kinds[i].name, l.ready)
		}
		l.ready = false
	}
	table.Renumber("e.1")
	for i, l := range table.owned {
		if l.ready {
			t.Errorf("%s is ready again", kinds[i].name)
		}
	}
}

// TestDueAgain: the next claim moves the events that a probe found due.
func TestDueAgain(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	table.MovedDue(1, 7, false)
	table.home(Empty(g, false), nil)
	table.Found(nil, nil, []int16{1})
	if got := next(t, table); !got.Due {
		t.Error("the claim does not move due events")
	}
}

// TestDueRefused: a lane whose due events could not be moved is claimed without them for a while, then by itself.
func TestDueRefused(t *testing.T) {
	t.Parallel()
	table := New(Pumps)
	table.Leased(map[int16]int64{0: 1, 1: 1, 2: 1}, later)
	grants := table.Take(0, 1, now)
	table.DueRefused(1, 1, now)
	for i := range grants {
		table.home(GiveBack(&grants[i]), nil)
	}
	grants = table.Take(0, 1, now)
	if len(grants) != 3 || !grants[0].Due || grants[1].Due || !grants[2].Due {
		t.Errorf("claimed %+v, want all three, the second without what is due", grants)
	}
	for i := range grants {
		table.home(GiveBack(&grants[i]), nil)
	}
	if got := table.AskDue(now); slices.Contains(got, 1) {
		t.Error("a probe asks at once whether the lane has due events")
	}
	if got := table.AskDue(now.Add(longestRest)); !slices.Contains(got, 1) {
		t.Error("no probe asks whether the lane has due events")
	}
	table.Found(nil, nil, []int16{1})
	grants = table.Take(0, 1, now)
	if len(grants) != 1 || grants[0].Lane != 1 || !grants[0].Due {
		t.Errorf("claimed %+v, want the second lane by itself, with what is due", grants)
	}
	table.Leased(map[int16]int64{0: 1, 1: 2, 2: 1}, later)
	if slices.Contains(table.AskDue(now), 1) {
		t.Error("under another fence a probe asks at once")
	}
	table.Found(nil, nil, []int16{1})
	table.MovedDue(1, 2, true)
	if grants = table.Take(0, 1, now); len(grants) != 3 {
		t.Errorf("after a move %d lanes are claimed together, want 3", len(grants))
	}
}

// TestDueRefusedAgain: the pause doubles each time, up to its bound, also under another fence. The first lane is no
// exception.
func TestDueRefusedAgain(t *testing.T) {
	t.Parallel()
	table := New(Pumps)
	table.Leased(map[int16]int64{0: 1, 1: 1}, later)
	for i, want := range []time.Duration{20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000} {
		fence := int64(i/2 + 1)
		table.Leased(map[int16]int64{0: fence, 1: 1}, later)
		table.DueRefused(0, fence, now)
		rests := now.Add(want * time.Millisecond)
		if slices.Contains(table.AskDue(rests.Add(-1)), 0) || !slices.Contains(table.AskDue(rests), 0) {
			t.Errorf("refused %d times, it does not rest for %v", i+1, want*time.Millisecond)
		}
	}
	table.Leased(map[int16]int64{0: 9, 1: 1}, later)
	grants := table.Take(0, 1, now)
	if len(grants) != 2 || grants[0].Due || !grants[1].Due {
		t.Errorf("claimed %+v, want both, the first without what is due", grants)
	}
	for i := range grants {
		table.home(GiveBack(&grants[i]), nil)
	}
	table.Found(nil, nil, []int16{0})
	if grants = table.Take(0, 1, now); len(grants) != 1 || grants[0].Lane != 0 {
		t.Errorf("claimed %+v, want the first lane by itself", grants)
	}
}

// TestRest: a lane that failed alone rests, the longer the more often it failed, also under another fence. The pump
// wakes when the first of its lanes has rested.
func TestRest(t *testing.T) {
	t.Parallel()
	table := New(Pumps)
	table.Leased(map[int16]int64{0: 1, 2: 1}, later)
	if at := table.Rested(0, 2, now); !at.IsZero() {
		t.Errorf("no lane rests, and one has rested at %v", at)
	}
	for range mostStrikes {
		table.fail(1, Grant{Lane: 0, Fence: 1})
	}
	table.fail(1, Grant{Lane: 2, Fence: 1}, Grant{Lane: 4, Fence: 1}) // which was lost meanwhile
	table.Leased(map[int16]int64{0: 1, 2: 2}, later)
	at := now.Add(20 * time.Millisecond)
	if got := table.Rested(0, 2, now); !got.Equal(at) {
		t.Errorf("the first lane has rested at %v, want %v", got, at)
	}
	if got := table.Rested(0, 2, at); !got.Equal(now.Add(longestRest)) {
		t.Errorf("the second lane has rested at %v, want %v", got, now.Add(longestRest))
	}
	if got := table.Rested(1, 2, now); !got.IsZero() {
		t.Errorf("another pump waits until %v", got)
	}
	if grants := table.Take(0, 2, at.Add(-1)); len(grants) != 0 {
		t.Errorf("%+v are claimed while they rest", grants)
	}
	if grants := table.Take(0, 2, at); len(grants) != 1 || grants[0].Lane != 2 {
		t.Errorf("%+v are claimed, want the lane that has rested", grants)
	}
}

// TestAnotherFenceTakesNoTurn: of lanes that fail alone, one whose fence rises each time does not always come first.
func TestAnotherFenceTakesNoTurn(t *testing.T) {
	t.Parallel()
	table := New(Pumps)
	table.Leased(map[int16]int64{0: 1, 1: 1}, later)
	for range mostStrikes {
		table.fail(2, Grant{Lane: 0, Fence: 1}, Grant{Lane: 1, Fence: 1})
	}
	grants := table.Take(0, 1, now)
	table.Leased(map[int16]int64{0: 2, 1: 1}, later)
	if again := table.Take(0, 1, now); len(grants) != 1 || len(again) != 1 || again[0].Lane == grants[0].Lane {
		t.Errorf("claimed %+v and then %+v", grants, again)
	}
}

// TestStanding: a lane stands from the first question that finds work which is not given back.
func TestStanding(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	check := func(s int, want time.Time) {
		t.Helper()
		if _, since := table.Standing(at(s)); !since.Equal(want) {
			t.Errorf("after %d s it stands since %v, want %v", s, since, want)
		}
	}
	table.MovedDue(1, 7, false)
	check(1, time.Time{})
	check(9, at(1))
	table.home(Settled(g, &Settlement{More: true}), nil)
	check(10, time.Time{})
	g = next(t, table)
	check(12, at(10)) // ready or busy, nothing was done
	table.home(Empty(g, false), nil)
	check(13, time.Time{})
	table.Found([]int16{1}, nil, nil)
	check(14, time.Time{})
	check(15, at(14))
	table.Offer()
	check(16, time.Time{})
	table.Withdraw() // it is the pumps' work from now on
	check(17, time.Time{})
	check(18, at(17))
	table.Leased(map[int16]int64{1: 7, 2: 1}, later)
	for s := range 5 {
		if lane, since := table.Standing(at(20 + s)); lane != 1 || !since.Equal(at(17)) {
			t.Errorf("lane %d stands since %v, want the one that has stood for longest", lane, since)
		}
	}
}

// TestFoundInSeveral: every lane of a report is ready.
func TestFoundInSeveral(t *testing.T) {
	t.Parallel()
	table := of("quiet", "parked", "holds")
	table.Found([]int16{0, 9, 30}, nil, nil)
	if got := named(table.Quiet()); got != "holds" {
		t.Errorf("still quiet: %s", got)
	}
}

// TestUnsettledOffered: an unsettled claim of an offered lane is claimed again, although the lane was not ready.
func TestUnsettledOffered(t *testing.T) {
	t.Parallel()
	table := of("offered")
	g := table.TakeOffered(now)[0]
	if table.home(Unsettled(&g, false), nil); table.owned[g.Lane].is() != "offered fresh ready" {
		t.Errorf("the lane is %q", table.owned[g.Lane].is())
	}
}

// TestReread: after an open entry is found, its rows may have any ids.
func TestReread(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	table.MovedDue(1, 7, false)
	table.ResetFloors("n")
	table.Decided("n", 100, nil)
	grants := []Grant{*g}
	table.Refresh(grants)
	table.home(Settled(&grants[0], &Settlement{Floor: 40}), nil)
	table.Reread([]int16{1})
	got := next(t, table)
	if got.Floor != 0 || got.Reach != 0 || !got.Fresh {
		t.Errorf("the next claim is %+v", got)
	}
	table.home(Settled(&grants[0], &Settlement{Floor: 90}), nil) // from before
	if l := table.owned[1]; l.floor != 0 || l.reach != 0 {
		t.Errorf("floor %d and reach %d by an earlier claim", l.floor, l.reach)
	}
}

// TestRefresh: a claim that waited for its connection uses the state after the wait.
func TestRefresh(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	g.Next, g.End = 5, 9
	table.Claimed(g)
	table.home(Settled(g, &Settlement{More: true}), nil)
	g = next(t, table)
	ours := []Grant{*g, {Lane: 2, Fence: 1, Floor: 3, Reach: 4, Top: 5, Decided: 6, Reached: 7}, *g}
	table.ResetFloors("n")
	table.Decided("n", 50, nil)
	table.Renumber("e.1")
	table.Refresh(ours)
	for _, i := range []int{0, 2} {
		if o := ours[i]; o.Next != 0 || o.End != 0 || !o.Fresh || o.Epoch != "e.1" || o.IDs != "n" || o.Decided != 50 {
			t.Errorf("our lane is granted as %+v", o)
		}
	}
	// A lane that another relay has taken is granted without knowledge, and its findings are ignored.
	want := Grant{Lane: 2, Fence: 1, Fresh: true, Epoch: "e.1", Top: math.MaxInt64}
	if o := ours[1]; o.Floor != want.Floor || o.Reach != 0 || o.Top != want.Top || o.Decided != 0 || o.Reached != 0 ||
		!o.Fresh || o.Epoch != want.Epoch || o.IDs != "n" {
		t.Errorf("the other relay's lane is granted as %+v, want %+v", o, want)
	}
	same := []Grant{*g}
	table.home(Settled(&ours[0], &Settlement{More: true}), nil)
	again := next(t, table)
	again.Next, again.End = 7, 8
	same[0] = *again
	if table.Refresh(same); same[0].Next != 7 || same[0].End != 8 {
		t.Errorf("a claim on the same server reserves a new block: %+v", same[0])
	}
}

// TestStrikes: a lane whose claims fit easily is no longer slow.
func TestStrikes(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	table.fail(2, *g, *g)
	table.home(Settled(g, &Settlement{More: true, Bulk: true}), nil)
	for i, want := range []int{2, 1, 0, 0} {
		g = next(t, table)
		if g.Strikes != want || g.Bulk != (want == 0 && i > 1) {
			t.Errorf("claim %d has %d strikes, want %d; bulk %v", i, g.Strikes, want, g.Bulk)
		}
		table.home(Settled(g, &Settlement{More: true, Bulk: true, Easily: true}), nil)
	}
}

// TestSlowLanesGoOneByOne: one lane is claimed at a time, however slow all are, and the one that waited longest comes
// first.
func TestSlowLanesGoOneByOne(t *testing.T) {
	t.Parallel()
	table := New(Pumps)
	table.Leased(map[int16]int64{0: 1, 1: 1, 2: 1}, later)
	for range mostStrikes {
		table.fail(2, Grant{Lane: 0, Fence: 1}, Grant{Lane: 1, Fence: 1})
	}
	var order []int16
	for range 6 {
		grants := table.Take(0, 1, now)
		if len(grants) != 1 {
			t.Fatalf("%d lanes are claimed together", len(grants))
		}
		order = append(order, grants[0].Lane)
		table.home(GiveBack(&grants[0]), nil)
	}
	if !slices.Equal(order, []int16{0, 1, 2, 0, 1, 2}) {
		t.Errorf("the lanes are claimed in the order %v", order)
	}
	table.Forget([]int16{2})
	if grants := table.Take(0, 1, now); len(grants) != 1 {
		t.Errorf("of slow lanes, %d are claimed together", len(grants))
	}
}

// TestPartsOfPumps: a pump claims all lanes of its part together, also if the parts differ in size.
func TestPartsOfPumps(t *testing.T) {
	t.Parallel()
	table := New(Pumps)
	fences := map[int16]int64{}
	for i := range int16(Count) {
		fences[i] = 1
	}
	table.Leased(fences, later)
	for pump, want := range []int{11, 11, 10} {
		if got := table.Take(pump, 3, now); len(got) != want {
			t.Errorf("pump %d claims %d lanes, want %d", pump, len(got), want)
		}
	}
}

// floored returns a table whose lane 1 has floor and reach 100 in the numbering n; all ids up to 300 are decided but
// for transaction 17.
func floored(t *testing.T) (*Table, *state) {
	t.Helper()
	table, g := leased(t)
	table.ExpectFloors()
	table.ResetFloors("n")
	table.far = 50
	table.Decided("n", 100, nil)
	table.MovedDue(1, 7, false)
	table.home(Empty(g, false), nil)
	_, _, _, falls := table.NextSlice(100, 100)
	table.RaiseFloors("n", falls, map[int16]int64{1: 100}, nil)
	table.Decided("n", 300, []string{"17"})
	l := table.owned[1]
	if l.floor != 100 || l.reach != 100 || table.IDs() != "n" || l.ready {
		t.Fatalf("the lane is %+v", l)
	}
	return table, l
}

// TestFloorsFall: floors, and everything derived from them, are discarded with their basis.
func TestFloorsFall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fall  func(t *Table)
		ids   string
		ready bool
	}{
		"the connection was lost": {(*Table).Reset, "", false},
		"another numbering":       {func(t *Table) { t.ResetFloors("m") }, "m", false},
		"a row below the floor":   {func(t *Table) { t.DropFloors([]int16{1}) }, "n {17}", true},
	} {
		table, l := floored(t)
		_, _, _, falls := table.NextSlice(300, 50)
		c.fall(table)
		lanes, floors, ids := table.Reaches()
		if l.floor != 0 || !slices.Equal(lanes, []int16{1}) || !slices.Equal(floors, []int64{0}) || ids != c.ids ||
			l.ready != c.ready {
			t.Errorf("%s: floor %d, reaches of %v %v in %q, ready %v", name, l.floor, lanes, floors, ids, l.ready)
		}
		table.RaiseFloors(table.IDs(), falls, map[int16]int64{1: 150}, nil)
		if l.reach != 0 {
			t.Errorf("%s: an earlier read raises the floor to %d", name, l.reach)
		}
		if c.ready {
			continue
		}
		l.ready = true
		g := next(t, table)
		if g.Decided != 0 || g.Reached != 0 || g.Top != 50 {
			t.Errorf("%s: the next claim is %+v", name, g)
		}
	}
}

// TestWithoutFloorFinder: claims and probes do not wait for floors.
func TestWithoutFloorFinder(t *testing.T) {
	t.Parallel()
	table, g := leased(t)
	table.Decided("", 3*farIDs, nil)
	if table.Lagging() != 1 {
		t.Error("the lane is not below the decided ids")
	}
	if table.Reset(); table.Lagging() != 0 {
		t.Error("a lane waits for a floor without a floor finder")
	}
	if g.Top != math.MaxInt64 {
		t.Errorf("the claim reads up to %d", g.Top)
	}
}

// TestExceptedEnded: when no excepted transaction is left, the floor rises to where the claims are, unless one of the
// transactions may have committed rows below that.
func TestExceptedEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ids           string
		left          []string
		committed     bool
		floor, reach  int64
		decided, tops int64
	}{
		"rolled back":            {"n", nil, false, 200, 200, 300, 250},
		"one is left":            {"n", []string{"18"}, false, 100, 200, 100, 250},
		"committed":              {"n", nil, true, 100, 100, 300, 150},
		"committed, one is left": {"n", []string{"18"}, true, 100, 100, 100, 150},
		"in an old numbering":    {"m", nil, true, 100, 200, 100, 250},
	} {
		table, l := floored(t)
		if len(c.left) > 0 {
			table.since["18"] = 100
		}
		_, _, _, falls := table.NextSlice(300, 100)
		table.RaiseFloors("n", falls, map[int16]int64{1: 200}, nil)
		if l.floor != 100 || l.reach != 200 {
			t.Fatalf("floor %d, reach %d", l.floor, l.reach)
		}
		table.ExceptedEnded(c.ids, c.left, c.committed)
		l.ready = true
		g := next(t, table)
		if g.Floor != c.floor || g.Reach != c.reach || g.Decided != c.decided || g.Reached != 300 || g.Top != c.tops {
			t.Errorf("%s: the next claim is %+v", name, g)
		}
		if fell := g.Falls > falls; fell != (c.committed && c.ids == "n") {
			t.Errorf("%s: floors fell: %v", name, fell)
		}
	}
}

// TestExceptionsThatOverlap: some transaction is always excepted. Floors follow to where the oldest of those that are
// left was excepted, so that the next COMMIT has them fall no further.
func TestExceptionsThatOverlap(t *testing.T) {
	t.Parallel()
	table, l := floored(t)
	raise := func(to int64) {
		_, _, _, falls := table.NextSlice(to, 1000)
		table.RaiseFloors("n", falls, map[int16]int64{1: to}, nil)
	}
	raise(300)
	table.Decided("n", 500, []string{"17", "18"})
	raise(500)
	if l.floor != 100 || l.reach != 500 {
		t.Errorf("while 17 is excepted: floor %d, reach %d", l.floor, l.reach)
	}
	table.ExceptedEnded("n", []string{"18"}, true)
	if l.floor != 100 || l.reach != 100 {
		t.Errorf("17 has committed: floor %d, reach %d", l.floor, l.reach)
	}
	raise(500)
	table.Decided("n", 700, []string{"18", "19"})
	raise(700)
	if l.floor != 300 || l.reach != 700 {
		t.Errorf("18 is excepted since 300: floor %d, reach %d", l.floor, l.reach)
	}
	table.ExceptedEnded("n", []string{"19"}, false)
	if l.floor != 500 || l.reach != 700 {
		t.Errorf("18 has rolled back, 19 is excepted since 500: floor %d, reach %d", l.floor, l.reach)
	}
	table.ExceptedEnded("n", nil, false)
	if l.floor != 700 {
		t.Errorf("none is excepted: floor %d", l.floor)
	}
	table.Decided("n", 900, []string{"20"})
	table.ResetFloors("m")
	if table.Decided("m", 950, []string{"20"}); table.decided != 0 {
		t.Errorf("another server's transaction has the id of one: decided up to %d", table.decided)
	}
}

// TestLagging: a lane is read in slices while at least one whole slice of decided ids is above its floor.
func TestLagging(t *testing.T) {
	t.Parallel()
	table, l := floored(t)
	for _, c := range []struct {
		limit  int64
		behind int
	}{{149, 0}, {150, 1}, {300, 1}} {
		table.Decided("n", c.limit, nil)
		l.reach, l.floor, l.ready = 100, 100, false
		if got := table.Lagging(); got != c.behind {
			t.Errorf("%d decided: %d lanes lag", c.limit, got)
		}
		if probed, _, _ := table.ToProbe(); len(probed) != 1-c.behind {
			t.Errorf("%d decided: %v are probed", c.limit, probed)
		}
	}
	table.Decided("n", 150, []string{"17"})
	if table.Undecidable(); table.Lagging() != 1 {
		t.Error("a lane lags although no further ids are decided")
	}
	table.ResetFloors("n")
	if table.Lagging() != 1 {
		t.Error("no lane waits for its first floor")
	}
	if table.Undecidable(); table.Lagging() != 0 {
		t.Error("a lane waits for ids that cannot be decided")
	}
}

// TestSlices: lanes below the reached id are read next, up to that id. Found rows make those lanes ready that probes do
// not cover.
func TestSlices(t *testing.T) {
	t.Parallel()
	table, l := floored(t)
	if lanes, _, _, _ := table.NextSlice(100, 50); len(lanes) > 0 {
		t.Errorf("lanes %v are at the reached id, and are read", lanes)
	}
	lanes, floors, tops, falls := table.NextSlice(101, 50)
	if !slices.Equal(lanes, []int16{1}) || !slices.Equal(floors, []int64{100}) || !slices.Equal(tops, []int64{101}) {
		t.Errorf("the next slice is %v from %v to %v", lanes, floors, tops)
	}
	raise := func(found map[int16]int64) bool { return table.RaiseFloors("n", falls, map[int16]int64{1: 110}, found) }
	if raise(nil) || l.ready || l.floor != 100 || l.reach != 110 {
		t.Errorf("the lane is %+v", l)
	}
	if table.RaiseFloors("m", falls, map[int16]int64{1: 140}, map[int16]int64{1: 120}) || l.reach != 110 || l.ready {
		t.Error("a slice in another numbering raises a floor, or finds a row")
	}
	if !raise(map[int16]int64{1: 1}) || !l.ready {
		t.Error("the found row makes no lane ready")
	}
	l.ready = false
	table.Decided("n", 120, nil)
	if raise(map[int16]int64{1: 115}) || l.ready {
		t.Error("a lane that probes cover is made ready")
	}
}

// TestFloorsAbove: late events may be below these floors; lanes with a backlog are left out.
func TestFloorsAbove(t *testing.T) {
	t.Parallel()
	table, l := floored(t)
	if lanes, floors, ids := table.FloorsAbove(99); !slices.Equal(lanes, []int16{1}) ||
		!slices.Equal(floors, []int64{100}) || ids != "n" {
		t.Errorf("above 99: %v %v in %q", lanes, floors, ids)
	}
	for _, bulk := range []bool{true, false} {
		l.bulk = bulk
		if lanes, floors, _ := table.FloorsAbove(100); lanes == nil || floors == nil || len(lanes)+len(floors) > 0 {
			t.Errorf("above 100: %v %v; nil would reach Postgres as null", lanes, floors)
		}
	}
	l.bulk = true
	if lanes, _, _ := table.FloorsAbove(99); len(lanes) > 0 {
		t.Error("a lane with a backlog is included")
	}
	if lanes, floors, _ := New(Pumps).Reaches(); lanes == nil || floors == nil {
		t.Error("nil would reach Postgres as null")
	}
	if lanes, firsts := New(Pumps).Journals(); lanes == nil || firsts == nil {
		t.Error("nil would reach Postgres as null")
	}
}

// TestPastDecided: a lane with a large backlog has claimed past the decided ids.
func TestPastDecided(t *testing.T) {
	t.Parallel()
	table, l := floored(t)
	for _, c := range []struct {
		bulk bool
		last int64
		want bool
	}{{true, 301, true}, {true, 300, false}, {false, 301, false}, {false, 0, false}} {
		l.bulk, l.pace.Last = c.bulk, c.last
		if table.PastDecided() != c.want {
			t.Errorf("%+v: %v", c, !c.want)
		}
	}
}

// TestFeeds: a lane that was assigned, offered, handed over or given back to the pumps belongs to exactly one feed.
func TestFeeds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from string
		do   func(t *Table, i int16)
		want string
	}{
		"to the pumps": {"unassigned", func(t *Table, i int16) { t.Assign([]int16{i}, Pumps) }, "pumps ready"},
		"to the pumps, parked": {
			"unassigned parked", func(t *Table, i int16) { t.Assign([]int16{i}, Pumps) }, "pumps ready parked",
		},
		"to the WAL":       {"unassigned", func(t *Table, i int16) { t.Assign([]int16{i}, WAL) }, "wal parked"},
		"already assigned": {"offered", func(t *Table, i int16) { t.Assign([]int16{i}, WAL) }, "offered"},
		"withdrawn":        {"offered", func(t *Table, _ int16) { t.Withdraw() }, "pumps ready"},
		"offered again":    {"offered doubt", func(t *Table, _ int16) { t.Offer() }, "pumps doubt"},
		"not followed":     {"wal", func(t *Table, _ int16) { t.Unfollowed() }, "unassigned ready"},
		"handed over, woken": {"offered busy", func(t *Table, i int16) {
			t.Woken()
			t.HandedOver(i, int64(i)+10)
			t.home(GiveBack(&Grant{Lane: i, Fence: int64(i) + 10}), nil)
		}, "wal"},
	} {
		table := of(c.from)
		for i, l := range table.owned {
			if c.do(table, i); l.is() != c.want {
				t.Errorf("%s: the lane is %q, want %q", name, l.is(), c.want)
			}
		}
	}
}
