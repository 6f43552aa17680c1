// Package lanes is the state of a relay's leased lanes, as a state machine. Each transition is a method that is named
// after its cause; no other code writes a lane's fields. It has no SQL, and times come as arguments.
//
// A lane is published from the table by pumps, or from the WAL by the follower, or its feed is not known yet
// ([Feed]). It may also be
//
//   - busy: granted to a pump ([Table.Take]), until a [Verdict] takes it home ([Table.Home]);
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

// state is the state of a leased lane. The database has the last word: every claim and settle compares owner and fence
// there.
type state struct {
	fence    int64
	deadline time.Time // local and monotonic: no event of the lane is sent after it
	// next and end are the rest of the reserved block, end included. A block belongs to its fence, and to the server
	// that it was reserved on: a lane that comes back, or whose journal must be read again, starts a new one; otherwise
	// numbers could repeat (P3.2).
	next, end int64
	floor     int64 // no row at or below it, now or ever (P6)
	reach     int64 // the same but for excepted transactions
	settled   int64 // first number of the last settled entry; 0: none under this fence

	feed    Feed
	read    int // Table.reads when its journal was read
	fresh   bool
	due     bool // may have scheduled events whose time has come
	dueFail int  // how often their move was refused
	ready   bool
	woken   bool // ready as soon as it is given back
	busy    bool
	doubt   bool
	leaving bool

	// What the lane may have beside its events. Only this relay adds to it, so it is never less than the truth; a claim
	// that finds less corrects it.
	parked    bool            // events, or marks of keys
	releasing bool            // some parked events are to be released
	groups    delivery.Groups // the places that it holds events for
	turn      int             // how often it was taken: its claims take turns at kinds of work
	strikes   int             // how often its claims failed, less how often they were easy
	rest      time.Time       // no claim before it
	dueRest   time.Time       // no move of due events before it
	taken     int             // Table.takes when a pump last took it
	bulk      bool            // had more events than a claim takes, and none of them large
	pace      Pace            // of its last claim
	given     int             // how often it was given back
	stood     time.Time       // since when it has had work and was not given back, as of the last question
	stoodAt   int             // given at that time
}

// Pace has figures of a lane's last claim, from which the range of the next bulk read follows.
type Pace struct {
	Last int64   // the highest id
	Size int     // average size of an event in memory
	Gap  float64 // average distance of ids
}

// Table is the relay's state of its lanes. It is safe for concurrent use.
type Table struct {
	mu    sync.Mutex
	owned map[int16]*state
	first Feed   // of newly leased lanes
	takes int    // how often pumps have taken lanes
	epoch string // the incarnation of the numbering that claims expect
	reads int    // how often the journal had to be read again, for every lane

	ids string // the numbering of event ids that the floors are in; "": there are none
	// decided: every id up to it is decided, in that numbering; reached: but for the transactions of except.
	decided, reached int64
	except           []string
	since            map[string]int64 // of each of except: reached when it was excepted; it has drawn no id up to that
	expected         bool             // floors will be found
	limit            int64            // floors rise up to it, if no row is below; 0: not known
	far              int64            // farIDs
	falls            int              // how often floors fell
}

// New makes a table without lanes. Leased lanes have this feed at first.
func New(first Feed) *Table {
	return &Table{owned: make(map[int16]*state, Count), first: first, far: farIDs}
}

// Leased sets the fences of the lanes that the relay owns until a deadline according to the database. A lane with
// another fence than before begins anew, but as one that failed and was taken when it was: otherwise one whose outcome
// is unknown each time would always come first.
func (t *Table) Leased(fences map[int16]int64, until time.Time) (taken, lost []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := map[int16]*state{}
	for i, l := range t.owned {
		if fence, ok := fences[i]; !ok || fence != l.fence {
			delete(t.owned, i)
			before[i] = l
			lost = append(lost, i)
		}
	}
	for i, fence := range fences {
		l := t.owned[i]
		if l == nil {
			l = &state{
				fence: fence, feed: t.first, read: t.reads, fresh: true, ready: true, due: true,
			}
			if b := before[i]; b != nil {
				l.strikes, l.taken, l.rest, l.dueFail, l.dueRest = b.strikes, b.taken, b.rest, b.dueFail, b.dueRest
				l.due = l.dueFail == 0
			}
			t.owned[i] = l
			taken = append(taken, i)
		}
		l.deadline = until
	}
	return taken, lost
}

// Doubt records that the outcome of a transaction of a lane is unknown, or that another relay may own the lane. Its
// worker has given it back.
func (t *Table) Doubt(lane int16, fence int64) {
	t.update(lane, fence, func(l *state) { l.doubt = true; l.giveBack() })
}

