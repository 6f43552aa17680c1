//go:build !race

package inbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/internal/testenv/explore"
)

// The model of the inbox: two processes of one consumer work on up to two partitions; each has a releaser; an operator
// repairs, releases, discards and resumes; and bounded faults happen. Every interleaving of their statements is
// explored. Between two statements the functions of production decide: walk, span, state.plan, planned.holds,
// planned.aside, planned.fresh, releaseEnd, state.route. mDB does what the statements do.
//
// An event is a number, in the order of first occurrences in the log; of two events of a key the higher number is the
// later one.

// mNature is how an event's effect behaves until the operator repairs the code. A repaired effect succeeds.
type mNature uint8

const (
	mFine      mNature = iota
	mFlaky             // each run succeeds or fails with an error without a class
	mRetryable         // each run succeeds or fails as Retryable
	mTerminal
	mKiller // kills its process
)

// mAge is the class of an event's id, by its time.
type mAge uint8

const (
	mToday   mAge = iota
	mForeign      // no UUIDv7
	mTooOld
	mTooFuture
)

// mRules leaves rules of the protocol out, to check that the model finds the resulting faults. The zero value is
// production's.
type mRules struct {
	lateStays      bool // P9.2: after a commit without an answer the newest offset is not committed again
	beginsAtGroup  bool // P9.2: a database without a row begins at the group's offset
	offsetFirst    bool // P9.2: the offset is committed before the transaction
	marksFirst     bool // P9.2: the marks are read before the ids are inserted
	sharedMarkless bool // P9.6: the marks are read without FOR SHARE
	openRuns       bool // P9.2: a parked id is run or parked again
	passApart      bool // P9.2: the deciding transaction does not advance the progress
	proofByAbsence bool // P9.3: after an unknown COMMIT a missing row counts as a rollback
	noRange        bool // P9.5: the range is not written before the first batch
	countAfter     bool // P9.5: nothing is counted before the run
	notAlone       bool // P9.5: a counted run is not alone in its process
	keepCount      bool // P9.5: a live process does not decrement its count
	keepLostCount  bool // P9.5: a count whose answer was lost stays
	doomPassedOn   bool // P9.4: the next event that fails inherits another's final failure
	parkBlind      bool // P9.6: the parking transaction does not insert the id first
	keepRow        bool // P9.6: an event that is parked behind a mark keeps its inbox row
	unmarkBlind    bool // P9.6: a releaser removes the mark without looking again
	uncountedRun   bool // P9.6: runs of released events are not counted
	bareBatch      bool // P9.6: a batch of released events runs without a note
	resumeKeeps    bool // P9.6: resume leaves the attempts
	oneLook        bool // P9.1: quarantine does not read again after its wait
	quarantineKey  bool // P9.1: quarantine marks the event's key
	markUnproven   bool // P9.8: a transaction goes on although another has moved its mark
	parkUnproven   bool // P9.8: a parking transaction does
	parkLeavesMark bool // P9.8: a parking transaction does not advance the mark
	markApart      bool // P9.8: the mark is moved in a transaction before that of the effects
	dealsAnyhow    bool // P9.10: a key's events go to several parts
	partsOfRange   bool // P9.10: what an earlier process left undecided is given to parts
	partEnds       bool // P9.10: the first part that is decided moves the offset
}

// mScenario is the configuration of one exploration.
type mScenario struct {
	log     [2][]uint8 // by partition: events in log order, duplicates included
	key     [mIDs]uint8
	keyless bits
	nature  [mIDs]mNature
	age     [mIDs]mAge
	policy  FailurePolicy
	batch   int
	unnamed bool // the effect is a batch effect that does not name the event that failed
	tries   int  // MaxAttempts
	crashes int8 // CrashAttempts
	most    int  // ParkedPerKey; 0: any number
	late    bool // the progress is written only where it must be
	numbers bool // ByWatermark
	parts   bool // Parallel is 2; the log is in partition 0
	faults  mFaults
	rules   mRules

	events [2][]event.Event // of log
	hashes [mIDs][]byte
	ids    [mIDs]uuid.UUID
}

// The numbering that a scenario's events carry.
const (
	mEpoch = "5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.1"
	mLane  = 5
)

// mFaults bounds the number of each fault.
type mFaults struct{ rebalances, kills, lost, lostCounts, lateCommits, outages, releases, discards, restores uint8 }

// mClock has days that give each mAge its route.
var mClock = state{days.State{Today: 20000, Dropped: 19980, Floor: 19900, Until: -1, Dedup: "id"}}

