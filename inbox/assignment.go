package inbox

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/effectonce/effectonce/event"
)

// partitionName identifies a partition of a topic.
type partitionName struct {
	topic string
	id    int32
}

// progressEvery is how far inbox_progress may lag. An update in every transaction would create a version of the row
// each time, which an old snapshot keeps.
const progressEvery = 10 * time.Second

// assignment is the state of a partition since it was assigned. One Handle at a time uses it, except in tests that
// deliver the same events concurrently.
type assignment struct {
	place      string // topic/partition
	mu         sync.Mutex
	loaded     bool
	span       span
	writtenAt  time.Time   // when the progress was last written
	unwritten  int64       // the progress that is not yet stored; 0: none
	stored     int64       // the progress that is stored, or was by this process; -1: no row is known
	moves      int         // how often this process has moved, or was to move, the progress that is stored
	database   string      // the database in which the partition began; empty: unknown
	account    account     // up to the decided progress
	skipped    skipped     // what operators skipped of this log
	proven     proven      // the events that the progress alone proves to be decided
	absent     absent      // after the decided events, and not in the account yet
	log        *string     // the id of the topic's log, of which the progress is; nil: unknown
	effectAt   time.Time   // when the last effect that is not in the progress was applied; zero: none
	watermarks *watermarks // for byNumber: the decided numbers, never modified; nil: unknown
	outdated   bool        // the watermarks are to be read again

	// Whether inbox_progress says that the partition is halted until an operator repairs the database, and that an
	// event runs again after a long pause.
	haltNoted, pauseNoted bool
	waits                 []*waiting // what runs again after a long pause, the recorded one first

	// For byID: how many transactions in a row have met no repeat, and after how many no repeat is expected.
	noRepeats, trustAfter int

	maxEvents  int // limit for a transaction because of conflicts or EffectTimeout; 0: none
	undisputed int // consecutive transactions without a conflict
	widenAfter int // the number of these that doubles maxEvents
}

// absent are the offsets from from to below to, at which the log has no record.
type absent struct{ from, to int64 }

func (a *assignment) addAbsent(from, to int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if from != a.absent.to {
		a.absent.from = from
	}
	a.absent.to = to
}

func (a *assignment) hasAbsent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.absent.to > a.account.next
}

// pass advances the account over the absent offsets. It returns the account before and after.
func (a *assignment) pass() (before, after account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if before = a.account; a.account.pass(a.absent) {
		a.unwritten = a.account.next
	}
	return before, a.account
}

// getWatermarks returns nil if the watermarks are to be read.
func (a *assignment) getWatermarks() *watermarks {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.outdated {
		return nil
	}
	return a.watermarks
}

// setWatermarks sets the watermarks; nil: they are to be read again.
func (a *assignment) setWatermarks(m *watermarks) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.outdated = m == nil; !a.outdated {
		a.watermarks = m
	}
}

// knownWatermarks returns the watermarks that this process last knew to be committed, outdated or not; nil: none.
func (a *assignment) knownWatermarks() *watermarks {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.watermarks
}

// width returns how many events a transaction may have; 0: any number.
func (a *assignment) width() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.maxEvents
}

// narrow halves the limit after a transaction of so many events lost a conflict, or was too long for EffectTimeout. A
// conflict may cost a deadlock_timeout, so larger transactions are tried more and more rarely if they keep losing.
// Parts above the limit lost together with the one that set it, and one answer is enough.
func (a *assignment) narrow(events int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.undisputed = 0; events > 1 && (a.maxEvents == 0 || events <= a.maxEvents) {
		a.maxEvents, a.widenAfter = events/2, min(max(16, 2*a.widenAfter), 1<<14)
	}
}

// widen counts a transaction without a conflict, in a call with so many events.
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

// setHaltNoted sets whether inbox_progress says that the partition is halted, and returns the previous value.
func (a *assignment) setHaltNoted(on bool) (was bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was, a.haltNoted = a.haltNoted, on
	return was
}

// setPauseNoted makes the next deciding transaction write the progress, which clears the recorded pause.
func (a *assignment) setPauseNoted() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pauseNoted = true
}

// waiting is a batch, or a part of one, whose event runs again after a long pause.
type waiting struct {
	of  *batch
	now chan struct{} // closed when an operator ends the pauses of the partition
}

// wait adds b to what waits, unless it is there. It reports whether b is the first, for which inbox_progress has room.
func (a *assignment) wait(b *batch) (now <-chan struct{}, recorded bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.waits, func(w *waiting) bool { return w.of == b })
	if i < 0 {
		i = len(a.waits)
		a.waits = append(a.waits, &waiting{b, make(chan struct{})})
	}
	return a.waits[i].now, i == 0
}