// DoubtAll puts every lane in doubt: the outcome of a heartbeat is unknown. Busy lanes stay busy.
func (t *Table) DoubtAll() { t.all(func(l *state) { l.doubt = true }) }

// InDoubt lists the lanes whose fence must be raised, and can be: they are not busy.
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

// Stay undoes the leaving of every lane: the relay that they were meant for is gone.
func (t *Table) Stay() { t.all(func(l *state) { l.leaving = false }) }

// Releasable lists the leaving lanes that can be released. Lanes in doubt cannot.
func (t *Table) Releasable() []int16 {
	return t.list(func(l *state) bool { return l.leaving && !l.busy && !l.doubt })
}

// Moving reports whether lanes are leaving, or their fences must be raised.
func (t *Table) Moving() bool {
	return t.any(func(l *state) bool { return l.leaving || l.doubt })
}

// Forget removes released lanes.
func (t *Table) Forget(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range lanes {
		delete(t.owned, i)
	}
}

// All lists the lanes.
func (t *Table) All() []int16 { return t.list(func(*state) bool { return true }) }

// Fence returns a lane's fence; 0 if the relay may not own the lane.
func (t *Table) Fence(lane int16) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.owned[lane]; l != nil && !l.doubt {
		return l.fence
	}
	return 0
}

// Reset drops knowledge that depends on the server's memory: a crash undoes settles that were not on disk. Their
// entries are open again, and their rows are below the floors. So every lane's next claim reads the journal.
func (t *Table) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads++
	t.resetFloors("")
}

// Renumber records the current incarnation. With a new one, another server may have taken over, which lacks the relay's
// last changes: every lane reads its journal, even without new events.
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

// Reread makes the next claims of lanes read the journal, because it has an open entry, and all rows from zero.
func (t *Table) Reread(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.falls++
	for l := range t.each(lanes) {
		l.read, l.floor, l.reach, l.ready = -1, 0, 0, true
	}
}

// Found makes lanes ready that have new, released or due events.
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

// Woken records that there may be events in any lane. Probes leave out busy lanes, whose claims may have read before
// the events came.
func (t *Table) Woken() { t.all(func(l *state) { l.woken = l.busy }) }

// Opened makes the lanes ready that hold events of a topic. A busy lane may be about to hold some, decided by an older
// state.
func (t *Table) Opened(topic string) {
	t.all(func(l *state) {
		l.ready, l.woken = l.ready || len(l.groups[topic]) > 0, l.busy
	})
}

// Working reports whether some lane is ready or busy.
func (t *Table) Working() bool {
	return t.any(func(l *state) bool { return l.ready || l.busy })
}

// Beside reports whether a ready lane has held or released events that can be sent.
func (t *Table) Beside() bool {
	return t.any(func(l *state) bool { return l.ready && (l.releasing || len(l.groups) > 0) })
}

// Quiet lists the lanes that are not busy and not known to have events.
func (t *Table) Quiet() []int16 { return t.list((*state).quiet) }

// Parked lists the lanes that a probe checks for released events.
func (t *Table) Parked() []int16 {
	return t.list(func(l *state) bool { return l.parked && (l.quiet() || l.feed == WAL) })
}

// AskDue lists the lanes that a probe asks for due events: those that the relay certainly owns and keeps.
func (t *Table) AskDue(now time.Time) []int16 {
	return t.list(func(l *state) bool { return l.certain() && !now.Before(l.dueRest) })
}

// FirstHeld chooses a lane for each place whose first held event may be tried: one that holds no older event of that
// topic. Places without such a lane are returned in without.
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

// all changes every lane.
func (t *Table) all(change func(l *state)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		change(l)
	}
}

// each yields those of the lanes that are owned.
func (t *Table) each(lanes []int16) iter.Seq[*state] {
	return func(yield func(*state) bool) {
		for _, i := range lanes {
			if l := t.owned[i]; l != nil && !yield(l) {
				return
			}
		}
	}
}

// Standing returns the lane of the pumps that has had work for longest without being given back, and since when; a zero
// time if there is none. It counts from the first question that found it so.
func (t *Table) Standing(now time.Time) (lane int16, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, l := range t.owned {
		switch {
		case l.feed != Pumps || !l.ready && !l.busy:
			l.stood = time.Time{}
		case l.stood.IsZero() || l.stoodAt != l.given:
			l.stood, l.stoodAt = now, l.given
		case since.IsZero() || l.stood.Before(since):
			lane, since = i, l.stood
		}
	}
	return lane, since
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

// polled reports whether the lane is published from the table.
func (l *state) polled() bool { return l.feed == Pumps || l.feed == Offered }

func (l *state) certain() bool { return !l.doubt && !l.leaving }

// quiet reports whether the lane is not busy and not known to have events.
func (l *state) quiet() bool { return l.polled() && !l.ready && !l.busy && l.certain() }