const (
	mWindow = days.Number(14)
	mAhead  = 7
)

// mPhase is the next action of a partition's goroutine.
type mPhase uint8

const (
	mOff        mPhase = iota
	mLoad              // assigned: reads the progress
	mFetch             // between two calls of Handle
	mRange             // writes the range
	mCount             // waits to be alone, and counts
	mInsert            // inserts ids; waits for those in flight
	mLook              // looks for parked ids
	mMarks             // reads the marks FOR SHARE; waits for a releaser
	mQuarantine        // lists what is too old or too far ahead
	mRun               // runs the effects
	mMark              // in a parking transaction: creates or finds the mark and locks it
	mPass              // advances the progress and sends COMMIT
	mCommit            // COMMIT is sent
	mUncount           // takes the count back
	mHalted
	mProve // with proofByAbsence: looks for the row
	mDone  // a part has come to its end, or cannot go on
)

// mRunner is the goroutine of one process for one partition, and its assignment.
type mRunner struct {
	phase   mPhase
	lo, n   int8 // the events of the current call of Handle
	next    int8 // everything before it is decided
	told    int8 // the offset that it takes for committed
	doubt   bool // a commit of an offset had no answer
	walk    walk
	span    span
	fenced  bool // the generation is over, and this goroutine has not noticed
	counted bool // the current transaction is a counted run
	parking bool // it parks its event
	leaves  bool // the generation's end was noticed: only the count is decremented
	tx      mTx
	opened  bits // those of tx.ids in inbox_parked
	behind  bits // parked behind a mark
	early   bits // with marksFirst: parked behind a mark that was read too early
	listed  bits // quarantined by this transaction
	known   bool // ByWatermark: it has read the mark
	high    int8 // up to this number
	old     bool // another transaction has advanced the mark since
	mine    bits // of a part: its places in the log; empty: it is none
	whole   walk // of the batch, while its goroutine runs the first part
	news    bool // of a part: it had an event that was not a repeat
	passing bool // the batch moves the progress past its parts
	missing bits // to be quarantined, by the statement's snapshot
	asked   bool // that snapshot was taken
}

// inGate reports whether the goroutine holds its process's gate.
func (r *mRunner) inGate() bool {
	return r.phase > mInsert && r.phase <= mCommit && !r.parking || (r.phase == mUncount || r.phase == mInsert) &&
		r.counted
}

type mReleasePhase uint8

const (
	rOff    mReleasePhase = iota
	rLooked               // has found a release
	rAlone                // has found that the list's next event runs alone
	rLock
	rInsert
	rRun
	rCommit
	rUncount
	rFail
)

// mReleaser is Inbox.Run of one process.
type mReleaser struct {
	phase  mReleasePhase
	event  uint8 // + 1: the head
	key    uint8 // + 1; 0: the event alone
	stands uint8 // event + 1 that this process may have counted
	counts int   // counted runs of event when it was found
	batch  bits  // events of a key that run in one transaction, uncounted; empty: event runs, counted
	tx     mTx
}

// mState is the state of the model.
type mState struct {
	db        mDB
	backup    mDB
	backedUp  bool
	runner    [2][2]mRunner // of process, for partition
	releaser  [2]mReleaser
	up        [2]bool
	owner     [2]int8 // the process of the current generation; -1: none yet
	committed [2]int8 // the group's offsets
	late      [2]int8 // a commit of an offset that the broker has not handled yet; 0: none
	orphan    [2]mTx
	repaired  bool
	left      mFaults
	// History for the checks.
	kills, fails [mIDs]uint8
	why          string
}

func (sc *mScenario) prepare() {
	if sc.tries == 0 {
		sc.tries = 2
	}
	if sc.crashes == 0 {
		sc.crashes = 2
	}
	for e := range uint8(mIDs) {
		d := map[mAge]days.Number{mToday: mClock.Today, mTooOld: mClock.Dropped - 5, mTooFuture: mClock.Today +
			30}[sc.age[e]]
		id := uuid.UUID{6: 0x70, 8: 0x80, 15: e + 1}
		binary.BigEndian.PutUint32(id[:4], uint32(uint64(d)*(24*60*60*1000)>>16))
		binary.BigEndian.PutUint16(id[4:6], uint16(uint64(d)*(24*60*60*1000)))
		if sc.age[e] == mForeign {
			id = uuid.UUID{6: 0x40, 8: 0x80, 15: e + 1}
		}
		sc.ids[e] = id
		if !sc.keyless.has(e) {
			sc.hashes[e] = []byte{sc.key[e] + 1}
		}
	}
	for q, log := range sc.log {
		sc.events[q] = nil
		for _, e := range log {
			// A relay numbers first occurrences in order, and repeats an event under its number.
			sc.events[q] = append(sc.events[q],
				event.Event{
					ID: sc.ids[e], Key: string(sc.hashes[e]),
					Position: event.Position{Epoch: mEpoch, Lane: mLane, Seq: int64(e) + 1},
				})
		}
	}
}

