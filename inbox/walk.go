package inbox

// walk is the progress of one call of Handle through its events. Everything before pos is decided, nothing from pos on
// is: an event behind a failing one waits, for it may have the same key. It only decides which events the next
// transaction handles; it knows no database and no clock, so that the model of the inbox can take its steps.
type walk struct {
	pos, limit int // the next transaction handles [pos, limit)
	bad        int // somewhere in [pos, bad) an event failed; 0: none known

	written bool // the range of this call is in inbox_progress
	counted bool // inbox_progress has, or may have, our count of the event at pos
	careful bool // effects behind savepoints, until this transaction is through

	// suspect is the event that failed by itself; -1: none did.
	suspect     int
	runs, tries int  // how often it ran; how often with an error of no class
	doomed      bool // it is given up as soon as the events before it are decided
}

// startWalk begins at the first of so many events.
func startWalk(events int) walk { return walk{limit: events, suspect: -1} }

// givesUp reports that the next transaction sets the suspect aside instead of running anything.
func (w *walk) givesUp() bool { return w.doomed && w.pos == w.suspect }

// reach moves limit to where the next transaction must end because of the range that an earlier process left, and
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

// spent gives up the event at pos: its counted runs are used up.
func (w *walk) spent(runs int) { w.suspect, w.runs, w.doomed = w.pos, runs, true }

// stops makes the event at pos the one that halts the partition.
func (w *walk) stops() { w.suspect, w.runs = w.pos, 0 }

// upTo has the next transaction end before an event that cannot be decided now; false: that is the first one.
func (w *walk) upTo(index int) bool {
	if index <= w.pos {
		return false
	}
	w.limit = index
	return true
}

// done moves on after a transaction that was committed, and sets the limit of the next one.
func (w *walk) done(events int) {
	w.pos, w.careful = w.limit, false
	if w.pos > w.suspect {
		w.suspect, w.doomed = -1, false
	}
	w.limit = events
	if w.bad > w.pos {
		// The failing event is among the rest: half of that next, or the event alone.
		w.limit = w.pos + (w.bad-w.pos+1)/2
	}
}

// class is what an effect says of its failure.
type class uint8

const (
	classNone      class = iota // nothing: it is tried again a few times
	classTerminal               // it will fail again
	classRetryable              // something else is to blame: it is waited for
)

// turn is what follows a failed run.
type turn uint8

const (
	turnSplit turn = iota // nobody knows which event it was: half of them first
	turnAhead             // the events before the failed one go first
	turnAgain             // it runs again, alone, after a wait
	turnOver              // the next transaction gives it up
)

// failed counts a failed run: of the event at index or, below pos, of any of those that ran. An error without a class
// is final after that many tries, a retryable one when it has waitedOut.
func (w *walk) failed(index int, c class, tries int, waitedOut bool) turn {
	if w.limit == w.pos+1 {
		index = w.pos
	}
	if index < w.pos {
		// Halve until it is alone; a half that succeeds stays committed.
		w.bad = w.limit
		w.limit = w.pos + (w.limit-w.pos)/2
		return turnSplit
	}
	if index != w.suspect {
		// The attempts of another suspect do not count for this one.
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

// span is what is known of a partition's progress since it was assigned.
//
// The offset range is written before a batch as long as it is armed: from the assignment until a batch held something
// new. Repeats prove nothing: the event that killed the process may come right after them.
type span struct {
	armed bool
	// [from, to) was under way when an earlier process ended: it is run one event at a time, counted. Empty: nothing
	// was.
	from, to int64
}

// writes reports whether the range of a batch that begins at offset, and is not counted, must be written first.
func (s span) writes(offset int64) bool { return s.armed && offset >= s.to }

// decided takes over what came of the events from offset on: whether any of them was anything but a duplicate.
func (s *span) decided(offset int64, anyNew bool) {
	if s.from <= offset && offset < s.to || !anyNew {
		return // counted, or nothing new
	}
	s.armed = false
	if offset < s.from {
		// What the row calls decided was not: the topic was made again, or its log is another one. So is the range.
		*s = span{armed: true}
	}
}
