package lanes

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/relay/internal/delivery"
)

// kinds are lanes named after their state. A lane's number is the index of its kind, and its fence is ten higher.
var kinds = []struct {
	name string
	is   state
}{
	{"quiet", state{}},
	{"ready", state{ready: true}},
	{"busy", state{busy: true}},
	{"busy ready", state{busy: true, ready: true}},
	{"doubt", state{doubt: true}},
	{"leaving", state{leaving: true}},
	{"busy doubt", state{busy: true, doubt: true}},
	{"busy leaving", state{busy: true, leaving: true}},
	{"doubt leaving", state{doubt: true, leaving: true}},
	{"parked", state{parked: true}},
	{"busy parked", state{parked: true, busy: true}},
	{"releasing", state{releasing: true}},
	{"ready releasing", state{releasing: true, ready: true}},
	{"holds", state{groups: delivery.Groups{"orders": {3}}}},
	{"ready holds", state{groups: delivery.Groups{"orders": {3}}, ready: true}},
	{"whole", state{groups: delivery.Groups{"orders": {delivery.WholeTopic}}}},
	{"wal", state{feed: WAL}},
	{"wal doubt", state{feed: WAL, doubt: true}},
	{"wal leaving", state{feed: WAL, leaving: true}},
	{"wal parked", state{feed: WAL, parked: true}},
	{"wal releasing", state{feed: WAL, releasing: true}},
	{"unassigned", state{feed: Unassigned}},
	{"unassigned parked", state{feed: Unassigned, parked: true}},
	{"unassigned leaving", state{feed: Unassigned, leaving: true}},
	{"offered", state{feed: Offered}},
	{"offered parked", state{feed: Offered, parked: true}},
	{"offered busy", state{feed: Offered, busy: true}},
	{"offered doubt", state{feed: Offered, doubt: true}},
}

// of returns a table with lanes of some kinds, by default of all.
func of(names ...string) *Table {
	table := New(Pumps)
	for i, k := range kinds {
		if len(names) == 0 || slices.Contains(names, k.name) {
			l := k.is
			l.fence, l.deadline = int64(i)+10, later
			table.owned[int16(i)] = &l
		}
	}
	return table
}

// named returns the kinds of lanes, in the order of their numbers.
func named(lanes []int16) string {
	var names []string
	for _, i := range slices.Sorted(slices.Values(lanes)) {
		names = append(names, kinds[i].name)
	}
	return strings.Join(names, ", ")
}

// fenced is named for lanes that are returned with their fences.
func fenced(t *testing.T, lanes []int16, fences []int64) string {
	t.Helper()
	for n, i := range lanes {
		if len(fences) != len(lanes) || fences[n] != int64(i)+10 {
			t.Errorf("lanes %v have the fences %v", lanes, fences)
		}
	}
	return named(lanes)
}

// TestLists: which lanes are probed, claimed, raised and released.
func TestLists(t *testing.T) {
	t.Parallel()
	var offered []int16
	for _, g := range of().TakeOffered(now) {
		offered = append(offered, g.Lane)
	}
	if late := of().TakeOffered(later); len(late) > 0 {
		t.Errorf("lanes %v are granted after their deadline", late)
	}
	unassigned, fences := of().Unassigned()
	wal, walFences := of().FromWAL()
	probed, _, _ := of().ToProbe()
	const quiet = "quiet, parked, releasing, holds, whole, offered, offered parked"
	for name, c := range map[string]struct{ got, want string }{
		"Quiet":        {named(of().Quiet()), quiet},
		"ToProbe":      {named(probed), quiet},
		"Parked":       {named(of().Parked()), "parked, wal parked, offered parked"},
		"InDoubt":      {named(of().InDoubt()), "doubt, doubt leaving, wal doubt, offered doubt"},
		"Releasable":   {named(of().Releasable()), "leaving, wal leaving, unassigned leaving"},
		"Unassigned":   {fenced(t, unassigned, fences), "unassigned, unassigned parked"},
		"FromWAL":      {fenced(t, wal, walFences), "wal, wal parked, wal releasing"},
		"of the WAL":   {named(of().ReleasingFromWAL()), "wal releasing"},
		"TakeOffered":  {named(offered), "offered, offered parked"},
		"AskDue":       {named(of("quiet", "busy", "doubt", "leaving", "wal").AskDue(time.Now())), "quiet, busy, wal"},
		"All":          {named(of("quiet", "doubt leaving").All()), "quiet, doubt leaving"},
		"Offer":        {some(of(), (*Table).Offer), "true, true"},
		"Offer, idle":  {some(of("ready", "doubt"), (*Table).Offer), "true, false"},
		"Offer, holds": {some(of("holds", "releasing", "doubt", "wal"), (*Table).Offer), "false, false"},
		"Offer, both":  {some(of("busy", "quiet", "ready"), (*Table).Offer), "true, true"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", name, c.got, c.want)
		}
	}
	if New(Pumps).Quiet() == nil {
		t.Error("an empty list is nil, and would reach Postgres as null")
	}
}

func some(table *Table, ask func(*Table) (bool, bool)) string {
	a, b := ask(table)
	words := map[bool]string{true: "true", false: "false"}
	return words[a] + ", " + words[b]
}

