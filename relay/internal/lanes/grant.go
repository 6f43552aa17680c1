package lanes

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/effectonce/effectonce/relay/internal/delivery"
)

// Grant is a lane for one claim of a pump.
type Grant struct {
	Lane      int16
	Fence     int64
	Next, End int64  // rest of its block of numbers
	Epoch     string // the incarnation of the numbering
	Floor     int64  // no row at or below it
	Reach     int64  // the same but for excepted transactions
	Top       int64  // the id up to which the claim reads
	Settled   int64  // first number of the last settled entry; 0: none under this fence
	IDs       string // the numbering of the floor, and the excepted transactions
	Decided   int64  // every id up to it was decided before the claim
	Reached   int64  // the same but for excepted transactions
	Falls     int    // how often floors fell before the claim
	Fresh     bool   // the claim must read the journal
	Reads     int    // how often all journals had to be read before the claim
	Due       bool   // may have scheduled events whose time has come
	Parked    bool   // may have events parked, or marks of keys
	Releasing bool   // some parked events are to be released
	Groups    delivery.Groups
	Turn      int  // how often the lane was taken
	Strikes   int  // how often its claims timed out
	Bulk      bool // had more events than a claim takes, none of them large, and not far above the floor
	Pace      Pace
}

// Settlement is the state of a lane after a settle.
type Settlement struct {
	First  int64            // first number of the deleted entry
	Floor  int64            // up to it only excepted rows are left; 0: not known
	Held   []delivery.Place // the places that the lane holds events for now, and did not before
	Parked bool             // it has parked events
	More   bool             // there may be more events
	Bulk   bool             // there are many more
	Pace   Pace
	Easily bool // four times as many would have fitted into the time
}

// Take grants one of n pumps the ready lanes of its part, for one claim.
func (t *Table) Take(pump, n int, now time.Time) []Grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	var free []int16
	for i := int16(pump); i < Count; i += int16(n) {
		if l := t.owned[i]; l != nil && l.feed == Pumps && l.ready && l.free(now) {
			free = append(free, i)
		}
	}
	return t.grant(t.together(free, Count/n))
}

// TakeOffered grants the offered lanes that are not busy.
func (t *Table) TakeOffered(now time.Time) []Grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	var free []int16
	for i := range int16(Count) {
		if l := t.owned[i]; l != nil && l.feed == Offered && l.free(now) {
			free = append(free, i)
		}
	}
	return t.grant(free)
}

// free reports whether a claim of the lane may begin.
func (l *state) free(now time.Time) bool {
	return !l.busy && l.certain() && now.Before(l.deadline) && !now.Before(l.rest)
}

// together chooses the lanes of one claim, at most so many. Lanes whose claims timed out are claimed apart from the
// others, half as many each time: a lane that cannot be claimed must not stop the others. Those that have waited
// longest come first. So is one whose due events could not be moved.
func (t *Table) together(lanes []int16, most int) []int16 {
	t.takes++
	if i := slices.IndexFunc(lanes, func(i int16) bool { return t.owned[i].due && t.owned[i].dueFail > 0 }); i >= 0 {
		return lanes[i : i+1]
	}
	if !slices.ContainsFunc(lanes, func(i int16) bool { return t.owned[i].strikes > 0 }) {
		return lanes
	}
	slices.SortStableFunc(lanes, func(a, b int16) int { return cmp.Compare(t.owned[a].taken, t.owned[b].taken) })
	strikes := t.owned[lanes[0]].strikes
	lanes = slices.DeleteFunc(lanes, func(i int16) bool { return t.owned[i].strikes != strikes })
	return lanes[:min(len(lanes), max(most>>strikes, 1))]
}

func (t *Table) grant(lanes []int16) []Grant {
	out := make([]Grant, 0, len(lanes))
	for _, i := range lanes {
		l := t.owned[i]
		l.busy, l.woken, l.taken = true, false, t.takes
		l.turn++
		g := Grant{
			Lane: i, Fence: l.fence, Next: l.next, End: l.end, Settled: l.settled, Due: l.due, Parked: l.parked,
			Releasing: l.releasing, Groups: l.groups, Turn: l.turn, Strikes: l.strikes, Pace: l.pace,
		}
		t.fill(&g, l)
		out = append(out, g)
	}
	return out
}