func (sc *mScenario) model() explore.Model[mState, mState] {
	sc.prepare()
	start := mState{owner: [2]int8{-1, -1}, up: [2]bool{true, true}, left: sc.faults}
	return explore.Model[mState, mState]{
		Start: []mState{start}, Key: canonical, Next: sc.next, Bad: sc.bad, Good: sc.drained, MaxStates: 3_000_000,
	}
}

// canonical swaps the two processes, which are symmetric, into a canonical order.
func canonical(s *mState) mState {
	rank := func(p int) (n uint64) {
		for q := range s.runner[p] {
			r := &s.runner[p][q]
			n = n<<24 | uint64(r.phase)<<16 | uint64(r.next)<<12 | uint64(r.walk.pos)<<8 | uint64(
				r.walk.limit)<<4 | uint64(r.tx.ids)<<1 ^ uint64(r.span.from)
		}
		w := &s.releaser[p]
		return n<<8 | uint64(w.phase)<<5 | uint64(w.event)
	}
	if rank(0) <= rank(1) {
		return *s
	}
	t := *s
	t.runner[0], t.runner[1] = s.runner[1], s.runner[0]
	t.releaser[0], t.releaser[1] = s.releaser[1], s.releaser[0]
	t.up[0], t.up[1] = s.up[1], s.up[0]
	for q, o := range s.owner {
		if o >= 0 {
			t.owner[q] = 1 - o
		}
	}
	return t
}

func (sc *mScenario) keyOf(e uint8) uint8 {
	if sc.keyless.has(e) {
		return 0
	}
	return sc.key[e] + 1
}

// emit adds a step.
type emit func(explore.Step[mState])

func (do emit) step(to mState, fault bool, format string, args ...any) {
	do(explore.Step[mState]{To: to, Fault: fault, Name: func() string {
		text := fmt.Sprintf(format, args...)
		if fault {
			text += "   [fault]"
		}
		return text
	}})
}

func (sc *mScenario) next(s *mState, to func(explore.Step[mState])) {
	do := emit(to)
	for p := range s.runner {
		for q := range sc.log {
			if len(sc.log[q]) > 0 || sc.parts {
				sc.run(s, p, q, do)
			}
		}
		sc.releases(s, p, do)
		if !s.up[p] {
			t := *s
			t.up[p] = true
			do.step(t, false, "process %d starts again", p)
		}
	}
	sc.group(s, do)
	sc.operator(s, do)
	sc.misfortune(s, do)
	for i := range s.orphan {
		if s.orphan[i] != (mTx{}) {
			t := *s
			t.orphan[i] = mTx{}
			do.step(t, false, "the server rolls the orphaned transaction back")
			sc.commit(&t, &s.orphan[i])
			do.step(t, false, "the server commits the orphaned transaction, late")
		}
	}
}

// held returns the locks of all transactions but except.
func (s *mState) held(except *mTx) (l locks) {
	for p := range s.runner {
		for q := range s.runner[p] {
			if t := &s.runner[p][q].tx; t != except {
				l.add(t)
			}
		}
		if t := &s.releaser[p].tx; t != except {
			l.add(t)
		}
	}
	l.add(&s.orphan[0])
	l.add(&s.orphan[1])
	return l
}

// commit applies a COMMIT and checks it.
func (sc *mScenario) commit(s *mState, t *mTx) {
	for e := range uint8(mIDs) {
		if !t.ids.has(e) || t.forgotten.has(e) && !sc.rules.keepRow {
			continue
		}
		s.db.row[e] = 1
		if t.ran.has(e) {
			sc.applied(s, e)
		}
	}
	for _, p := range t.push {
		if p.event == 0 {
			continue
		}
		e := p.event - 1
		if p.kind == mFailed {
			sc.parked(s, e)
		}
		if p.kind != mQuarantined && s.db.row[e] != 0 && !sc.rules.keepRow {
			s.fault("parked although it is decided")
		}
		if !s.db.park(p) && p.kind != mQuarantined {
			s.fault("listed twice")
		}
	}
	for k := range uint8(mKeys) {
		if t.newMark.has(k) && s.db.mark[k] == 0 {
			s.db.mark[k] = 1
		}
	}
	s.db.leave(t.leave)
	if t.passes > 0 {
		s.db.progress[t.passes-1].pass(t.next)
	}
	if t.moves > 0 {
		s.moved(int(t.moves)-1, t.high)
	}
}