// TestQuestions: for which kinds of lane a table with one such lane answers yes.
func TestQuestions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ask  func(*Table) bool
		want string
	}{
		"Working": {
			(*Table).Working,
			"ready, busy, busy ready, busy doubt, busy leaving, busy parked, ready releasing, ready holds, " +
				"offered busy",
		},
		"Moving": {
			(*Table).Moving,
			"doubt, leaving, busy doubt, busy leaving, doubt leaving, wal doubt, wal leaving, unassigned leaving, " +
				"offered doubt",
		},
		"Beside":     {(*Table).Beside, "ready releasing, ready holds"},
		"AllFromWAL": {(*Table).AllFromWAL, "wal, wal doubt, wal leaving, wal parked, wal releasing"},
		"not Idle": {
			func(t *Table) bool { return !t.Idle(0, 1) },
			"ready, busy, busy ready, doubt, busy doubt, busy leaving, doubt leaving, busy parked, ready releasing, " +
				"holds, ready holds, whole, unassigned, unassigned parked, unassigned leaving",
		},
	} {
		var yes []int16
		for i, k := range kinds {
			if c.ask(of(k.name)) {
				yes = append(yes, int16(i))
			}
		}
		want := strings.Split(c.want, ", ")
		for _, i := range yes {
			if !slices.Contains(want, kinds[i].name) {
				t.Errorf("%s is true of %q", name, kinds[i].name)
			}
		}
		if len(yes) != len(want) {
			t.Errorf("%s is true of %q, want %q", name, named(yes), c.want)
		}
	}
	if New(WAL).AllFromWAL() || of("wal", "quiet").AllFromWAL() || !of("wal", "wal parked").AllFromWAL() {
		t.Error("AllFromWAL is true of a table with a lane of the pumps, or false without one")
	}
	if !of("ready").Idle(0, 2) || of("ready").Idle(1, 2) {
		t.Error("the answer to a pump includes other pumps' lanes")
	}
}

// TestLeave: lanes without work leave first, and lanes that are already leaving count.
func TestLeave(t *testing.T) {
	t.Parallel()
	leaving := func(table *Table) (n, busy int) {
		for _, l := range table.owned {
			if l.leaving {
				n++
				if l.busy {
					busy++
				}
			}
		}
		return n, busy
	}
	for _, c := range []struct{ ask, all, busy int }{
		{-1, 5, 2},
		{0, 1, 0},
		{1, 1, 0},
		{2, 2, 0},
		{3, 3, 0},
		{4, 4, 1},
		{9, 5, 2},
	} {
		table := of("leaving", "quiet", "ready", "busy", "busy ready")
		table.Leave(c.ask)
		if all, busy := leaving(table); all != c.all || busy != c.busy {
			t.Errorf("of %d requested lanes %d leave, %d of them busy; want %d and %d", c.ask, all, busy, c.all, c.busy)
		}
	}
}

// TestLeases: which lanes are taken and which are lost. A lane that timed out in a claim stays slow under a new fence.
func TestLeases(t *testing.T) {
	t.Parallel()
	table := New(Pumps)
	taken, lost := table.Leased(map[int16]int64{1: 7, 2: 7}, later)
	if len(taken) != 2 || len(lost) != 0 {
		t.Errorf("taken %v, lost %v", taken, lost)
	}
	table.fail(2, Grant{Lane: 1, Fence: 7})
	taken, lost = table.Leased(map[int16]int64{1: 8, 3: 7}, later)
	slices.Sort(taken)
	slices.Sort(lost)
	if !slices.Equal(taken, []int16{1, 3}) || !slices.Equal(lost, []int16{1, 2}) {
		t.Errorf("taken %v, lost %v", taken, lost)
	}
	if table.owned[1].strikes != 1 || table.Fence(1) != 8 || table.Fence(2) != 0 {
		t.Errorf("lane 1 is %+v", table.owned[1])
	}
	if taken, lost = table.Leased(map[int16]int64{1: 8, 3: 7}, later); len(taken)+len(lost) > 0 {
		t.Errorf("the same lanes again: taken %v, lost %v", taken, lost)
	}
}

// TestDeadline: no event is sent after the earliest deadline of a claim's lanes.
func TestDeadline(t *testing.T) {
	t.Parallel()
	table := New(Pumps)
	table.Leased(map[int16]int64{1: 7, 2: 7, 3: 7}, later)
	early := later.Add(-time.Second)
	table.owned[2].deadline = early
	for _, lanes := range [][]int16{{1, 2, 3}, {2, 1}, {3, 2}, {2}} {
		var grants []Grant
		for _, i := range lanes {
			grants = append(grants, Grant{Lane: i, Fence: 7})
		}
		if got, ok := table.Deadline(grants); !ok || !got.Equal(early) {
			t.Errorf("the deadline of %v is %v, %v; want %v", lanes, got, ok, early)
		}
	}
	if _, ok := table.Deadline([]Grant{{Lane: 1, Fence: 6}}); ok {
		t.Error("a lane under another fence has a deadline")
	}
}
