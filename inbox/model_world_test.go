//go:build !race

package inbox

import (
	mbits "math/bits"

	"github.com/effectonce/effectonce/outcome"
)

// releases emits the next steps of process p's releaser.
func (sc *mScenario) releases(s *mState, p int, do emit) {
	if !s.up[p] {
		return
	}
	was := &s.releaser[p]
	to := func(fault bool, text string, change func(t *mState, w *mReleaser)) {
		t := *s
		change(&t, &t.releaser[p])
		do.step(t, fault, "P%d releaser: %s", p, text)
	}
	l := s.held(&was.tx)
	free := was.key > 0 && !(l.update|l.share).has(was.key-1) || was.key == 0 && was.event > 0 &&
		!l.alone.has(was.event-1)
	switch was.phase {
	case rOff:
		sc.looks(s, to)
	case rLooked:
		switch {
		case was.key > 0 && free:
			sc.plansRelease(to)
		case was.key == 0 && free && sc.mayRun(s, p, true):
			sc.countsRelease(s, to)
		}
	case rAlone:
		if free && sc.mayRun(s, p, true) {
			sc.countsRelease(s, to)
		}
	case rLock:
		if free && (was.batch == 0 || sc.mayRun(s, p, false)) {
			to(false, "locks", func(t *mState, w *mReleaser) {
				if !t.db.begins(w) || !t.db.releasing(w) {
					w.over() // another process has it
					return
				}
				w.lock()
				w.phase = rInsert
			})
		}
	case rInsert:
		events := was.events()
		if l.ids.any(events) {
			to(false, "waits for a twin: deadlock or time-out", func(t *mState, w *mReleaser) { w.over() })
			return
		}
		to(false, "inserts "+events.String(), func(t *mState, w *mReleaser) {
			w.tx.ids = t.db.insert(events)
			if w.phase = rRun; w.tx.ids == 0 {
				w.tx.leave, w.phase = events, rCommit
			}
		})
	case rRun:
		sc.runsRelease(s, p, to)
	case rCommit:
		to(false, "is told of its COMMIT", func(t *mState, w *mReleaser) {
			sc.commit(t, &w.tx)
			*w = mReleaser{}
		})
		if s.left.lost > 0 {
			t := *s
			w := &t.releaser[p]
			if t.orphaned(w.tx) {
				t.left.lost--
				w.over()
				do.step(t, true, "P%d releaser: is not told of its COMMIT", p)
			}
		}
	case rUncount:
		to(false, "takes the count back", func(t *mState, w *mReleaser) {
			t.db.uncountRelease(w.event)
			*w = mReleaser{}
		})
		if s.left.lostCounts > 0 {
			to(true, "takes the count back, and the answer is lost", func(t *mState, w *mReleaser) {
				t.left.lostCounts--
				*w = mReleaser{stands: w.event}
			})
		}
	case rFail:
		if free {
			to(false, "parks it again", func(t *mState, w *mReleaser) {
				if at := t.db.head(w.key, w.event); at >= 0 && t.db.parked[at].event == w.event && t.db.releasing(w) {
					t.db.failedAgain(at)
				}
				*w = mReleaser{}
			})
		}
	}
}

func (w *mReleaser) lock() {
	if w.key > 0 {
		w.tx.update = w.key
	} else {
		w.tx.alone = w.event
	}
}

// events returns the events that run.
func (w *mReleaser) events() bits {
	if w.batch != 0 {
		return w.batch
	}
	return bit(w.event - 1)
}

// over ends a transaction: a count is decremented, the note of a batch stays.
func (w *mReleaser) over() {
	if w.tx, w.phase = (mTx{}), rUncount; w.batch != 0 {
		*w = mReleaser{stands: w.stands}
	}
}

// begins reports whether the list still begins with the events that run.
func (d *mDB) begins(w *mReleaser) bool {
	if w.batch == 0 {
		at := d.head(w.key, w.event)
		return at >= 0 && d.parked[at].event == w.event
	}
	events, _ := d.list(w.key)
	first := bits(0)
	for _, e := range events[:min(len(events), mbits.OnesCount8(uint8(w.batch)))] {
		first |= bit(e - 1)
	}
	return first == w.batch
}

// releasing reads the state that sql.LockMark or sqlLockAlone returns.
func (d *mDB) releasing(w *mReleaser) bool {
	if w.key > 0 {
		return d.mark[w.key-1] == 2
	}
	at := d.head(0, w.event)
	return at >= 0 && d.parked[at].key == 0 && d.parked[at].releasing
}

// looks is sqlReleasing: it finds a release, its next event and that event's counted runs.
func (sc *mScenario) looks(s *mState, to func(bool, string, func(*mState, *mReleaser))) {
	look := func(key, alone uint8, what string) {
		to(false, "looks at "+what, func(t *mState, w *mReleaser) {
			w.phase, w.key, w.event = rLooked, key, alone
			if at := t.db.head(key, alone); at >= 0 {
				w.event, w.counts = t.db.parked[at].event, int(t.db.parked[at].attempts)
			}
		})
	}
	for k := range uint8(mKeys) {
		if s.db.mark[k] == 2 {
			look(k+1, 0, "a key")
		}
	}
	for _, row := range s.db.parked {
		if row.event > 0 && row.key == 0 && row.releasing {
			look(0, row.event, bit(row.event-1).String())
		}
	}
}