// moved sets a partition's mark. Every process that has read it then has an old version.
func (s *mState) moved(q int, high int8) {
	s.db.high[q] = high
	for p := range s.runner {
		s.runner[p][q].old = s.runner[p][q].known
	}
}

func (s *mState) fault(why string) {
	if s.why == "" {
		s.why = why
	}
}

// applied checks one effect: it is the event's only one, and the earlier events of the key are decided. An event that
// is set aside alone has left its key's order.
func (sc *mScenario) applied(s *mState, e uint8) {
	if s.db.effects[e]++; s.db.effects[e] > 1 {
		s.fault("a second effect")
	}
	if sc.keyless.has(e) || sc.policy == ParkEvent || sc.age[e] > mForeign {
		return
	}
	for earlier := range e {
		if sc.used(earlier) && !sc.keyless.has(earlier) && sc.age[earlier] <= mForeign &&
			sc.key[earlier] == sc.key[e] && s.db.row[earlier] == 0 {
			s.fault("an effect before an earlier one of its key")
		}
	}
}

// parked checks that an event that is parked as failed has itself failed often enough or kills its process.
func (sc *mScenario) parked(s *mState, e uint8) {
	ok := false
	switch sc.nature[e] {
	case mFlaky:
		ok = int(s.fails[e]) >= sc.tries
	case mRetryable:
		ok = s.fails[e] > 1
	case mTerminal, mKiller:
		ok = true
	}
	if !ok {
		s.fault("an innocent event is parked")
	}
}

func (sc *mScenario) used(e uint8) bool {
	for _, log := range sc.log {
		for _, other := range log {
			if other == e {
				return true
			}
		}
	}
	return false
}

// bad returns the violated invariant, or "".
func (sc *mScenario) bad(s *mState) string {
	if s.why != "" {
		return s.why
	}
	open := s.db.openIDs(^bits(0))
	for i, p := range s.db.parked {
		switch {
		case p.event == 0:
		case p.key > 0 && s.db.mark[p.key-1] == 0:
			return "an event waits in a list without a mark"
		case p.kind == mQuarantined && s.db.row[p.event-1] != 0 && i >= 0:
			return "quarantined although it is decided"
		}
	}
	for k := range uint8(mKeys) {
		if s.db.mark[k] != 0 && sc.quarantinedOnly(k) {
			return "quarantine takes its key with it"
		}
	}
	for q, log := range sc.log {
		if sc.faults.restores > 0 {
			break // after a restore the events are read again; drained checks them
		}
		for _, e := range log[:s.committed[q]] {
			if s.db.row[e] == 0 && !open.has(e) {
				return "a committed offset passed undecided work"
			}
		}
	}
	// A zombie may decrement a count, a lost answer may hide one, and each release starts at zero.
	f := &sc.faults
	bound := (uint8(sc.crashes) + 2) * (1 + f.rebalances + f.kills + f.lostCounts + f.lost + f.outages + f.releases)
	for e := range uint8(mIDs) {
		switch {
		case s.db.row[e] == 1 && s.db.effects[e] == 0:
			return "recorded as done, but never applied"
		case s.kills[e] > bound:
			return "an event kills without bound"
		}
	}
	return ""
}

// quarantinedOnly reports whether no event of the key can be parked for a failure.
func (sc *mScenario) quarantinedOnly(k uint8) bool {
	for e := range uint8(mIDs) {
		if sc.used(e) && sc.key[e] == k && sc.nature[e] != mFine {
			return false
		}
	}
	return true
}

// drained reports whether every event is decided and committed, and none is parked.
func (sc *mScenario) drained(s *mState) bool {
	for q, log := range sc.log {
		if int(s.committed[q]) < len(log) || s.db.progress[q].halted {
			return false
		}
		for _, e := range log {
			if s.db.row[e] == 0 {
				return false
			}
		}
	}
	return !s.db.open()
}

// String names the events of the set.
func (b bits) String() string {
	var list []string
	for e := range uint8(8) {
		if b.has(e) {
			list = append(list, fmt.Sprintf("e%d", e))
		}
	}
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, " ")
}

var errModel = errors.New("it failed")
