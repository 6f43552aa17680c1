package inbox

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// partitionName names a partition of a topic.
type partitionName struct {
	topic string
	id    int32
}

// progressEvery is how far inbox_progress may be behind what is decided. Moved with every transaction its row would be
// a new version each, which a pinned snapshot keeps.
const progressEvery = 10 * time.Second

// assignment is what is known of a partition since it was assigned. One Handle at a time uses it, but for tests that
// deliver the same events twice at the same time.
type assignment struct {
	mu        sync.Mutex
	loaded    bool
	span      span
	movedAt   time.Time // when the progress was last moved
	unwritten int64     // where the progress is to be moved, when nothing else is decided; 0: it is there
	database  string    // in which the partition began; empty: not known yet
	effectAt  time.Time // when an effect was last applied that the progress does not have; zero: none
	marks     *marks    // how far its numbers are decided; nil: not known. Only of a watermark, and never changed

	// What inbox_progress says of it: that it is halted while a person repairs the database, and that an event runs
	// again after a long pause.
	haltNoted, pauseNoted bool

	maxEvents  int // of a transaction, as conflicts allow; 0: any number
	undisputed int // transactions in a row without a conflict
	widenAfter int // as many of them double maxEvents
}

func (a *assignment) getMarks() *marks {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.marks
}

func (a *assignment) setMarks(m *marks) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.marks = m
}

// width is how many events a transaction may have; 0: any number.
func (a *assignment) width() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.maxEvents
}

// narrow halves the transactions to come, after one of so many events has lost. A conflict may cost a deadlock_timeout,
// so larger transactions are tried again ever more seldom where they keep losing.
func (a *assignment) narrow(events int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.undisputed = 0; events > 1 {
		a.maxEvents, a.widenAfter = events/2, min(max(16, 2*a.widenAfter), 1<<14)
	}
}

// widen counts a transaction without a conflict, of a call with so many events.
func (a *assignment) widen(events int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.undisputed++; a.maxEvents == 0 || a.undisputed < a.widenAfter {
		return
	}
	if a.maxEvents, a.undisputed = a.maxEvents*2, 0; a.maxEvents >= events {
		a.maxEvents, a.widenAfter = 0, 0
	}
}

// setHaltNoted sets whether inbox_progress says that the partition is halted, and returns what it was.
func (a *assignment) setHaltNoted(on bool) (was bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was, a.haltNoted = a.haltNoted, on
	return was
}

// setPauseNoted has the next transaction that decides something move the progress, which removes the note.
func (a *assignment) setPauseNoted() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pauseNoted = true
}

// unfinished holds the range that an earlier process left.
func (a *assignment) unfinished() span {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.span
}

// decided takes over the outcomes of the events from offset on.
func (a *assignment) decided(outcomes []Outcome, offset int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.span.decided(offset, slices.ContainsFunc(outcomes, func(o Outcome) bool { return o != Duplicate }))
}

// beganIn is the database in which the partition began.
func (a *assignment) beganIn() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.database
}

// checkDatabase compares the database of a transaction with the one in which the partition began. It fails once: a
// caller that goes on all the same, as one that is no consumer does, goes on in the new one.
func (a *assignment) checkDatabase(now string) *failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.database == now {
		return nil
	}
	err := &MovedError{From: a.database, To: now}
	a.database, a.loaded, a.marks, a.unwritten, a.effectAt = "", false, nil, 0, time.Time{}
	return &failure{kind: moved, err: err}
}

func (a *assignment) progressIsDue() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pauseNoted || time.Since(a.movedAt) >= progressEvery
}

// setDecided notes that everything up to the target is decided, and whether the progress was moved there with it.
func (a *assignment) setDecided(target *progressTarget, moved bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.unwritten = target.next; {
	case moved:
		a.movedAt, a.unwritten, a.pauseNoted, a.effectAt = time.Now(), 0, false, time.Time{}
	case slices.Contains(target.out, Applied):
		a.effectAt = time.Now()
	}
}

// sinceEffect is how many seconds ago an effect was last applied, with a transaction that has these outcomes; nil: none
// since the progress was last moved.
func (a *assignment) sinceEffect(out []Outcome) *float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	var seconds float64
	switch {
	case slices.Contains(out, Applied):
	case a.effectAt.IsZero():
		return nil
	default:
		seconds = time.Since(a.effectAt).Seconds()
	}
	return &seconds
}

// unwrittenProgress is where the progress is to be moved, and in which database; 0: it is there.
func (a *assignment) unwrittenProgress() (next int64, database string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unwritten, a.database
}

// setWritten notes that the progress was moved to next on its own.
func (a *assignment) setWritten(next int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.movedAt = time.Now(); a.unwritten == next {
		a.unwritten, a.effectAt = 0, time.Time{}
	}
}

// assignments are those of a handler.
type assignments struct {
	mu sync.Mutex
	of map[partitionName]*assignment
}

func (s *assignments) get(p partitionName) *assignment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[partitionName]*assignment{}
	}
	if s.of[p] == nil {
		s.of[p] = &assignment{span: span{armed: true}}
	}
	return s.of[p]
}

// due are those whose progress has not moved for a while.
func (s *assignments) due() map[partitionName]*assignment {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := maps.Clone(s.of)
	maps.DeleteFunc(due, func(_ partitionName, a *assignment) bool { return !a.progressIsDue() })
	return due
}

func (s *assignments) forget(p partitionName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, p)
}
