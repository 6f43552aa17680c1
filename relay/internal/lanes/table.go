// Package lanes is what a relay knows of the lanes that it has leased: a state machine. Each change has a method that
// is named for what happened; nobody else writes a lane's fields. It has no SQL, and times come as arguments.
//
// A lane is published from the table by pumps, or from the WAL by the follower, or nobody knows yet ([Source]). Beside
// that, it may be
//
//   - busy: granted to a pump ([Table.Take]), until that gives it back by one of [Table.GiveBack], [Table.Doubt],
//     [Table.Empty], [Table.Settled] and [Table.Unsettled];
//   - ready: it may have events. What is reported of a busy lane makes it ready again when it is given back;
//   - fresh: its journal may hold an open entry, so the next claim reads it;
//   - in doubt: the outcome of a transaction is unknown. Nothing is claimed until its fence is raised (P3.7);
//   - leaving: to be released as soon as it is not busy.
//
// A fence that rises ends all of this: what is reported under the old one is ignored, and the lane begins anew.
package lanes

import (
	"iter"
	"sync"
	"time"

	"github.com/effectonce/effectonce/relay/internal/delivery"
)

// Count is how many lanes an outbox has.
const Count = 32

// state is what is known of a leased lane. The database has the last word: every claim and settle compares owner and
// fence there.
type state struct {
	fence    int64
	deadline time.Time // local and monotonic: nothing is sent for the lane after it
	// next and end are what is left of the reserved block, end included. A block belongs to its fence, and to the
	// server that it was reserved on: a lane that comes back, or whose journal must be read again, starts a new one, or
	// numbers could go back (P3.2).
	next, end int64
	floor     int64 // no row at or below it, now or ever (P6)
	reach     int64 // the same but for excepted transactions
	settled   int64 // first number of the entry that was settled last; 0: none under this fence

	source  Source
	read    int // of Table.reads, as of when its journal was read
	fresh   bool
	due     bool // may have scheduled events whose time has come
	ready   bool
	woken   bool // to be ready when it is given back
	busy    bool
	doubt   bool
	leaving bool

	// What the lane may have beside its events. Only this relay adds to it, so it is never less than there is; the
	// claim that finds less says so.
	parked    bool            // events, or marks of keys
	releasing bool            // some of what is parked is to be released
	groups    delivery.Groups // where it holds events for
	turn      int             // how often it was taken: its claims do one kind of work after the other
	strikes   int             // how often its claims did not fit into their time, less how often they did easily
	taken     int             // of Table.takes, as of when a pump last took it
	bulk      bool            // had more events than a claim takes, and none of them large
	pace      Pace            // of its last claim
}

// Pace is how the events of a lane's last claim lay: how far the next one reads in bulk follows from it.
type Pace struct {
	Last int64   // the highest id
	Size int     // of an event in memory, on average
	Gap  float64 // from one id to the next, on average
}

// Table is the relay's view of its lanes. It is safe for concurrent use.
type Table struct {
	mu    sync.Mutex
	owned map[int16]*state
	first Source // of lanes that are leased
	takes int    // how often pumps have taken lanes
	epoch string // the incarnation of the numbering that claims expect, as it was met last
	reads int    // how often the journal had to be read again, for every lane

	ids string // the numbering of event ids that the floors are in; "": there are none
	// decided: every id up to it is decided, in that numbering; reached: but for the transactions of except.
	decided, reached int64
	except           []string
	expected         bool  // somebody finds floors
	limit            int64 // floors rise up to it, if nothing stands below; 0: nobody knows how far
	far              int64 // how far claims and looks go above a floor that is on its way
	falls            int   // how often floors fell
}

// New makes a table without lanes. Those that are leased have this source at first.
func New(first Source) *Table {
	return &Table{owned: make(map[int16]*state, Count), first: first, far: farIDs}
}

// Leased takes over the fences of the lanes that the database says the relay owns until a deadline. A lane with another
// fence than before begins anew.
func (t *Table) Leased(fences map[int16]int64, until time.Time) (taken, lost []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	strikes := map[int16]int{}
	for i, l := range t.owned {
		if fence, ok := fences[i]; !ok || fence != l.fence {
			delete(t.owned, i)
			strikes[i] = l.strikes
			lost = append(lost, i)
		}
	}
	for i, fence := range fences {
		l := t.owned[i]
		if l == nil {
			l = &state{
				fence: fence, source: t.first, read: t.reads, strikes: strikes[i], fresh: true, ready: true,
				due: true,
			}
			t.owned[i] = l
			taken = append(taken, i)
		}
		l.deadline = until
	}
	return taken, lost
}

// Doubt notes that the outcome of a transaction of a lane is unknown, or that the lane may be another relay's. Who
// works on the lane has given it back.
func (t *Table) Doubt(lane int16, fence int64) {
	t.update(lane, fence, func(l *state) { l.doubt = true; l.giveBack() })
}

// DoubtAll puts every lane in doubt: the outcome of a heartbeat is unknown. Busy lanes stay busy.
func (t *Table) DoubtAll() { t.all(func(l *state) { l.doubt = true }) }

// InDoubt lists the lanes whose fence must be raised, and can be: nobody works on them.
func (t *Table) InDoubt() []int16 {
	return t.list(func(l *state) bool { return l.doubt && !l.busy })
}