// runAll ends all pauses.
func (a *assignment) runAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.waits {
		close(w.now)
		w.now = make(chan struct{})
	}
}

// waited removes b from what waits. It reports whether b was recorded, and nothing else waits.
func (a *assignment) waited(b *batch) (last bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.waits)
	a.waits = slices.DeleteFunc(a.waits, func(w *waiting) bool { return w.of == b })
	return before == 1 && len(a.waits) == 0
}

// unfinished returns the span with the range that an earlier process left.
func (a *assignment) unfinished() span {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.span
}

// decided stores the outcomes of events.
func (a *assignment) decided(events []event.Event, outcomes []Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.account = a.account.decided(events)
	if a.noRepeats++; slices.Contains(outcomes, Duplicate) {
		a.noRepeats = 0
	}
	a.span.decided(events[0].Position.Offset,
		slices.ContainsFunc(outcomes, func(o Outcome) bool { return o != Duplicate }))
}

// expectsNoRepeats reports whether a transaction may take all its events for new.
func (a *assignment) expectsNoRepeats() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.noRepeats > a.trustAfter
}

// metRepeat counts a transaction that took a repeat for a new event, and began again. Each costs a line in the server's
// log, so the next ones come more and more rarely.
func (a *assignment) metRepeat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noRepeats, a.trustAfter = 0, min(max(16, 2*a.trustAfter), 1<<14)
}

// beganIn returns the database in which the partition began.
func (a *assignment) beganIn() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.database
}

func (a *assignment) accounted() account {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.account
}

func (a *assignment) logID() *string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log
}

// reload has the next Handle read the partition's row again: its beginning was written.
func (a *assignment) reload() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.loaded, a.watermarks, a.unwritten, a.effectAt, a.absent = false, nil, 0, time.Time{}, absent{}
	a.proven = proven{}
	a.span = span{armed: true}
}

// checkDatabase compares the database of a transaction with the one in which the partition began. It fails once: a
// caller that calls Handle again, unlike a consumer, continues in the new database.
func (a *assignment) checkDatabase(now string) *failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.database == now {
		return nil
	}
	err := &DatabaseChangedError{From: a.database, To: now}
	a.database, a.loaded, a.watermarks, a.unwritten, a.effectAt, a.absent = "", false, nil, 0, time.Time{}, absent{}
	a.proven = proven{}
	return &failure{kind: databaseChanged, err: err}
}

func (a *assignment) progressIsDue() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pauseNoted || time.Since(a.writtenAt) >= progressEvery
}

// setDecided records that all events up to the target are decided, and whether the progress was written with them.
func (a *assignment) setDecided(target *progressTarget, written bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.account = target.account
	switch a.unwritten = target.next; {
	case written:
		a.stored = target.next
		a.moves++
		a.writtenAt, a.unwritten, a.pauseNoted, a.effectAt = time.Now(), 0, false, time.Time{}
	case slices.Contains(target.out, Applied):
		a.effectAt = time.Now()
	}
}

// sinceEffect returns how many seconds ago an effect was last applied, including a transaction with these outcomes;
// nil: none since the progress was last written.
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

// storedAt returns the progress that this process knows to be stored.
func (a *assignment) storedAt() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stored
}

// storing records that the progress is being stored, or is. It may go back, to where events are read again.
func (a *assignment) storing(at int64, done bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.moves++; done || at < a.stored {
		a.stored = at
	}
}

func (a *assignment) movesNow() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.moves
}

// unwrittenProgress returns the progress to write with its account, the database for it and the log that it is of; 0:
// nothing to write.
func (a *assignment) unwrittenProgress() (next, accounted int64, database string, log *string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unwritten, a.account.upTo(a.unwritten), a.database, a.log
}

// setWritten records that the progress was written outside of a deciding transaction.
func (a *assignment) setWritten(next int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stored = next
	a.moves++
	if a.writtenAt = time.Now(); a.unwritten == next {
		a.unwritten, a.effectAt = 0, time.Time{}
	}
}

// assignments holds the assignments of a handler.
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
		s.of[p] = &assignment{place: fmt.Sprintf("%s/%d", p.topic, p.id), span: span{armed: true}, stored: -1}
	}
	return s.of[p]
}

// find returns the assignment of a partition; nil: it is not assigned.
func (s *assignments) find(p partitionName) *assignment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[p]
}

// due returns the assignments whose progress was not written for progressEvery.
func (s *assignments) due() map[partitionName]*assignment {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := maps.Clone(s.of)
	maps.DeleteFunc(due, func(_ partitionName, a *assignment) bool { return !a.progressIsDue() })
	return due
}

// has reports whether a partition of the topic is assigned.
func (s *assignments) has(topic string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.of {
		if p.topic == topic {
			return true
		}
	}
	return false
}

func (s *assignments) forget(p partitionName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, p)
}