// plansRelease is Inbox.planRelease: a transaction that determines how many events of a list run together, and notes
// it.
func (sc *mScenario) plansRelease(to func(bool, string, func(*mState, *mReleaser))) {
	to(false, "looks at the list", func(t *mState, w *mReleaser) {
		events, alone := t.db.list(w.key)
		switch {
		case !t.db.releasing(w):
			*w = mReleaser{stands: w.stands}
		case len(events) < 2 || alone > 0:
			w.phase = rAlone
		default:
			for _, e := range events {
				w.batch |= bit(e - 1)
			}
			if w.phase = rLock; !sc.rules.bareBatch {
				t.db.noteBatch(events[len(events)-1])
			}
		}
	})
}

// countsRelease is Inbox.countRelease: a transaction that waits only for its first lock.
func (sc *mScenario) countsRelease(s *mState, to func(bool, string, func(*mState, *mReleaser))) {
	count := func(t *mState, w *mReleaser) {
		r := released{seen: int64(w.event), counts: w.counts}
		at := t.db.head(w.key, w.event)
		one := w.key > 0 && t.db.length(w.key) == 1
		switch {
		case w.key > 0 && t.db.mark[w.key-1] != 2, w.key == 0 && !t.db.releasing(w):
			*w = mReleaser{stands: w.stands}
			return
		case at < 0, sc.rules.unmarkBlind && one && t.db.parked[at].kind == mBehind:
			t.db.mark[w.key-1], t.db.atBound[w.key-1] = 0, false
			*w = mReleaser{stands: w.stands}
			return
		}
		head := record{id: int64(t.db.parked[at].event), attempts: int(t.db.parked[at].attempts)}
		if !r.uncounted(&head) {
			*w = mReleaser{stands: w.stands}
			return
		}
		w.event = t.db.parked[at].event
		if w.stands == w.event {
			head.attempts--
		} else if !sc.rules.uncountedRun {
			t.db.countRelease(w.event)
		}
		w.stands, w.counts = 0, 0
		if w.phase = rLock; head.attempts >= int(sc.crashes) {
			w.phase = rFail
			if sc.nature[w.event-1] != mKiller {
				t.fault("an innocent event is parked")
			}
		}
	}
	to(false, "counts the run of a release", count)
	if s.left.lostCounts > 0 {
		to(true, "counts the run of a release, and the answer is lost", func(t *mState, w *mReleaser) {
			t.left.lostCounts--
			if count(t, w); w.phase == rOff {
				return
			}
			if w.phase = rUncount; sc.rules.keepLostCount {
				*w = mReleaser{}
			}
		})
	}
}

func (sc *mScenario) runsRelease(s *mState, p int, to func(bool, string, func(*mState, *mReleaser))) {
	was := &s.releaser[p]
	ends := func(e uint8, err error, waitedOut bool) {
		to(false, "runs "+bit(e).String()+", which fails", func(t *mState, w *mReleaser) {
			if w.batch != 0 {
				w.over()
				return
			}
			w.tx, w.phase = mTx{}, rFail
			if releaseEnd(&failure{kind: failed, err: err}, func() bool { return waitedOut }) == releaseLater {
				w.phase = rUncount
			}
		})
	}
	for e := range uint8(mIDs) { // the order of every list
		if !was.tx.ids.has(e) || s.repaired {
			continue
		}
		switch sc.nature[e] {
		case mFlaky:
			ends(e, errModel, false)
		case mRetryable:
			ends(e, outcome.Retryable(errModel), false)
			ends(e, outcome.Retryable(errModel), true)
		case mTerminal:
			ends(e, outcome.Terminal("x", errModel), false)
			return
		case mKiller:
			to(false, "runs "+bit(e).String()+", which kills the process", func(t *mState, _ *mReleaser) {
				t.die(p)
				t.kills[e]++
			})
			return
		}
	}
	to(false, "runs "+was.tx.ids.String(), func(t *mState, w *mReleaser) {
		w.tx.ran, w.tx.leave, w.phase = w.tx.ids, w.events(), rCommit
	})
}

// group emits assignments to a process that is up and has no goroutine for the partition.
func (sc *mScenario) group(s *mState, do emit) {
	for q := range sc.log {
		for p := range s.runner {
			if len(sc.log[q]) == 0 || !s.up[p] || s.runner[p][q].phase != mOff {
				continue
			}
			t, o := *s, s.owner[q]
			idle := o < 0 || !s.up[o] || s.runner[o][q].phase == mOff
			if !idle {
				if s.left.rebalances == 0 {
					continue
				}
				t.left.rebalances--
				t.runner[o][q].fenced = true
				if sc.parts {
					t.runner[o][1].fenced = true
				}
			}
			t.owner[q] = int8(p)
			// As the consumer does: at the group's offset, or at the database's progress if that is behind, or where
			// the group began, which its offset's metadata tell, if the database knows nothing.
			at := s.committed[q]
			switch pr := s.db.progress[q]; {
			case pr.known && pr.from < at:
				at = pr.from
			case !pr.known && !sc.rules.beginsAtGroup:
				at = 0
			}
			t.late[q] = 0 // of another generation: the broker refuses it
			t.runner[p][q] = mRunner{phase: mLoad, next: at, told: s.committed[q], span: span{armed: true}}
			do.step(t, !idle, "partition %d goes to process %d", q, p)
		}
	}
}

