//go:build !race

package inbox

// The model's database: each statement of queries*.go is a method of the statement's name. TestModelDatabase compares
// them with Postgres. A transaction is a value: its locks, and the changes of its COMMIT. Reads see committed data
// (READ COMMITTED).

const (
	mIDs  = 5
	mKeys = 3
)

// bits is a set of events or keys.
type bits uint8

func bit(n uint8) bits             { return 1 << n }
func (b bits) has(n uint8) bool    { return b&bit(n) != 0 }
func (b bits) any(other bits) bool { return b&other != 0 }

// mParked is a row of inbox_parked.
type mParked struct {
	event     uint8 // + 1; 0: no row
	key       uint8 // + 1; 0: alone
	kind      mKind
	releasing bool // of an event alone
	attempts  int8 // release_attempts
}

type mKind uint8

const (
	mFailed mKind = iota
	mBehind
	mQuarantined
)

// mProgress is a row of inbox_progress.
type mProgress struct {
	known              bool
	from, to, attempts int8
	halted             bool
	full               bool // halted_code is list_full
}

// mDB is the committed data.
type mDB struct {
	// of inbox_message or inbox_message_any: 0 none, 1 done, 2 discarded. By watermark what ran has none, but counts
	row      [mIDs]uint8
	effects  [mIDs]uint8
	mark     [mKeys]uint8 // of inbox_parked_key: 0 none, 1 parked, 2 releasing
	atBound  [mKeys]bool
	parked   [mIDs]mParked // by id: in the order in which they came
	progress [2]mProgress
	high     [2]int8 // of inbox_watermark: up to which number a partition is decided
}

// mTx is an open transaction.
type mTx struct {
	ids       bits // inserted into the inbox
	forgotten bits // those of ids that were removed again
	discarded bits
	ran       bits  // effects
	share     bits  // keys whose mark is held FOR SHARE
	update    uint8 // key + 1 whose mark is held FOR UPDATE
	alone     uint8 // event + 1 whose row is held FOR UPDATE
	newMark   bits  // keys
	push      [mIDs]mParked
	leave     bits  // events that leave their list
	passes    uint8 // partition + 1 whose progress it moves
	next      int8
	moves     uint8 // partition + 1 whose mark it replaces
	high      int8
}

// insert is sqlInsertDay or sqlInsertAny: it inserts the missing ids. The caller has waited for those in flight.
func (d *mDB) insert(ids bits) (inserted bits) {
	for e := range uint8(mIDs) {
		if ids.has(e) && d.row[e] == 0 {
			inserted |= bit(e)
		}
	}
	return inserted
}

// open is sqlOpen.
func (d *mDB) open() bool {
	return d.parked[0].event > 0 || d.mark != [mKeys]uint8{}
}

// openIDs is sqlOpenIDs.
func (d *mDB) openIDs(ids bits) (open bits) {
	for _, p := range d.parked {
		if p.event > 0 && ids.has(p.event-1) {
			open |= bit(p.event - 1)
		}
	}
	return open
}

// marks is what sqlMarks reads.
func (d *mDB) marks(keys bits) (marked, full bits) {
	for k := range uint8(mKeys) {
		if keys.has(k) && d.mark[k] != 0 {
			marked |= bit(k)
			if d.atBound[k] {
				full |= bit(k)
			}
		}
	}
	return marked, full
}

// quarantine is the condition of sqlQuarantine, by the statement's snapshot.
func (d *mDB) quarantine(ids bits) (missing bits) {
	for e := range uint8(mIDs) {
		if ids.has(e) && d.row[e] == 0 {
			missing |= bit(e)
		}
	}
	return missing
}

// head is sqlHead: the index of the first row of a key's list, or of the event alone; -1: none.
func (d *mDB) head(key, alone uint8) int {
	for i, p := range d.parked {
		if p.event > 0 && (key > 0 && p.key == key || key == 0 && p.event == alone) {
			return i
		}
	}
	return -1
}

func (d *mDB) length(key uint8) (n int) {
	for _, p := range d.parked {
		if p.event > 0 && p.key == key {
			n++
		}
	}
	return n
}

// park is sqlPark and, with its conflict clause, sqlQuarantine. It returns false if the event is parked already.
func (d *mDB) park(p mParked) bool {
	for i := range d.parked {
		if d.parked[i].event == p.event {
			return false
		}
		if d.parked[i].event == 0 {
			d.parked[i] = p
			return true
		}
	}
	panic("more rows than events")
}

// leave is sqlLeave.
func (d *mDB) leave(events bits) {
	left := d.parked
	d.parked = [mIDs]mParked{}
	n := 0
	for _, p := range left {
		if p.event > 0 && !events.has(p.event-1) {
			d.parked[n] = p
			n++
		}
	}
}

// unmark is sql.Unmark.
func (d *mDB) unmark(key uint8) {
	if d.head(key, 0) < 0 {
		d.mark[key-1], d.atBound[key-1] = 0, false
	}
}

