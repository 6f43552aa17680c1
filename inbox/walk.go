package inbox

// walk is the progress of one call of Handle through its events. All events before pos are decided, and none from pos
// on: events after a failed one wait, since they may have the same key. A walk only decides which events the next
// transaction handles. It uses no database and no clock, so that the model of the inbox can step through it.
type walk struct {
	pos, limit int // the next transaction handles [pos, limit)
	bad        int // an event in [pos, bad) failed; 0: none known

	spreadTo int // the events before it were given to parts, or run one transaction after the other

	written bool // the range of this call is in inbox_progress
	counted bool // inbox_progress has, or may have, this call's count of the event at pos
	careful bool // effects run under savepoints, until this transaction is committed

	// suspect is the index of the event that is known to fail; -1: none.
	suspect     int
	runs, tries int  // its runs; its runs that ended with an unclassified error
	doomed      bool // give it up once the events before it are decided
}

// startWalk returns a walk at the first of the given number of events.
func startWalk(events int) walk { return walk{limit: events, suspect: -1} }

// givesUp reports whether the next transaction sets the suspect aside instead of running effects.
func (w *walk) givesUp() bool { return w.doomed && w.pos == w.suspect }

// reach moves limit to the end of the next transaction with regard to the range that an earlier process left, and
// reports whether that is a counted run.
func (w *walk) reach(left span, offset func(i int) int64) (counted bool) {
	switch at := offset(w.pos); {
	case left.from <= at && at < left.to:
		w.limit = w.pos + 1
		return true
	case at < left.from:
		for i := w.pos + 1; i < w.limit; i++ {
			if offset(i) >= left.from {
				w.limit = i
			}
		}
	}
	return false
}

// spreads reports whether the events from pos on may be given to parts. What an earlier process left undecided runs
// alone, and nothing is known to fail.
func (w *walk) spreads(left span, offset func(i int) int64) bool {
	return w.pos >= w.spreadTo && w.suspect < 0 && w.bad <= w.pos && offset(w.pos) >= left.to
}

// within keeps the next transaction to proven events, if it begins with one.
func (w *walk) within(of proven, offset func(i int) int64) {
	for of.has(offset(w.pos)) && !of.has(offset(w.limit-1)) {
		w.limit--
	}
}

// spent gives up the event at pos, which has no counted run left.
func (w *walk) spent(runs int) { w.suspect, w.runs, w.doomed = w.pos, runs, true }

// stops makes the event at pos the one that halts the partition.
func (w *walk) stops() { w.suspect, w.runs = w.pos, 0 }

// upTo makes the next transaction end before an event that cannot be decided now. It returns false if that is the first
// event.
func (w *walk) upTo(index int) bool {
	if index <= w.pos {
		return false
	}
	w.limit = index
	return true
}

// done moves past the events of a committed transaction, and sets the limit of the next one.
func (w *walk) done(events int) {
	w.pos, w.careful = w.limit, false
	if w.pos > w.suspect {
		w.suspect, w.doomed = -1, false
	}
	w.limit = events
	if w.bad > w.pos {
		// The failing event is in the rest: try half of it next, or the event alone.
		w.limit = w.pos + (w.bad-w.pos+1)/2
	}
}

// class is the class of an effect's error.
type class uint8

const (
	classNone      class = iota // unclassified: the effect runs again, up to MaxAttempts
	classTerminal               // the effect would fail again
	classRetryable              // another system is down: wait for it
)

// turn is what follows a failed run.
type turn uint8

const (
	turnSplit turn = iota // the failed event is unknown: half of the events run first
	turnAhead             // the events before the failed one run first
	turnAgain             // the event runs again, alone, after a wait
	turnOver              // the next transaction gives up the event
)

// failed counts a failed run of the event at index or, if index is below pos, of any event that ran. An unclassified
// error is final after the given number of tries, a retryable error once it has waitedOut.
func (w *walk) failed(index int, c class, tries int, waitedOut bool) turn {
	if w.limit == w.pos+1 {
		index = w.pos
	}
	if index < w.pos {
		// Halve until the failing event is alone. A half that succeeds stays committed.
		w.bad = w.limit
		w.limit = w.pos + (w.limit-w.pos)/2
		return turnSplit
	}
	if index != w.suspect {
		// Attempts of another suspect do not count for this one.
		w.suspect, w.runs, w.tries = index, 0, 0
		waitedOut = false
	}
	w.runs++
	final := c == classTerminal
	switch c {
	case classNone:
		w.tries++
		final = w.tries >= tries
	case classRetryable:
		final = waitedOut
	}
	w.doomed = final
	switch {
	case index > w.pos:
		w.limit, w.bad = index, index+1
		return turnAhead
	case final:
		return turnOver
	}
	w.limit, w.bad = w.pos+1, w.pos+1
	return turnAgain
}

// span is the known progress of a partition since its assignment.
//
// While it is armed, the offset range is written before each batch: from the assignment until a batch held a new event.
// Repeats prove nothing: the event that killed the process may come right after them.
type span struct {
	armed bool
	// [from, to) was in progress when an earlier process ended: its events run one at a time, counted. Empty: no range
	// was in progress.
	from, to int64
}

// writes reports whether the range of an uncounted batch that begins at offset must be written first.
func (s span) writes(offset int64) bool { return s.armed && offset >= s.to }

// decided updates the span after the events from offset on were decided. anyNew: at least one was not a duplicate.
func (s *span) decided(offset int64, anyNew bool) {
	if s.from <= offset && offset < s.to || !anyNew {
		return // counted, or no new event
	}
	s.armed = false
	if offset < s.from {
		// Events before the stored progress were new: the topic was created again, or its log is another one. The range
		// is void.
		*s = span{armed: true}
	}
}
