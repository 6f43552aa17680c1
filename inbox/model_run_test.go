//go:build !race

package inbox

import (
	mbits "math/bits"
	"slices"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// mMove is a goroutine that can take a step: of process p, for partition q.
type mMove struct {
	sc   *mScenario
	s    *mState
	p, q int
	at   int // in mState.runner; the second part of a batch has another place than its partition
	was  *mRunner
	l    locks // of everybody else
	do   emit
}

// to emits one step.
func (m *mMove) to(fault bool, text string, change func(t *mState, r *mRunner)) {
	t := *m.s
	change(&t, &t.runner[m.p][m.at])
	m.do.step(t, fault, "P%d p%d: %s", m.p, m.q, text)
}

// run emits the next step of a partition's goroutine: batch.step, statement by statement.
func (sc *mScenario) run(s *mState, p, at int, do emit) {
	was, q := &s.runner[p][at], at
	if was.phase == mOff {
		return
	}
	if sc.parts {
		q = 0
	}
	m := &mMove{sc, s, p, q, at, was, s.held(&was.tx), do}
	m.offsets()
	other := sc.parts && at == 0 && s.runner[p][1].phase != mOff // it waits for the other part
	if was.fenced && !was.leaves && was.phase != mCommit && !other {
		m.leaves()
	}
	locked := m.l.passes.has(uint8(q)) // somebody else's transaction has advanced the progress
	switch was.phase {
	case mLoad:
		m.to(false, "reads the progress", func(t *mState, r *mRunner) {
			if pr := &t.db.progress[q]; !pr.known {
				pr.write(r.next, r.next) // Begin
			}
			if pr := t.db.progress[q]; pr.from < pr.to {
				r.span.from, r.span.to = int64(pr.from), int64(pr.to)
			}
			sc.fetch(t, q, r)
		})
	case mRange:
		if !locked {
			m.to(false, "writes the range", func(t *mState, r *mRunner) {
				t.db.progress[q].write(r.offset(), r.lo+r.n)
				r.walk.written = true
				sc.step(t, q, r)
			})
		}
	case mCount:
		if sc.mayRun(s, p, true) && !locked {
			m.count()
		}
	case mRun: // the effects ran before the wait for the progress
		m.runs("")
	case mPass:
		if !locked {
			m.to(false, "sends COMMIT", func(t *mState, r *mRunner) { sc.pass(q, r) })
		}
	case mCommit:
		m.commits()
	case mUncount:
		if !locked {
			m.uncount()
		}
	case mHalted:
		if !s.db.progress[q].halted {
			m.to(false, "is resumed", func(t *mState, r *mRunner) {
				r.n, r.lo = r.lo+r.n-r.next, r.next
				r.walk = startWalk(int(r.n))
				sc.step(t, q, r)
			})
		}
	case mProve:
		m.proves()
	case mDone:
		if at == 0 && s.runner[p][1].phase == mDone {
			m.joins()
		}
	default:
		m.statement()
	}
}

// offset returns the offset of the event at pos.
func (r *mRunner) offset() int8 { return r.place(r.walk.pos) }

// place returns the offset of an event of the batch, or of the part.
func (r *mRunner) place(i int) int8 {
	for at := range int8(8) {
		if r.mine.has(uint8(at)) {
			if i == 0 {
				return at
			}
			i--
		}
	}
	return r.lo + int8(i) // of a batch
}

// length returns how many events the batch or the part has.
func (r *mRunner) length() int {
	if r.mine != 0 {
		return mbits.OnesCount8(uint8(r.mine))
	}
	return int(r.n)
}

// leaves: the goroutine notices the end of the generation. It decrements its count, then rolls the transaction back.
func (m *mMove) leaves() {
	rules := &m.sc.rules
	leave := func(r *mRunner) {
		r.rollback()
		if r.leaves = r.walk.counted && !rules.keepCount; r.leaves {
			r.phase, r.counted = mUncount, true
			return
		}
		*r = mRunner{}
	}
	m.to(false, "notices the end of its generation", func(t *mState, r *mRunner) { leave(r) })
	if m.was.phase == mCount && m.s.left.lostCounts > 0 {
		m.to(true, "notices the end of its generation while it counts", func(t *mState, r *mRunner) {
			t.left.lostCounts--
			t.db.progress[m.q].count(r.offset())
			r.walk.counted = !rules.keepLostCount
			leave(r)
		})
	}
}

func (r *mRunner) rollback() {
	r.tx, r.opened, r.behind, r.early, r.listed, r.missing, r.asked, r.passing = mTx{}, 0, 0, 0, 0, 0, false, false
}

// again rolls the transaction back, for another attempt.
func (sc *mScenario) again(t *mState, q int, r *mRunner) {
	r.rollback()
	if r.counted && r.walk.counted && !sc.rules.keepCount {
		r.phase = mUncount
		return
	}
	r.walk.counted, r.counted, r.parking = false, false, false
	sc.step(t, q, r)
}

// fetch begins the next call of Handle, if there are events.
func (sc *mScenario) fetch(t *mState, q int, r *mRunner) {
	left := len(sc.log[q]) - int(r.next)
	if left == 0 {
		r.phase, r.walk, r.lo, r.n = mFetch, walk{}, 0, 0
		return
	}
	r.lo, r.n = r.next, int8(min(left, sc.batch))
	r.walk = startWalk(int(r.n))
	if sc.rules.offsetFirst && !r.fenced {
		t.committed[q], r.told = r.lo+r.n, r.lo+r.n
	}
	sc.step(t, q, r)
}

// step is batch.step up to its first statement. No other goroutine sees what happens between two statements, so that is
// not a step of its own.
func (sc *mScenario) step(t *mState, q int, r *mRunner) {
	if r.walk.pos == r.length() {
		if r.mine != 0 {
			r.phase = mDone
			return
		}
		r.next = r.lo + r.n
		sc.fetch(t, q, r)
		return
	}
	if r.walk.givesUp() {
		if sc.policy == Halt {
			sc.halt(t, q, r, false)
			return
		}
		r.walk.limit = r.walk.pos + 1
		r.parking, r.counted, r.phase = true, false, mInsert
		return
	}
	left := r.span
	if sc.rules.partsOfRange {
		left = span{}
	}
	offset := func(i int) int64 { return int64(r.place(i)) }
	spreads := sc.parts && r.mine == 0 && r.walk.spreads(left, offset)
	r.counted = !spreads && r.walk.reach(left, offset)
	switch {
	case r.counted:
		r.phase = mCount
	case r.mine == 0 && !r.walk.written && r.span.writes(int64(r.offset())) && !sc.rules.noRange:
		r.phase = mRange
	case spreads && sc.spread(t, r):
	default:
		r.phase = mInsert
	}
}

// spread is batch.spread up to the start of the parts. It returns false if all events are of one.
func (sc *mScenario) spread(t *mState, r *mRunner) bool {
	r.walk.limit = int(r.n)
	r.walk.spreadTo = r.walk.limit
	var parts [2]bits
	if sc.rules.dealsAnyhow {
		for i := r.walk.pos; i < r.walk.limit; i++ {
			parts[i/2%2] |= bit(uint8(r.place(i)))
		}
	} else {
		for p, part := range deal(sc.events[0][r.offset():r.lo+r.n], 2) {
			for _, i := range part {
				parts[p] |= bit(uint8(r.place(r.walk.pos + i)))
			}
		}
	}
	if parts[1] == 0 {
		return false
	}
	for p := range t.runner {
		if r != &t.runner[p][0] {
			continue
		}
		r.whole = r.walk
		second := &t.runner[p][1]
		*second = mRunner{lo: r.lo, n: r.n, mine: parts[1]}
		r.mine = parts[0]
		for _, part := range []*mRunner{r, second} {
			part.walk, part.news, part.phase = startWalk(part.length()), false, mInsert
		}
		return true
	}
	panic("spread: a runner that is not in the state")
}

// joins is batch.spread from the end of the parts on.
func (m *mMove) joins() {
	m.to(false, "joins its parts", func(t *mState, r *mRunner) {
		second := &t.runner[m.p][1]
		undecided := r.lo + int8(r.whole.limit)
		for _, part := range []*mRunner{r, second} {
			if part.walk.pos < part.length() {
				undecided = min(undecided, part.offset())
			}
		}
		r.news, r.walk, r.mine = r.news || second.news, r.whole, 0
		*second = mRunner{}
		r.walk.limit = int(undecided - r.lo)
		switch {
		case r.walk.limit == r.walk.pos:
			r.walk.done(int(r.n))
			m.sc.step(t, m.q, r)
		case r.walk.written || !m.sc.late:
			r.passing, r.phase = true, mPass
		default:
			m.sc.joined(t, m.q, r)
		}
	})
}

func (sc *mScenario) joined(t *mState, q int, r *mRunner) {
	r.span.decided(int64(r.offset()), r.news)
	r.rollback()
	r.walk.done(int(r.n))
	sc.step(t, q, r)
}

// halt ends the call of Handle: what it decided may be committed.
func (sc *mScenario) halt(t *mState, q int, r *mRunner, full bool) {
	r.rollback()
	if r.mine != 0 {
		r.phase = mDone
		return
	}
	t.db.progress[q].halt(r.offset(), full)
	r.next = r.offset()
	r.counted, r.parking, r.phase = false, false, mHalted
}

// mayRun is a process's gate: it reports whether a run may begin, alone or beside others.
func (sc *mScenario) mayRun(s *mState, p int, alone bool) bool {
	if sc.rules.notAlone {
		return true
	}
	for q := range s.runner[p] {
		if r := &s.runner[p][q]; r.inGate() && (alone || r.counted) {
			return false
		}
	}
	w := &s.releaser[p]
	return w.phase <= rAlone || w.batch != 0 && (!alone || w.phase == rLock)
}

// count is the part of batch.attempt within the gate.
func (m *mMove) count() {
	sc, q := m.sc, m.q
	if sc.rules.countAfter {
		m.to(false, "runs without counting", func(t *mState, r *mRunner) { r.phase = mInsert })
		return
	}
	if m.was.walk.counted {
		m.to(false, "enters the gate; a count of its own may stand", func(t *mState, r *mRunner) { r.phase = mInsert })
		return
	}
	m.to(false, "counts its run", func(t *mState, r *mRunner) {
		attempts, from := t.db.progress[q].count(r.offset())
		if from == r.offset() && attempts > sc.crashes {
			r.walk.spent(0)
			r.counted = false
			sc.step(t, q, r)
			return
		}
		r.walk.counted, r.phase = true, mInsert
	})
	if m.s.left.lostCounts == 0 {
		return
	}
	for _, happened := range []bool{true, false} {
		m.to(true, "counts its run, and the answer is lost", func(t *mState, r *mRunner) {
			t.left.lostCounts--
			if happened {
				t.db.progress[q].count(r.offset())
			}
			r.walk.counted, r.counted, r.phase = true, true, mUncount
			if sc.rules.keepLostCount {
				r.walk.counted, r.counted = false, false
				sc.step(t, q, r)
			}
		})
	}
}

func (m *mMove) uncount() {
	after := func(t *mState, r *mRunner) {
		if r.leaves {
			*r = mRunner{}
			return
		}
		r.counted, r.parking = false, false
		m.sc.step(t, m.q, r)
	}
	m.to(false, "takes the count back", func(t *mState, r *mRunner) {
		t.db.progress[m.q].uncount(r.offset())
		r.walk.counted = false
		after(t, r)
	})
	if m.s.left.lostCounts == 0 {
		return
	}
	for _, happened := range []bool{true, false} {
		m.to(true, "takes the count back, and the answer is lost", func(t *mState, r *mRunner) {
			t.left.lostCounts--
			if happened {
				t.db.progress[m.q].uncount(r.offset())
			}
			after(t, r)
		})
	}
}

// present returns the events of the open transaction, as production's values and as numbers; mine are those that get a
// row.
func (m *mMove) present() (events []event.Event, numbers []uint8, mine bits) {
	for i := m.was.walk.pos; i < m.was.walk.limit; i++ {
		at := m.was.place(i)
		events, numbers = append(events, m.sc.events[m.q][at]), append(numbers, m.sc.log[m.q][at])
	}
	for i, e := range numbers {
		if w := mClock.route(events[i].ID, mWindow, mAhead); w == inDay || w == inAny {
			mine |= bit(e)
		}
	}
	return events, numbers, mine
}

// statement is one statement of the open transaction.
func (m *mMove) statement() {
	sc := m.sc
	events, numbers, mine := m.present()
	switch m.was.phase {
	case mInsert:
		if sc.numbers {
			m.moveMark(events, numbers)
			return
		}
		m.insert(events, mine)
	case mLook:
		m.look(events)
	case mMarks:
		if sc.keys(m.was.tx.ids).any(m.l.update) && !sc.rules.sharedMarkless {
			m.to(false, "waits for a releaser: deadlock or time-out", func(t *mState, r *mRunner) {
				sc.again(t, m.q, r)
			})
			return
		}
		r := *m.was
		t := *m.s
		if sc.setAside(&t, m.q, &r, events, numbers); r.phase == mRun {
			n := *m
			n.was = &r
			n.runs("reads the marks, ")
			return
		}
		m.to(false, "reads the marks", func(t *mState, r *mRunner) { sc.setAside(t, m.q, r, events, numbers) })
	case mQuarantine:
		m.quarantine()
	case mMark:
		m.mark(numbers[0])
	}
}

// look is sqlOpen and sqlOpenIDs. If no event is parked, the effects run at once.
func (m *mMove) look(events []event.Event) {
	sc := m.sc
	r := *m.was
	if r.opened = m.s.db.openIDs(r.tx.ids); sc.rules.openRuns {
		r.opened = 0
	}
	switch {
	case r.parking:
		r.phase = mMark
	case m.s.db.open() || r.early != 0 || sc.plan(&r, events).undecidable > 0:
		r.phase = mMarks
	default:
		n := *m
		n.was = &r
		n.runs("finds nothing open, ")
		return
	}
	m.to(false, "looks for what is open", func(_ *mState, to *mRunner) { *to = r })
}

// insert is the first pipeline of every transaction, in the gate. It waits for twins in flight.
func (m *mMove) insert(events []event.Event, mine bits) {
	sc := m.sc
	if sc.rules.marksFirst && !m.was.parking && !m.was.asked {
		if !sc.keys(mine).any(m.l.update) {
			m.to(false, "reads the marks, too early", func(t *mState, r *mRunner) {
				r.early, _ = t.db.marks(sc.keys(mine))
				r.tx.share, r.asked = r.early, true
			})
		}
		return
	}
	if !m.was.parking && !m.was.counted && !sc.mayRun(m.s, m.p, m.was.counted) {
		return
	}
	blind := m.was.parking && sc.rules.parkBlind
	if mine.any(m.l.ids) && !blind {
		return
	}
	m.to(false, "inserts "+mine.String(), func(t *mState, r *mRunner) {
		if r.tx.ids = t.db.insert(mine); blind {
			r.tx.ids = mine
		}
		r.asked, r.phase = false, mLook
		switch {
		case !r.parking:
		case sc.plan(r, events).undecidable > 0:
			r.phase = mMarks
		case r.tx.ids == 0:
			r.phase = mPass // a duplicate
		}
	})
}

// moveMark is the first pipeline by watermark. It waits for a transaction that replaces the same row, and fails if its
// own version is old.
func (m *mMove) moveMark(events []event.Event, numbers []uint8) {
	sc, q := m.sc, m.q
	if !m.was.known {
		m.to(false, "reads how far it is decided", func(t *mState, r *mRunner) {
			r.known, r.high, r.old = true,
				t.db.high[q], false
		})
		return
	}
	if !m.was.parking && !m.was.counted && !sc.mayRun(m.s, m.p, m.was.counted) || m.l.moves.has(uint8(q)) {
		return
	}
	if m.was.old && !sc.rules.markUnproven && (!m.was.parking || !sc.rules.parkUnproven) {
		m.to(false, "finds its mark moved", func(t *mState, r *mRunner) {
			r.known, r.high, r.old = false, 0, false
			sc.again(t, q, r)
		})
		return
	}
	m.to(false, "advances the mark", func(t *mState, r *mRunner) {
		plan := sc.plan(r, events)
		r.tx.moves, r.tx.high = uint8(q)+1, int8(plan.watermarks.of[0].lanes[mLane])
		for _, id := range plan.ids {
			if id.isNew {
				r.tx.ids |= bit(numbers[id.index])
			}
		}
		if r.parking && sc.rules.parkLeavesMark {
			r.tx.high = r.high
		}
		if sc.rules.markApart {
			t.moved(q, r.tx.high)
		}
		if r.phase = mLook; r.parking && r.tx.ids == 0 {
			r.phase = mPass // a duplicate
		}
	})
}

// marks returns the marks that the process has read for its partition.
func (r *mRunner) marks() *watermarks {
	m := &watermarks{}
	if n, _ := numberingOf(mEpoch); r.high > 0 {
		m.of = []watermark{{numbering: n, version: 1, lanes: map[int16]int64{mLane: int64(r.high)}}}
	}
	return m
}

// plan returns the plan of the open transaction, with the inserted ids.
func (sc *mScenario) plan(r *mRunner, events []event.Event) *planned {
	if sc.numbers {
		p, f := r.marks().plan(events, false, sc.policy == Halt, r.parking)
		if f != nil {
			panic(f.err)
		}
		return p
	}
	p, f := mClock.plan(events, mWindow, mAhead, sc.policy == Halt)
	if f != nil {
		panic(f.err)
	}
	for e := range uint8(mIDs) {
		if r.tx.ids.has(e) && !p.new(sc.ids[e]) {
			panic("an id was inserted that was not sent")
		}
	}
	if !p.holds(&mClock, mWindow, mAhead) {
		panic("the clock of the model stands still")
	}
	return p
}

// keys returns the keys of events.
func (sc *mScenario) keys(events bits) (keys bits) {
	for e := range uint8(mIDs) {
		if events.has(e) && !sc.keyless.has(e) {
			keys |= bit(sc.key[e])
		}
	}
	return keys
}

// setAside is Inbox.setAside from the marks on.
func (sc *mScenario) setAside(t *mState, q int, r *mRunner, events []event.Event, numbers []uint8) {
	plan := sc.plan(r, events)
	marked, full := t.db.marks(sc.keys(r.tx.ids))
	if !sc.rules.sharedMarkless {
		r.tx.share |= marked
	}
	if sc.rules.marksFirst {
		marked = r.early
	}
	marks, open := map[string]bool{}, map[uuid.UUID]int64{}
	hashes := make([][]byte, len(events))
	for i, e := range numbers {
		if hashes[i] = sc.hashes[e]; hashes[i] != nil && marked.has(sc.key[e]) {
			marks[string(hashes[i])] = full.has(sc.key[e])
		}
		if r.opened.has(e) {
			open[events[i].ID] = 0
		}
	}
	list, at := plan.aside(hashes, marks, open, sc.most > 0)
	if at >= 0 {
		if r.walk.upTo(r.walk.pos + at) {
			sc.again(t, q, r)
			return
		}
		r.walk.stops()
		sc.halt(t, q, r, true)
		return
	}
	for _, a := range list {
		e := numbers[plan.ids[a.at].index]
		switch a.verdict {
		case asideQuarantine:
			r.missing |= bit(e)
		case asideOpen:
			r.tx.forgotten |= bit(e)
		case asideBehind:
			r.behind |= bit(e)
			r.tx.forgotten |= bit(e)
			r.tx.list(mParked{event: e + 1, key: sc.keyOf(e), kind: mBehind})
		}
	}
	if r.phase = mRun; r.missing != 0 {
		r.phase = mQuarantine
	}
}

// quarantine is sqlQuarantine: its snapshot, and its unique index, which waits for other transactions that insert or
// delete the rows.
func (m *mMove) quarantine() {
	sc, busy := m.sc, m.was.missing.any(m.l.push|m.l.leave)
	if busy && m.was.asked {
		return
	}
	m.to(false, "quarantines", func(t *mState, r *mRunner) {
		if !r.asked {
			r.missing, r.asked = t.db.quarantine(r.missing), true
		}
		if busy {
			return // it waits, and its snapshot grows old
		}
		if !sc.rules.oneLook {
			r.missing = t.db.quarantine(r.missing) // sqlUnquarantine
		}
		for e := range uint8(mIDs) {
			if r.missing.has(e) && !t.db.openIDs(bit(e)).has(e) {
				r.listed |= bit(e)
				row := mParked{event: e + 1, kind: mQuarantined}
				if sc.rules.quarantineKey {
					row.key = sc.keyOf(e)
					r.tx.newMark |= bit(sc.key[e])
				}
				r.tx.list(row)
			}
		}
		r.missing, r.asked = 0, false
		if r.phase = mRun; r.parking {
			r.phase = mPass
		}
	})
}

// mark is the rest of a parking transaction: unless the event is parked already, its mark is created or found and
// locked, and the event is parked.
func (m *mMove) mark(e uint8) {
	sc := m.sc
	list := func(r *mRunner, key uint8) {
		r.tx.list(mParked{event: e + 1, key: key, kind: mFailed})
		r.tx.forgotten |= bit(e)
		r.phase = mPass
	}
	key := sc.keyOf(e)
	switch {
	case m.was.opened.has(e):
		m.to(false, "finds it open", func(t *mState, r *mRunner) { r.tx.forgotten, r.phase = bit(e), mPass })
	case key == 0 || sc.policy == ParkEvent:
		m.to(false, "parks it alone", func(t *mState, r *mRunner) { list(r, 0) })
	case m.l.newMark.has(key-1) || m.l.update.has(key-1):
		return
	default:
		m.to(false, "parks it with its key", func(t *mState, r *mRunner) {
			if t.db.mark[key-1] == 0 {
				r.tx.newMark |= bit(key - 1)
			} else if !sc.rules.parkBlind {
				r.tx.share |= bit(key - 1)
			}
			list(r, key)
		})
	}
}

// outcomes returns the outcomes of the open transaction's events, and the events that run.
func (sc *mScenario) outcomes(r *mRunner, events []event.Event, numbers []uint8) (out []Outcome, fresh []int) {
	out = make([]Outcome, len(events))
	if r.parking {
		switch {
		case r.listed != 0:
			out[0] = Quarantined
		case r.tx.push[0].event > 0:
			out[0] = Parked
		default:
			out[0] = Duplicate
		}
		return out, nil
	}
	plan, a := sc.plan(r, events), &aside{outcomes: map[int]Outcome{}}
	listed := r.listed
	for i, e := range numbers {
		first := slices.Index(numbers, e) == i
		switch w := mClock.route(events[i].ID, mWindow, mAhead); {
		case w == tooOld || w == tooFuture:
			if a.outcomes[i] = Duplicate; listed.has(e) {
				a.outcomes[i] = Quarantined
				listed &^= bit(e)
			}
		case r.opened.has(e) && first:
			a.outcomes[i] = Duplicate
		case r.behind.has(e) && first:
			a.outcomes[i] = Parked
		}
	}
	return out, plan.fresh(events, nil, a, out)
}

// runs runs the effects of the new events in the order of the log, and sends COMMIT.
func (m *mMove) runs(text string) {
	sc, s := m.sc, m.s
	events, numbers, _ := m.present()
	r := *m.was
	_, fresh := sc.outcomes(&r, events, numbers)
	ran := bits(0)
	for _, i := range fresh {
		e := numbers[i]
		nature := sc.nature[e]
		if s.repaired {
			nature = mFine
		}
		index := m.was.walk.pos + i
		if sc.unnamed {
			index = m.was.walk.pos - 1
		}
		switch nature {
		case mFlaky:
			m.fails(e, index, classNone, false)
		case mRetryable:
			m.fails(e, index, classRetryable, false)
			if s.fails[e] > 0 {
				m.fails(e, index, classRetryable, true)
			}
		case mTerminal:
			m.fails(e, index, classTerminal, false)
			return
		case mKiller:
			m.to(false, text+"runs "+bit(e).String()+", which kills the process", func(t *mState, _ *mRunner) {
				t.die(m.p)
				t.kills[e]++
			})
			return
		}
		ran |= bit(e)
	}
	if m.was.mine == 0 && m.l.passes.has(uint8(m.q)) {
		return // it waits for the progress
	}
	m.to(false, text+"runs "+ran.String()+", sends COMMIT", func(t *mState, r *mRunner) {
		*r = *m.was
		r.tx.ran = ran
		m.sc.pass(m.q, r)
	})
}

// pass advances the progress and sends COMMIT.
func (sc *mScenario) pass(q int, r *mRunner) {
	if r.mine == 0 && (r.walk.written || r.counted || r.parking || !sc.late) && !sc.rules.passApart {
		r.tx.passes, r.tx.next = uint8(q)+1, r.lo+int8(r.walk.limit)
	}
	r.phase = mCommit
}

func (m *mMove) fails(e uint8, index int, c class, waitedOut bool) {
	text := "runs " + bit(e).String() + ", which fails"
	if waitedOut {
		text += " for too long"
	}
	m.to(false, text, func(t *mState, r *mRunner) {
		before := r.walk
		r.walk.failed(index, c, m.sc.tries, waitedOut)
		r.walk.runs = 0 // only reported
		if m.sc.rules.doomPassedOn && before.doomed {
			r.walk.doomed = true
		}
		t.fails[e] = min(t.fails[e]+1, uint8(max(m.sc.tries, 2)))
		m.sc.again(t, m.q, r)
	})
}

// offsets emits commits of the offset, as committer does: of a new one, and again after one that had no answer, once
// the wire is quiet.
func (m *mMove) offsets() {
	s, q, r := m.s, m.q, m.was
	again := r.doubt && s.late[q] == 0 && !m.sc.rules.lateStays
	if r.fenced || r.next <= r.told && !again {
		return
	}
	m.to(false, "commits the offset", func(t *mState, r *mRunner) {
		t.committed[q], r.told, r.doubt = r.next, r.next, r.doubt && t.late[q] > 0
	})
	if s.left.lateCommits > 0 && s.late[q] == 0 {
		m.to(true, "commits the offset, without an answer", func(t *mState, r *mRunner) {
			t.left.lateCommits--
			t.late[q], r.told, r.doubt = r.next, r.next, true
		})
	}
}

// commits emits the results of a COMMIT that was sent.
func (m *mMove) commits() {
	sc := m.sc
	m.to(false, "is told of its COMMIT", func(t *mState, r *mRunner) {
		if r.passing {
			sc.commit(t, &r.tx)
			sc.joined(t, m.q, r)
			return
		}
		events, numbers, _ := m.present()
		out, _ := sc.outcomes(r, events, numbers)
		sc.commit(t, &r.tx)
		sc.decided(t, m.q, r, out)
	})
	if m.s.left.lost == 0 {
		return
	}
	t := *m.s
	r := &t.runner[m.p][m.at]
	if !t.orphaned(r.tx) {
		return
	}
	t.left.lost--
	if sc.rules.proofByAbsence {
		r.rollback()
		r.phase = mProve
	} else {
		sc.again(&t, m.q, r)
	}
	m.do.step(t, true, "P%d p%d: is not told of its COMMIT", m.p, m.q)
}

// decided records the outcomes of a committed transaction.
func (sc *mScenario) decided(t *mState, q int, r *mRunner, out []Outcome) {
	if r.tx.moves > 0 {
		r.high, r.old = r.tx.high, false
	}
	news := slices.ContainsFunc(out, func(o Outcome) bool { return o != Duplicate })
	if r.news = r.news || news; r.mine == 0 {
		r.span.decided(int64(r.offset()), news)
	}
	r.rollback()
	r.walk.done(r.length())
	if sc.rules.partEnds && r.mine != 0 && r.walk.pos == r.length() {
		t.committed[q] = max(t.committed[q], r.place(r.length()-1)+1)
	}
	r.walk.counted, r.counted, r.parking = false, false, false
	sc.step(t, q, r)
}

// proves is the wrong rule proofByAbsence: a missing row counts as a rollback, and the event as failed.
func (m *mMove) proves() {
	m.to(false, "looks for its rows", func(t *mState, r *mRunner) {
		_, numbers, _ := m.present()
		for _, e := range numbers {
			if t.db.row[e] == 0 {
				r.walk.spent(0)
				m.sc.step(t, m.q, r)
				return
			}
		}
		m.sc.decided(t, m.q, r, []Outcome{Applied})
	})
}