// releaseKey is sql.ReleaseKey and sql.ResetReleases.
func (d *mDB) releaseKey(key uint8) {
	if d.mark[key-1] == 1 {
		d.mark[key-1] = 2
	}
	for i := range d.parked {
		if d.parked[i].event > 0 && d.parked[i].key == key {
			d.parked[i].attempts = 0
		}
	}
}

// releaseEvent is sql.ReleaseEvent.
func (d *mDB) releaseEvent(at int) {
	if d.parked[at].key == 0 {
		d.parked[at].releasing, d.parked[at].attempts = true, 0
	}
}

// list is sqlList: the events of a key, in order, and the last one that a batch was noted for; 0: none.
func (d *mDB) list(key uint8) (events []uint8, alone uint8) {
	for _, p := range d.parked {
		if p.event > 0 && p.key == key {
			if events = append(events, p.event); p.attempts != 0 {
				alone = p.event
			}
		}
	}
	return events, alone
}

// noteBatch is sqlNoteBatch.
func (d *mDB) noteBatch(last uint8) {
	for i := range d.parked {
		if d.parked[i].event == last {
			d.parked[i].attempts = -1
		}
	}
}

// countRelease and uncountRelease are sqlCountRelease and sqlUncountRelease.
func (d *mDB) countRelease(event uint8) {
	for i := range d.parked {
		if d.parked[i].event == event {
			d.parked[i].attempts = max(d.parked[i].attempts, 0) + 1
		}
	}
}

func (d *mDB) uncountRelease(event uint8) {
	for i := range d.parked {
		if d.parked[i].event == event {
			d.parked[i].attempts = max(d.parked[i].attempts, 1) - 1
		}
	}
}

// failedAgain is sqlFailedAgain, and sqlParkAgain where there is a key.
func (d *mDB) failedAgain(at int) {
	p := &d.parked[at]
	p.releasing, p.attempts = false, 0
	if p.kind == mBehind {
		p.kind = mFailed
	}
	if p.key > 0 && d.mark[p.key-1] == 2 {
		d.mark[p.key-1] = 1
	}
}

// bound is sqlBound and sqlUnhalt, as Inbox.bound runs them.
func (d *mDB) bound(most int) {
	changed, full := 0, 0
	for k := range d.mark {
		now := d.length(uint8(k)+1) >= most
		if d.mark[k] != 0 && d.atBound[k] != now {
			d.atBound[k] = now
			changed++
			if now {
				full++
			}
		}
	}
	anyFull := d.atBound != [mKeys]bool{}
	for q := range d.progress {
		if p := &d.progress[q]; p.full && (full < changed || !anyFull) {
			p.halted, p.full = false, false
		}
	}
}

// write is sqlRange.
func (p *mProgress) write(from, to int8) { *p = mProgress{known: true, from: from, to: to} }

// pass is sqlPass.
func (p *mProgress) pass(next int8) {
	if p.known && p.from < next {
		p.from, p.attempts, p.halted, p.full = next, 0, false, false
	}
}

// count is sqlCount.
func (p *mProgress) count(offset int8) (attempts, from int8) {
	if !p.known {
		return 0, -1
	}
	switch {
	case p.from < offset:
		p.from, p.attempts = offset, 1
	case p.from == offset:
		p.attempts = min(p.attempts+1, 100)
	}
	return p.attempts, p.from
}

// uncount is sqlUncount.
func (p *mProgress) uncount(offset int8) {
	if p.known && p.from == offset {
		p.attempts = max(p.attempts, 1) - 1
	}
}

// halt is sqlHalted.
func (p *mProgress) halt(offset int8, full bool) {
	if !p.known {
		*p = mProgress{known: true, from: offset, to: offset}
	}
	p.halted, p.full = true, full
}

// resume is sql.Resume.
func (p *mProgress) resume() {
	if p.known && (p.halted || p.attempts > 0) {
		p.attempts, p.halted, p.full = 0, false, false
	}
}

// locks are those of other transactions.
type locks struct {
	ids, share, update, newMark, alone, push, leave bits
	passes, moves                                   bits // partitions
}

func (l *locks) add(t *mTx) {
	if t.moves == 0 { // by watermark the ids have no rows
		l.ids |= t.ids | t.discarded
	}
	l.moves |= one(t.moves)
	l.share |= t.share
	l.newMark |= t.newMark
	for _, p := range t.push {
		if p.event > 0 {
			l.push |= bit(p.event - 1)
		}
	}
	l.update |= one(t.update)
	l.alone |= one(t.alone)
	l.leave |= t.leave
	l.passes |= one(t.passes)
}

// one is the set of n - 1, empty for 0.
func one(n uint8) bits {
	if n == 0 {
		return 0
	}
	return bit(n - 1)
}

// list adds a row for COMMIT to write.
func (t *mTx) list(p mParked) {
	for i := range t.push {
		if t.push[i].event == 0 {
			t.push[i] = p
			return
		}
	}
}