// fill sets the fields of a grant that depend on all lanes: numbers, floors and journals.
func (t *Table) fill(g *Grant, l *state) {
	g.Epoch, g.IDs, g.Decided, g.Reached, g.Falls, g.Reads = t.epoch, t.known(), t.decided, t.reached, t.falls, t.reads
	g.Floor, g.Reach, g.Top, g.Fresh = l.floor, l.reach, t.top(l), l.fresh || l.read != t.reads
	g.Bulk = l.bulk && l.pace.Last-l.reach <= t.far
}

// Refresh updates grants once there is a connection for the claim. Blocks that were reserved on another server are
// dropped.
func (t *Table) Refresh(grants []Grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range grants {
		g := &grants[i]
		l := t.get(g.Lane, g.Fence)
		if l == nil {
			g.Epoch, g.IDs = t.epoch, t.known()
			g.Fresh, g.Floor, g.Reach, g.Top, g.Decided, g.Reached = true, 0, 0, math.MaxInt64, 0, 0
			continue
		}
		t.fill(g, l)
		if l.read != t.reads {
			g.Next, g.End = 0, 0
		}
	}
}

// Idle reports whether one of n pumps has no work and waits for none. A lane without a feed may become its own.
func (t *Table) Idle(pump, n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, l := range t.owned {
		work := l.feed == Pumps && (l.ready || l.busy || l.doubt || len(l.groups) > 0)
		if int(i)%n == pump && (work || l.feed == Unassigned) {
			return false
		}
	}
	return true
}

// Claimed records a claim's findings about a lane, once it is committed.
func (t *Table) Claimed(g *Grant) {
	t.update(g.Lane, g.Fence, func(l *state) {
		l.next, l.end, l.parked, l.releasing, l.groups = g.Next, g.End, g.Parked, g.Releasing, g.Groups
	})
}

// MovedDue records that due events of a lane were moved; more: perhaps not all.
func (t *Table) MovedDue(lane int16, fence int64, more bool) {
	t.update(lane, fence, func(l *state) { l.due, l.dueFail = more, 0 })
}

// DueRefused records that the work on a lane was refused, perhaps for its due events: it goes on without them for a
// while, the longer the more often that happened.
func (t *Table) DueRefused(lane int16, fence int64, now time.Time) {
	t.update(lane, fence, func(l *state) {
		l.dueFail++
		l.due, l.dueRest = false, now.Add(restFor(l.dueFail))
	})
}

func restFor(fails int) time.Duration {
	if fails >= mostStrikes {
		return longestRest
	}
	return 10 * time.Millisecond << fails
}

// longestRest bounds what a lane still waits once its work is no longer refused.
const longestRest = 5 * time.Second

// mostStrikes is the number of strikes at which a claim has one lane and one event, whatever the configuration.
const mostStrikes = 9

// Rested returns when the first ready lane of one of n pumps will have rested; zero: none rests. Nothing else tells: a
// ready lane is not probed.
func (t *Table) Rested(pump, n int, now time.Time) (first time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, l := range t.owned {
		if int(i)%n == pump && l.feed == Pumps && l.ready && now.Before(l.rest) &&
			(first.IsZero() || l.rest.Before(first)) {
			first = l.rest
		}
	}
	return first
}

// Verdict says how the work on a granted lane ends. Make one with [GiveBack], [Doubted], [Unsettled], [Empty] or
// [Settled].
type Verdict struct {
	*Grant
	failed int
	end    func(t *Table, l *state, closed map[delivery.Place]bool)
}

// Failed adds that a claim or settle of so many lanes, this one among them, timed out or was refused. Their next claim
// is a quarter of it: half as many lanes, and half as much of each; repeated at the same size it would fail for ever. A
// lane that fails alone rests before it, the longer the more often it has failed.
func (v Verdict) Failed(lanes int) Verdict {
	v.failed = lanes
	return v
}

