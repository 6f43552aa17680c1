package relay

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// blockSize is how many sequence numbers a lane reserves at once. What a relay does not use of a block is a gap.
const blockSize = 1 << 20

// laneState is what a relay knows of a lane that it owns. The database has the last word: every claim and settle
// compares owner and fence there.
type laneState struct {
	fence    int64
	deadline time.Time // local and monotonic: nothing is sent for the lane after it
	// next and end are what is left of the reserved block, end included. A block belongs to its fence, and to the
	// server that it was reserved on: a lane that comes back, or whose journal must be read again, starts a new one, or
	// numbers could go back (P3.2).
	next, end int64
	floor     int64 // no row at or below it, now or ever: see floorFinder
	reach     int64 // the same but for excepted transactions
	settled   int64 // first number of the entry that was settled last; 0: none under this fence

	source  laneSource
	wanted  bool // the follower is to have it: pumps leave it alone
	read    int  // of laneTable.reads, as of when its journal was read
	fresh   bool // no claim yet under this fence: the journal may hold an open entry
	due     bool // may have scheduled events whose time has come
	ready   bool // may have events
	woken   bool // events may have come since a pump took it: ready again when the pump gives it back
	busy    bool // a pump works on it
	doubt   bool // the outcome of a transaction is unknown: the fence must be raised before the next claim (P3.7)
	leaving bool // to be released as soon as it is not busy

	// What the lane may have beside its events. Only this relay adds to it, so it is never less than there is; the
	// claim that finds less says so.
	parked    bool   // events, or marks of keys
	releasing bool   // some of what is parked is to be released
	groups    groups // where it holds events for
	turn      int    // of the works that its claims do
	strikes   int    // how often its claims did not fit into their time, less how often they did easily
	picked    int    // of laneTable.picks, as of when a pump last took it
	bulk      bool   // had more events than a claim takes, and none of them large
	pace      pace   // of its last claim
}

// grant is a lane as a pump took it from the table.
type grant struct {
	lane      int16
	fence     int64
	next, end int64
	epoch     string // of laneTable
	floor     int64
	reach     int64
	top       int64 // up to which id the claim reads
	settled   int64
	ids       string // the numbering that floor is in, and the excepted transactions
	decided   int64  // every id up to it was decided before the claim
	reached   int64  // the same but for them
	falls     int    // of laneTable.falls
	fresh     bool
	reads     int // of laneTable.reads
	due       bool
	parked    bool
	releasing bool
	groups    groups
	turn      int
	strikes   int
	bulk      bool
	pace      pace
}

// laneTable is the relay's view of its lanes, shared by keeper, prober and pumps.
type laneTable struct {
	mu    sync.Mutex
	owned map[int16]*laneState
	begin laneSource // of lanes that are taken
	picks int        // how often pumps have taken lanes
	epoch string     // the incarnation of the numbering that claims expect, as it was met last
	reads int        // how often the journal had to be read again, for every lane
	ids   string     // the numbering of event ids that the floors are in; "": there are none
	// decided: every id up to it is decided, in that numbering; reached: but for the transactions of except. See
	// floorFinder.
	decided, reached int64
	except           []string
	expected         bool  // somebody finds floors
	limit            int64 // floors rise up to it, if nothing stands below; 0: nobody knows how far
	far              int64
	falls            int // how often floors fell
}

func newLaneTable() *laneTable {
	return &laneTable{owned: make(map[int16]*laneState, Lanes), far: farIDs}
}

// sync takes over what the database says the relay owns, until deadline. A lane with another fence than remembered is
// begun anew.
func (t *laneTable) sync(now map[int16]int64, deadline time.Time) (taken, lost []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	strikes := map[int16]int{}
	for lane, l := range t.owned {
		if fence, ok := now[lane]; !ok || fence != l.fence {
			delete(t.owned, lane)
			strikes[lane] = l.strikes
			lost = append(lost, lane)
		}
	}
	for lane, fence := range now {
		l := t.owned[lane]
		if l == nil {
			l = &laneState{fence: fence, source: t.begin, read: t.reads, strikes: strikes[lane], fresh: true, ready: true, due: true}
			t.owned[lane] = l
			taken = append(taken, lane)
		}
		l.deadline = deadline
	}
	return taken, lost
}