// die ends a process, with its transactions that have not sent COMMIT.
func (s *mState) die(p int) {
	s.runner[p], s.releaser[p], s.up[p] = [2]mRunner{}, mReleaser{}, false
}

func (s *mState) orphaned(t mTx) bool {
	for i := range s.orphan {
		if s.orphan[i] == (mTx{}) {
			s.orphan[i] = t
			return true
		}
	}
	return false
}

// misfortune emits late commits, kills, outages and restores.
func (sc *mScenario) misfortune(s *mState, do emit) {
	for q, next := range s.late {
		if next > 0 {
			t := *s
			t.committed[q], t.late[q] = next, 0
			do.step(t, false, "the broker handles the late commit of partition %d", q)
		}
	}
	if s.left.kills > 0 {
		for p := range s.up {
			if !s.up[p] {
				continue
			}
			t := *s
			t.left.kills--
			t.die(p)
			do.step(t, true, "process %d is killed", p)
			for q := range s.runner[p] {
				if r := &s.runner[p][q]; r.phase == mCommit {
					u := t
					if u.orphaned(r.tx) {
						do.step(u, true, "process %d is killed, the COMMIT for partition %d under way", p, q)
					}
				}
			}
		}
	}
	if s.left.outages > 0 {
		t := *s
		t.left.outages--
		t.orphan = [2]mTx{}
		for p := range t.runner {
			for q := range t.runner[p] {
				if r := &t.runner[p][q]; r.phase >= mInsert && r.phase <= mCommit {
					sc.again(&t, q, r)
				}
			}
			if w := &t.releaser[p]; w.phase > rAlone {
				w.over()
			}
		}
		do.step(t, true, "the database crashes and comes back")
	}
	sc.restore(s, do)
}

// restore emits a backup, and a restore from it with the processes stopped.
func (sc *mScenario) restore(s *mState, do emit) {
	if s.left.restores == 0 {
		return
	}
	t := *s
	if !s.backedUp {
		t.backup, t.backedUp = s.db, true
		do.step(t, true, "a backup is taken")
		return
	}
	t.left.restores--
	t.db, t.backup, t.orphan = s.backup, mDB{}, [2]mTx{}
	t.die(0)
	t.die(1)
	do.step(t, true, "the processes are stopped, and the database is restored from the backup")
}

// operator emits the operator's commands. Once the code is repaired, releases are unbounded.
func (sc *mScenario) operator(s *mState, do emit) {
	if !s.repaired {
		t := *s
		t.repaired = true
		do.step(t, false, "the operator repairs the code")
	}
	if sc.most > 0 {
		if t := *s; true {
			if t.db.bound(sc.most); t.db != s.db {
				do.step(t, false, "the lists are measured")
			}
		}
	}
	l := s.held(nil)
	releasing := func(change func(t *mState), what bits, name string) {
		if !s.repaired && s.left.releases == 0 {
			return
		}
		t := *s
		if !s.repaired {
			t.left.releases--
		}
		change(&t)
		do.step(t, !s.repaired, "the operator releases %s %d", name, what)
	}
	for k := range uint8(mKeys) {
		if s.db.mark[k] == 1 && !(l.share | l.update).has(k) {
			releasing(func(t *mState) { t.db.releaseKey(k + 1) }, bits(k), "key")
		}
	}
	for i, row := range s.db.parked {
		if row.event == 0 || l.ids.has(row.event-1) {
			continue
		}
		if row.key == 0 && !row.releasing && !l.alone.has(row.event-1) {
			releasing(func(t *mState) { t.db.releaseEvent(i) }, bits(row.event-1), "event")
		}
		if locked := row.key > 0 && (l.share|l.update).has(row.key-1) || l.alone.has(row.event-1); !locked &&
			s.left.discards > 0 {
			t := *s
			t.left.discards--
			t.db.discard(row)
			do.step(t, true, "the operator discards e%d", row.event-1)
		}
	}
	for q := range s.db.progress {
		if pr := &s.db.progress[q]; pr.halted && !pr.full && s.repaired && !l.passes.has(uint8(q)) {
			t := *s
			if attempts := t.db.progress[q].attempts; sc.rules.resumeKeeps {
				t.db.progress[q].resume()
				t.db.progress[q].attempts = attempts
			} else {
				t.db.progress[q].resume()
			}
			do.step(t, false, "the operator resumes partition %d", q)
		}
	}
}

// discard is Operator.discard.
func (d *mDB) discard(row mParked) {
	if e := row.event - 1; d.row[e] == 0 {
		d.row[e] = 2
	}
	d.leave(bit(row.event - 1))
	if row.key > 0 {
		d.unmark(row.key)
	}
}