// GiveBack ends the work without a claim.
func GiveBack(g *Grant) Verdict {
	return Verdict{Grant: g, end: func(*Table, *state, map[delivery.Place]bool) {}}
}

// Doubted ends the work with a transaction of unknown outcome, or because another relay may own the lane.
func Doubted(g *Grant) Verdict {
	return Verdict{Grant: g, end: func(_ *Table, l *state, _ map[delivery.Place]bool) { l.doubt = true }}
}

// Unsettled ends the work on a lane whose entry stays open: the next claim reads it. late: another relay may own the
// lane by now.
func Unsettled(g *Grant, late bool) Verdict {
	return Verdict{Grant: g, end: func(_ *Table, l *state, _ map[delivery.Place]bool) {
		l.fresh, l.ready, l.doubt = true, true, l.doubt || late
	}}
}

// Empty ends the work on a lane without events to send; more: perhaps because its claim did other work.
func Empty(g *Grant, more bool) Verdict {
	return Verdict{Grant: g, end: func(_ *Table, l *state, closed map[delivery.Place]bool) {
		l.fresh, l.read, l.ready, l.bulk = false, g.Reads, more || l.besideReady(closed), false
	}}
}

// Settled ends the work on a lane whose entry is deleted. Its floor rises unless floors fell since the claim: the
// claim's knowledge may be void.
func Settled(g *Grant, s *Settlement) Verdict {
	return Verdict{Grant: g, end: func(t *Table, l *state, closed map[delivery.Place]bool) {
		if t.falls == g.Falls {
			l.floor = max(l.floor, min(s.Floor, g.Decided))
			l.reach = max(l.reach, s.Floor)
		}
		l.fresh, l.read, l.settled, l.parked = false, g.Reads, s.First, l.parked || s.Parked
		l.groups = l.groups.With(s.Held)
		if l.strikes > 0 && s.Easily {
			l.strikes--
		}
		l.ready, l.bulk, l.pace = s.More || l.besideReady(closed), s.Bulk && l.strikes == 0, s.Pace
	}}
}

// Home ends the work on lanes, and reports whether a heartbeat must handle one of them. closed are the closed places.
func (t *Table) Home(verdicts []Verdict, closed map[delivery.Place]bool, now time.Time) (beat bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range verdicts {
		l := t.get(v.Lane, v.Fence)
		if l == nil {
			continue
		}
		if v.failed > 0 {
			l.strikes = min(l.strikes+1, mostStrikes)
		}
		if v.failed == 1 {
			l.rest = now.Add(restFor(l.strikes))
		}
		v.end(t, l, closed)
		l.giveBack()
		beat = beat || !l.certain()
	}
	return beat
}

// besideReady reports whether the lane has held or released events that can be sent.
func (l *state) besideReady(closed map[delivery.Place]bool) bool {
	return l.due || l.releasing || len(l.groups.Open(closed)) > 0
}

func (l *state) giveBack() {
	l.busy, l.ready = false, l.ready || l.woken
	l.given++
}

// Deadline returns the earliest deadline of the grants, or false if one of them was lost.
func (t *Table) Deadline(grants []Grant) (earliest time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range grants {
		l := t.get(grants[i].Lane, grants[i].Fence)
		if l == nil || l.doubt {
			return time.Time{}, false
		}
		if i == 0 || l.deadline.Before(earliest) {
			earliest = l.deadline
		}
	}
	return earliest, true
}

// top returns the id up to which a claim of the lane reads.
func (t *Table) top(l *state) int64 {
	if t.lagging(l) {
		return l.reach + t.far
	}
	return math.MaxInt64
}

// get returns a lane if it has that fence.
func (t *Table) get(lane int16, fence int64) *state {
	if l := t.owned[lane]; l != nil && l.fence == fence {
		return l
	}
	return nil
}

// update changes a lane if it has that fence.
func (t *Table) update(lane int16, fence int64, change func(l *state)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.get(lane, fence); l != nil {
		change(l)
	}
}