// distrust forgets what is only true of a server that has not been away: a crash takes back settles that were not on
// the disk. Their entries are open again, and their rows stand below the floors. So every lane's next claim reads the
// journal.
func (t *laneTable) distrust() {
	t.mu.Lock()
	t.reads++
	t.mu.Unlock()
	t.resetFloors("")
}

// renumber notes the incarnation that was met. With a new one another server may have taken over, which lacks what
// the relay knows: every lane reads its journal, also one that nothing is appended to. It reports whether it is a new
// one.
func (t *laneTable) renumber(epoch string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch == epoch {
		return false
	}
	t.epoch = epoch
	t.reads++
	for _, l := range t.owned {
		l.ready, l.woken = l.ready || l.source == polled, l.busy
	}
	return true
}

// reread makes the next claim of lanes read the journal, and everything from zero.
func (t *laneTable) reread(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.falls++
	for _, lane := range lanes {
		if l := t.owned[lane]; l != nil {
			l.read, l.floor, l.reach, l.ready = -1, 0, 0, true
		}
	}
}

// pick takes the ready lanes of one of n pumps; the pump gives each back by done or doubt.
func (t *laneTable) pick(pump, n int, now time.Time) []grant {
	return t.pickFor(pump, n, now, true, func(l *laneState) bool { return l.ready && !l.wanted })
}

// pickFor takes those lanes of one of n pumps that it may have, or with apart those of them that go together.
func (t *laneTable) pickFor(pump, n int, now time.Time, apart bool, may func(l *laneState) bool) []grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lanes []int16
	for lane := int16(pump); lane < Lanes; lane += int16(n) {
		l := t.owned[lane]
		if l == nil || l.source != polled || !may(l) || l.busy || l.doubt || l.leaving || !now.Before(l.deadline) {
			continue
		}
		lanes = append(lanes, lane)
	}
	if apart {
		lanes = t.together(lanes, Lanes/n)
	}
	out := make([]grant, 0, len(lanes))
	for _, lane := range lanes {
		l := t.owned[lane]
		l.busy, l.woken, l.picked = true, false, t.picks
		l.turn++
		out = append(out, grant{
			lane: lane, fence: l.fence, next: l.next, end: l.end, epoch: t.epoch, floor: l.floor, reach: l.reach, top: t.top(l), settled: l.settled,
			ids: t.known(), decided: t.decided, reached: t.reached, falls: t.falls, fresh: l.fresh || l.read != t.reads, reads: t.reads, due: l.due,
			parked: l.parked, releasing: l.releasing, groups: l.groups, turn: l.turn, strikes: l.strikes, bulk: l.bulk, pace: l.pace,
		})
	}
	return out
}

// idle reports whether one of n pumps has nothing to do, nor waits for anything.
func (t *laneTable) idle(pump, n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for lane, l := range t.owned {
		if int(lane)%n == pump && l.source == polled && !l.wanted && (l.ready || l.busy || l.doubt || len(l.groups) > 0) {
			return false
		}
	}
	return true
}

// together chooses which of the lanes go into one claim, of at most so many. Lanes whose claims did not fit into their
// time go apart from the others, half as many each time: a lane that cannot be claimed must not take the others along.
// Those that have waited longest come first.
func (t *laneTable) together(lanes []int16, most int) []int16 {
	t.picks++
	if !slices.ContainsFunc(lanes, func(lane int16) bool { return t.owned[lane].strikes > 0 }) {
		return lanes
	}
	slices.SortStableFunc(lanes, func(a, b int16) int { return cmp.Compare(t.owned[a].picked, t.owned[b].picked) })
	strikes := t.owned[lanes[0]].strikes
	lanes = slices.DeleteFunc(lanes, func(lane int16) bool { return t.owned[lane].strikes != strikes })
	return lanes[:min(len(lanes), max(most>>strikes, 1))]
}