// Leave marks n lanes as leaving (all when n < 0), those without work first, counting the ones that leave already.
func (t *Table) Leave(n int) {
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

// Stay takes back the leaving of every lane: the relay that they were meant for is gone.
func (t *Table) Stay() { t.all(func(l *state) { l.leaving = false }) }

// Releasable lists the leaving lanes that can be released. What is in doubt is not ours to give.
func (t *Table) Releasable() []int16 {
	return t.list(func(l *state) bool { return l.leaving && !l.busy && !l.doubt })
}

// Moving reports whether lanes are on their way from this relay, or their fences are to be raised.
func (t *Table) Moving() bool {
	return t.any(func(l *state) bool { return l.leaving || l.doubt })
}

// Forget forgets released lanes.
func (t *Table) Forget(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range lanes {
		delete(t.owned, i)
	}
}

// All lists the lanes.
func (t *Table) All() []int16 { return t.list(func(*state) bool { return true }) }

// Fence is a lane's fence; 0 when it is not ours for certain.
func (t *Table) Fence(lane int16) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.owned[lane]; l != nil && !l.doubt {
		return l.fence
	}
	return 0
}

// Deadline is the earliest one of the grants, false when one of them is not ours any more.
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

// Reset forgets what is only true of a server that has not been away: a crash takes back settles that were not on the
// disk. Their entries are open again, and their rows stand below the floors. So every lane's next claim reads the
// journal.
func (t *Table) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads++
	t.resetFloors("")
}

// Renumber notes the incarnation that was met. With a new one another server may have taken over, which lacks what the
// relay knows: every lane reads its journal, also one that nothing is appended to.
func (t *Table) Renumber(epoch string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch == epoch {
		return
	}
	t.epoch = epoch
	t.reads++
	for _, l := range t.owned {
		l.ready, l.woken = l.ready || l.polled(), l.busy
	}
}

// Reread makes the next claims of lanes read the journal, where they have an open entry, and everything from zero.
func (t *Table) Reread(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.falls++
	for l := range t.each(lanes) {
		l.read, l.floor, l.reach, l.ready = -1, 0, 0, true
	}
}

// Found makes lanes ready: they have events, or something to release, or something has come due.
func (t *Table) Found(events, releasing, due []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := range t.each(events) {
		l.ready = true
	}
	for l := range t.each(releasing) {
		l.ready, l.releasing = true, true
	}
	for l := range t.each(due) {
		l.ready, l.due = true, true
	}
}

// Woken notes that events may have come anywhere. A probe does not ask about lanes that a pump has: what its claim read
// may be older than the events.
func (t *Table) Woken() { t.all(func(l *state) { l.woken = l.busy }) }

// Opened makes the lanes ready that hold events of a topic: something there can go again. A lane at work may be about
// to hold some, for who settles it has looked before.
func (t *Table) Opened(topic string) {
	t.all(func(l *state) {
		l.ready, l.woken = l.ready || len(l.groups[topic]) > 0, l.busy
	})
}

// Working reports whether some lane is ready or busy.
func (t *Table) Working() bool {
	return t.any(func(l *state) bool { return l.ready || l.busy })
}

// Beside reports whether a ready lane has something beside its events that can be sent.
func (t *Table) Beside() bool {
	return t.any(func(l *state) bool { return l.ready && (l.releasing || len(l.groups) > 0) })
}

// Quiet lists the lanes that nobody works on, and of which it is not known that they have events.
func (t *Table) Quiet() []int16 { return t.list((*state).quiet) }

// Parked lists the lanes of which a probe asks whether something parked was released.
func (t *Table) Parked() []int16 {
	return t.list(func(l *state) bool { return l.parked && (l.quiet() || l.source == WAL) })
}

// Certain lists the lanes that are ours and stay.
func (t *Table) Certain() []int16 { return t.list((*state).certain) }

// FirstHeld chooses a lane for each place whose first held event may be tried: one that holds nothing older of that
// topic. The places that none can be found for are in without.
func (t *Table) FirstHeld(places []delivery.Place) (found map[delivery.Place]Grant, without []delivery.Place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found = make(map[delivery.Place]Grant, len(places))
	for _, at := range places {
		for i, l := range t.owned {
			if l.doubt || !l.groups.Has(at) || at.Partition == delivery.WholeTopic && len(l.groups[at.Topic]) > 1 {
				continue
			}
			found[at] = Grant{Lane: i, Fence: l.fence}
			break
		}
		if _, ok := found[at]; !ok {
			without = append(without, at)
		}
	}
	return found, without
}

// Holds reports whether some lane holds events for a place.
func (t *Table) Holds(at delivery.Place) bool {
	return t.any(func(l *state) bool { return l.groups.Has(at) })
}

// get returns a lane if it is still the one of the fence.
func (t *Table) get(lane int16, fence int64) *state {
	if l := t.owned[lane]; l != nil && l.fence == fence {
		return l
	}
	return nil
}

// update changes a lane if it is still the one of the fence.
func (t *Table) update(lane int16, fence int64, change func(l *state)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.get(lane, fence); l != nil {
		change(l)
	}
}

// all changes every lane.
func (t *Table) all(change func(l *state)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		change(l)
	}
}

// each are those of the lanes that are owned.
func (t *Table) each(lanes []int16) iter.Seq[*state] {
	return func(yield func(*state) bool) {
		for _, i := range lanes {
			if l := t.owned[i]; l != nil && !yield(l) {
				return
			}
		}
	}
}

func (t *Table) list(want func(l *state) bool) []int16 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []int16{} // not nil: a nil slice would reach Postgres as null
	for i, l := range t.owned {
		if want(l) {
			out = append(out, i)
		}
	}
	return out
}

func (t *Table) any(is func(l *state) bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		if is(l) {
			return true
		}
	}
	return false
}

// polled: the lane is published from the table.
func (l *state) polled() bool { return l.source == Pumps || l.source == Offered }

func (l *state) certain() bool { return !l.doubt && !l.leaving }

// quiet: nobody works on the lane, and it is not known to have events.
func (l *state) quiet() bool { return l.polled() && !l.ready && !l.busy && l.certain() }
