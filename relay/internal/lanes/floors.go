package lanes

import (
	"cmp"
	"math"
	"strings"
)

// farIDs is how far claims and probes read above a floor that is still rising, and bulk reads above any.
const farIDs = 1 << 18

// ExpectFloors makes claims and probes wait for floors, which will be found.
func (t *Table) ExpectFloors() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expected, t.limit = true, math.MaxInt64
}

// IDs is the numbering that the floors belong to.
func (t *Table) IDs() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ids
}

// Undecidable records that floors cannot rise further until more ids are decided. No lane waits for that.
func (t *Table) Undecidable() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = t.reached
}

// ResetFloors sets every floor to zero; those found later belong to the numbering ids.
func (t *Table) ResetFloors(ids string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resetFloors(ids)
}

func (t *Table) resetFloors(ids string) {
	t.falls++
	t.ids, t.decided, t.reached, t.except, t.since, t.limit = ids, 0, 0, nil, nil, 0
	if t.expected {
		t.limit = math.MaxInt64 // it is not known yet how far they rise
	}
	for _, l := range t.owned {
		l.floor, l.reach = 0, 0
	}
}

// Decided records the id up to which all ids are decided, or were drawn by excepted transactions.
func (t *Table) Decided(ids string, highest int64, except []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids != ids {
		return
	}
	before := t.reached
	t.reached, t.limit = highest, highest
	t.setExcept(except, before)
}

// setExcept sets the excepted transactions. Those that are new have drawn ids above reached only: they did not hold the
// table's lock when that was decided.
func (t *Table) setExcept(except []string, reached int64) {
	since := make(map[string]int64, len(except))
	t.decided = t.reached
	for _, xid := range except {
		since[xid] = reached
		if at, known := t.since[xid]; known {
			since[xid] = at
		}
		t.decided = min(t.decided, since[xid])
	}
	t.except, t.since = except, since
}

// ExceptedEnded records that excepted transactions have ended, all but left. If one may have committed, its rows may be
// anywhere above the lanes' floors.
func (t *Table) ExceptedEnded(ids string, left []string, committed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids != ids {
		return
	}
	t.setExcept(left, t.reached)
	if committed {
		t.falls++
	}
	for _, l := range t.owned {
		if committed {
			l.reach = l.floor
		}
		l.floor = max(l.floor, min(l.reach, t.decided))
	}
}

// known returns the numbering with the excepted transactions, as statements take it.
func (t *Table) known() string {
	if len(t.except) == 0 {
		return t.ids
	}
	return t.ids + " {" + strings.Join(t.except, ",") + "}"
}

// lagging reports whether dead rows above the lane's floor have not been read yet.
func (t *Table) lagging(l *state) bool { return l.reach+t.far <= t.limit }

// Lagging returns the number of such lanes.
func (t *Table) Lagging() int { return len(t.list(t.lagging)) }

// PastDecided reports whether lanes with a backlog are past the decided ids: their floors do not follow them.
func (t *Table) PastDecided() bool {
	return t.any(func(l *state) bool { return l.bulk && l.pace.Last > t.reached })
}

// ToProbe lists the quiet lanes with their floors, and the numbering of these with the excepted transactions. Lanes
// that lag are read in slices instead.
func (t *Table) ToProbe() (lanes []int16, floors []int64, ids string) {
	return t.reaches(func(l *state) bool { return l.quiet() && !t.lagging(l) })
}

// Reaches is ToProbe for all lanes.
func (t *Table) Reaches() (lanes []int16, floors []int64, ids string) {
	return t.reaches(func(*state) bool { return true })
}

func (t *Table) reaches(want func(l *state) bool) (lanes []int16, floors []int64, ids string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lanes, floors = []int16{}, []int64{} // not nil: a nil slice would reach Postgres as null
	for i, l := range t.owned {
		if want(l) {
			lanes, floors = append(lanes, i), append(floors, l.reach)
		}
	}
	return lanes, floors, t.known()
}

// FloorsAbove lists the lanes whose floors are above an id, and the numbering of these, without exceptions. A lane with
// a backlog is left out until it has caught up: below its floor may be millions of rows that it has just deleted.
func (t *Table) FloorsAbove(id int64) (lanes []int16, floors []int64, ids string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lanes, floors = []int16{}, []int64{}
	for i, l := range t.owned {
		if l.floor > id && !l.bulk {
			lanes, floors = append(lanes, i), append(floors, l.floor)
		}
	}
	return lanes, floors, t.ids
}

// Journals lists the lanes, each with the lowest number that an unexpectedly open entry can have: a crash undoes the
// last settle of a lane and no earlier one. A lane without a settle under this fence has none.
func (t *Table) Journals() (lanes []int16, firsts []int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lanes, firsts = []int16{}, []int64{}
	for i, l := range t.owned {
		lanes, firsts = append(lanes, i), append(firsts, cmp.Or(l.settled, math.MaxInt64))
	}
	return lanes, firsts
}

// NextSlice lists the lanes that are below reached, their positions, and the ends of their next slices: so many ids
// further. falls is for RaiseFloors.
func (t *Table) NextSlice(reached, ids int64) (lanes []int16, floors, tops []int64, falls int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, l := range t.owned {
		if l.reach < reached {
			lanes, floors, tops = append(lanes, i), append(floors, l.reach), append(tops, min(l.reach+ids, reached))
		}
	}
	return lanes, floors, tops, t.falls
}

// RaiseFloors sets the floors of lanes, unless floors fell since they were read; a lane that is missing keeps its
// floor. Probes leave out lanes that lag, so they are made ready if a row was found. It reports whether one is.
func (t *Table) RaiseFloors(ids string, falls int, to, found map[int16]int64) (ready bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids != ids || t.falls != falls {
		return false
	}
	for i, floor := range to {
		l := t.owned[i]
		if l == nil {
			continue
		}
		was := t.lagging(l)
		l.reach = max(l.reach, floor)
		l.floor = max(l.floor, min(l.reach, t.decided))
		if was && found[i] > 0 {
			l.ready, ready = true, true
		}
	}
	return ready
}

// DropFloors sets the floors of lanes to zero: rows were found below them, so the lanes are ready.
func (t *Table) DropFloors(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.falls++
	for l := range t.each(lanes) {
		l.floor, l.reach, l.ready = 0, 0, true
	}
}