// renew brings grants up to what is known now of whether the journal must be read again, and whether their blocks last.
func (t *laneTable) renew(grants []grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range grants {
		g := &grants[i]
		g.epoch = t.epoch
		if l := t.owned[g.lane]; l == nil || l.fence != g.fence {
			g.fresh, g.floor, g.reach, g.top, g.decided, g.reached = true, 0, 0, math.MaxInt64, 0, 0
		} else {
			g.fresh, g.floor, g.reach, g.top, g.ids, g.reads = l.fresh || l.read != t.reads, l.floor, l.reach, t.top(l), t.known(), t.reads
			g.decided, g.reached, g.falls = t.decided, t.reached, t.falls
			if l.read != t.reads {
				g.next, g.end = 0, 0
			}
		}
	}
}

// update changes a lane if it is still the one of the fence.
func (t *laneTable) update(lane int16, fence int64, change func(l *laneState)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.owned[lane]; l != nil && l.fence == fence {
		change(l)
	}
}

// deadline is the earliest one of the grants, false when one of them is not ours any more.
func (t *laneTable) deadline(grants []grant) (earliest time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, g := range grants {
		l := t.owned[g.lane]
		if l == nil || l.fence != g.fence || l.doubt {
			return time.Time{}, false
		}
		if i == 0 || l.deadline.Before(earliest) {
			earliest = l.deadline
		}
	}
	return earliest, true
}

// list returns the lanes for which want is true.
func (t *laneTable) list(want func(l *laneState) bool) []int16 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []int16{} // not nil: a nil slice would reach Postgres as null
	for lane, l := range t.owned {
		if want(l) {
			out = append(out, lane)
		}
	}
	return out
}

// doubtAll puts every lane in doubt: a heartbeat's own outcome is unknown.
func (t *laneTable) doubtAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		l.doubt = true
	}
}

// leave marks n lanes as leaving (all when n < 0), those without work first, counting the ones that leave already.
func (t *laneTable) leave(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n < 0 {
		n = len(t.owned)
	}
	for _, l := range t.owned {
		if l.leaving {
			n--
		}
	}
	for _, busy := range []bool{false, true} {
		for _, l := range t.owned {
			if n > 0 && !l.leaving && l.busy == busy {
				l.leaving = true
				n--
			}
		}
	}
}

// stay takes back the leaving of every lane: the relay that they were meant for is gone.
func (t *laneTable) stay() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		l.leaving = false
	}
}

// drop forgets released lanes.
func (t *laneTable) drop(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lane := range lanes {
		delete(t.owned, lane)
	}
}

// awaken marks lanes as ready.
func (t *laneTable) awaken(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lane := range lanes {
		if l := t.owned[lane]; l != nil {
			l.ready = true
		}
	}
}

// wake makes lanes ready that a probe will not ask about because a pump has them: what the pump's claim read may be
// older than the events that somebody told of.
func (t *laneTable) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		l.woken = l.busy
	}
}

// awakenHolding makes lanes ready that hold events of a topic.
func (t *laneTable) awakenHolding(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		if len(l.groups[topic]) > 0 {
			l.ready = true
		}
	}
}

// holding chooses a lane for each place whose first held event may be tried: one that holds nothing older of that
// topic. The places that none can be found for are in without.
func (t *laneTable) holding(places []place) (found map[place]grant, without []place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found = make(map[place]grant, len(places))
	for _, at := range places {
		for lane, l := range t.owned {
			if l.doubt || !l.groups.has(at) || (at.partition == wholeTopic && len(l.groups[at.topic]) > 1) {
				continue
			}
			found[at] = grant{lane: lane, fence: l.fence}
			break
		}
		if _, ok := found[at]; !ok {
			without = append(without, at)
		}
	}
	return found, without
}

// holdsAny reports whether some lane holds events for a place.
func (t *laneTable) holdsAny(at place) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		if l.groups.has(at) {
			return true
		}
	}
	return false
}

// releasing makes lanes ready that have something to release.
func (t *laneTable) releasing(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lane := range lanes {
		if l := t.owned[lane]; l != nil {
			l.ready, l.releasing = true, true
		}
	}
}

// quiet: nobody works on the lane, and it is not known to have events.
func (l *laneState) quiet() bool {
	return l.source == polled && !l.ready && !l.busy && !l.doubt && !l.leaving
}
