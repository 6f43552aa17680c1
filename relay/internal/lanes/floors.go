package lanes

import (
	"cmp"
	"math"
	"strings"
)

// farIDs is how far claims and looks go above a floor that is on its way.
const farIDs = 1 << 18

// ExpectFloors makes claims and looks wait for floors: somebody finds them.
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

// Undecidable notes that until more is decided no floor rises beyond what is. Nobody waits for that.
func (t *Table) Undecidable() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = t.reached
}

// ResetFloors puts every floor at zero; those found later belong to the numbering of ids.
func (t *Table) ResetFloors(ids string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resetFloors(ids)
}

func (t *Table) resetFloors(ids string) {
	t.falls++
	t.ids, t.decided, t.reached, t.except, t.limit = ids, 0, 0, nil, 0
	if t.expected {
		t.limit = math.MaxInt64 // it is not known yet how far they rise
	}
	for _, l := range t.owned {
		l.floor, l.reach = 0, 0
	}
}

// Decided notes up to which id everything is decided, or was drawn by transactions that are excepted.
func (t *Table) Decided(ids string, highest int64, except []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids != ids {
		return
	}
	t.reached, t.except, t.limit = highest, except, highest
	if len(except) == 0 {
		t.decided = highest
	}
}

// ExceptedEnded notes that excepted transactions have ended, all but those left. When one may have committed, its rows
// may be anywhere below what lanes have reached.
func (t *Table) ExceptedEnded(ids string, left []string, committed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids != ids {
		return
	}
	t.except = left
	if len(left) == 0 {
		t.decided = t.reached
	}
	if committed {
		t.falls++
	}
	for _, l := range t.owned {
		switch {
		case committed:
			l.reach = l.floor
		case len(left) == 0:
			l.floor = l.reach
		}
	}
}

// known is the numbering with the excepted transactions, as statements take it.
func (t *Table) known() string {
	if len(t.except) == 0 {
		return t.ids
	}
	return t.ids + " {" + strings.Join(t.except, ",") + "}"
}

// behind: what is dead above the lane's floor is still to be passed.
func (t *Table) behind(l *state) bool { return l.reach+t.far <= t.limit }

// Behind is of how many lanes that is so.
func (t *Table) Behind() int { return len(t.list(t.behind)) }

// top is up to which id a claim of the lane reads.
func (t *Table) top(l *state) int64 {
	if t.behind(l) {
		return l.reach + t.far
	}
	return math.MaxInt64
}

// PastDecided reports whether lanes that have much to send are past what is decided: their floors do not follow them.
func (t *Table) PastDecided() bool {
	return t.any(func(l *state) bool { return l.bulk && l.pace.Last > t.reached })
}

// ToProbe lists the quiet lanes with their floors, and the numbering that these are in with the excepted transactions.
// Lanes that are behind are looked at in slices.
func (t *Table) ToProbe() (lanes []int16, floors []int64, ids string) {
	return t.reaches(func(l *state) bool { return l.quiet() && !t.behind(l) })
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

// FloorsAbove lists the lanes whose floors are above an id, and the numbering that these are in, without exceptions. A
// lane that has much is left out until it has caught up: below its floor may be millions of rows that it has just
// deleted.
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

// Journals lists the lanes with the number that an entry which is open unexpectedly has at least: a crash takes back
// the last settle of a lane and no earlier one. Where nothing was settled under this fence there is none.
func (t *Table) Journals() (lanes []int16, firsts []int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lanes, firsts = []int16{}, []int64{}
	for i, l := range t.owned {
		lanes, firsts = append(lanes, i), append(firsts, cmp.Or(l.settled, math.MaxInt64))
	}
	return lanes, firsts
}

// NextSlice lists the lanes that are below what is reached, where they are, and up to where they are looked at next: so
// many ids further. Falls is for RaiseFloors.
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

// RaiseFloors gives lanes their new floors, unless floors fell since they were looked for; what is not known of a lane
// leaves it as it is. Nobody else looks at lanes that are behind: they are ready when something was found there. It
// reports whether one is.
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
		was := t.behind(l)
		l.reach = max(l.reach, floor)
		if len(t.except) == 0 {
			l.floor = l.reach
		}
		if was && found[i] > 0 {
			l.ready, ready = true, true
		}
	}
	return ready
}

// DropFloors puts the floors of lanes at zero: something stands below them, so the lanes are ready.
func (t *Table) DropFloors(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.falls++
	for l := range t.each(lanes) {
		l.floor, l.reach, l.ready = 0, 0, true
	}
}
