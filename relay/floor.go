package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/failpoint"
)

// A floor is an id at and below which a lane has no row any more and will never have one. Looks begin above it, so that
// rows which are dead, but not yet vacuumed away, cost nothing. PROTOCOL P6 has the rules; the order of its steps is what
// makes them right:
//
//  1. read the highest id drawn so far, in a transaction whose commit waits for the disk: a crash cannot take the sequence
//     back below it any more;
//  2. later, read who holds a lock on the table that an insert needs: whoever drew one of those ids and is not decided;
//  3. wait until each of them has ended;
//  4. what a look from the old floor then finds first, up to the highest, is the end of the new floor.
//
// A claim whose snapshot is later than step 3 is such a look as well: it takes all that its lane has up to its last id. Once it
// is settled, the lane has nothing left up to that id, or up to the highest if that is lower. So a lane's floor follows its
// claims, which would read what they have just deleted again and again otherwise.
//
// Floors are an optimisation and live in memory only. Every statement that uses them compares the numbering of ids that
// they were found in with what it finds there, and reads from zero when it is another: behind a pooler nobody else notices
// that the server has changed.
type floorFinder struct {
	looked   time.Time // when the last step was made
	steps    int       // made since the numbering was met
	scanned  time.Time // when the last look below the floors was made
	ids      string    // the numbering of ids; "": none that allows a floor
	decided  int64     // every id up to this one is decided
	hi       int64     // the one that is waited for; 0: none
	waitsFor map[string]bool
}

// firstSteps are made without a pause between them: a relay that starts over a long backlog has floors at once.
const firstSteps = 3

// passingShare is how much shorter the pause is while lanes that have much to send are past what is decided.
const passingShare = 8

// lift makes one step toward higher floors when it is time. It belongs to the prober, whose session it uses.
func (r *Relay) lift(ctx context.Context, s *session, f *floorFinder) error {
	every := r.cfg.FloorEvery
	if r.lanes.passing() {
		every /= passingShare
	}
	if every < 0 || f.steps >= firstSteps && time.Since(f.looked) < every {
		return nil
	}
	f.looked = time.Now()
	f.steps++
	if f.scanned.IsZero() {
		f.scanned = f.looked // every lane begins with a look from zero
	}
	if err := r.decide(ctx, s, f); err != nil || f.ids == "" {
		return err
	}
	if lanes, floors, _ := r.lanes.listFloors(func(l *laneState) bool { return l.floor < f.decided }); len(lanes) > 0 {
		if err := r.raiseFloors(ctx, s, f, lanes, floors); err != nil {
			return err
		}
	}
	if r.cfg.RescanEvery < 0 || time.Since(f.scanned) < r.cfg.RescanEvery {
		return nil
	}
	f.scanned = time.Now()
	return r.rescan(ctx, s)
}

// decide is steps 1 to 3, one of them at a time.
func (r *Relay) decide(ctx context.Context, s *session, f *floorFinder) error {
	var ids string
	var highest int64
	var now map[string]bool // holders; true: prepared
	err := s.send(ctx, transaction(r.cfg.Lease, toNothing, func(b *pgx.Batch) {
		b.Queue(r.q.highest).QueryRow(func(row pgx.Row) error { return row.Scan(&ids, &highest) })
		if f.hi > 0 {
			b.Queue(r.q.holders).Query(func(rows pgx.Rows) (err error) { now, err = readHolders(rows); return err })
		}
	}))
	switch {
	case err != nil:
		return err
	case ids != f.ids || ids != r.lanes.numbering() || highest < f.decided || highest < f.hi:
		// Another server or sequence, one that went back, or a new connection: nothing that was known holds. The next step
		// begins again.
		f.ids, f.decided, f.hi, f.steps = ids, 0, 0, 1
		r.lanes.resetFloors(ids)
		return nil
	case ids == "" || (f.hi == 0 && highest == f.decided):
		return nil
	case f.hi == 0:
		return r.begin(ctx, s, f)
	}
	for name, prepared := range now {
		if prepared {
			f.waitsFor[name] = true // perhaps one that we wait for, under its new name
		}
	}
	for name := range f.waitsFor {
		if _, still := now[name]; still {
			return nil
		}
	}
	f.decided, f.hi = f.hi, 0
	r.lanes.decide(f.ids, f.decided)
	return nil
}

// begin is steps 1 and 2. The highest id is read by a transaction that writes, by a lock on our own row, and whose commit waits
// for the disk. One that began later would not do: behind a pooler it may have run on a server that has crashed in between
// and come back with the sequence where it stood before. The holders are asked for in a later round trip than that.
func (r *Relay) begin(ctx context.Context, s *session, f *floorFinder) error {
	var ids string
	var highest int64
	written := false
	err := s.send(ctx, transaction(r.cfg.Lease, toDisk, func(b *pgx.Batch) {
		b.Queue(r.q.present, r.owner).Query(func(rows pgx.Rows) error { written = rows.Next(); rows.Close(); return rows.Err() })
		b.Queue(r.q.highest).QueryRow(func(row pgx.Row) error { return row.Scan(&ids, &highest) })
	}))
	if err != nil || !written || ids != f.ids {
		return err
	}
	var now map[string]bool
	err = s.send(ctx, transaction(r.cfg.Lease, toNothing, func(b *pgx.Batch) {
		b.Queue(r.q.holders).Query(func(rows pgx.Rows) (err error) { now, err = readHolders(rows); return err })
	}))
	switch {
	case err != nil:
		return err
	case len(now) == 0:
		f.decided = highest
		r.lanes.decide(f.ids, f.decided)
	default:
		f.hi, f.waitsFor = highest, now
	}
	return nil
}

func readHolders(rows pgx.Rows) (map[string]bool, error) {
	holders := map[string]bool{}
	var name string
	var prepared bool
	_, err := pgx.ForEachRow(rows, []any{&name, &prepared}, func() error { holders[name] = prepared; return nil })
	return holders, err
}

// raiseFloors is step 4.
func (r *Relay) raiseFloors(ctx context.Context, s *session, f *floorFinder, lanes []int16, floors []int64) error {
	falls, smallest := r.lanes.fallen(), make(map[int16]int64, len(lanes))
	var ids string
	var highest int64
	err := s.send(ctx, transaction(r.cfg.Lease, toNothing, func(b *pgx.Batch) {
		b.Queue(r.q.smallest, lanes, floors, f.decided).Query(func(rows pgx.Rows) error {
			var lane int16
			var id int64
			_, err := pgx.ForEachRow(rows, []any{&lane, &id}, func() error { smallest[lane] = id; return nil })
			return err
		})
		b.Queue(r.q.highest).QueryRow(func(row pgx.Row) error { return row.Scan(&ids, &highest) })
	}))
	if err != nil {
		return err
	}
	if ids != f.ids || highest < f.decided {
		return nil // the next step sees it too, and begins again
	}
	r.lanes.raiseFloors(f.ids, falls, func(lane int16) (int64, bool) {
		id, ok := smallest[lane]
		if id == 0 {
			return f.decided, ok
		}
		return min(f.decided, id-1), ok
	})
	failpoint.Hit(failpoint.RelayFloor)
	return nil
}

// rescan looks for open entries of lanes that nobody works on: behind a pooler a server may have crashed, and taken a settle
// back, without any connection of ours having ended. Such a lane reads its journal again. And it looks below the floors, where
// nothing can be. What is there all the same is published, for the lane begins at zero again, and is a bug: in the rules, or of somebody who writes ids of his own or has turned the sequence back.
func (r *Relay) rescan(ctx context.Context, s *session) error {
	if err := s.open(ctx); err != nil { // a new connection puts the floors at zero: they must not be read before that
		return err
	}
	// A lane that has much is looked at when it has caught up: below its floor may be millions of rows that it has just deleted.
	lanes, floors, ids := r.lanes.listFloors(func(l *laneState) bool { return l.floor > 0 && !l.bulk })
	idle := r.lanes.list((*laneState).quiet)
	if len(lanes)+len(idle) == 0 {
		return nil
	}
	var open, found []int16
	var now string
	var highest int64
	err := s.send(ctx, transaction(r.cfg.Lease, toNothing, func(b *pgx.Batch) {
		b.Queue(r.q.unsettled, slices.Concat(idle, lanes)).Query(func(rows pgx.Rows) error {
			return eachLane(rows, func(lane int16) { open = append(open, lane) })
		})
		b.Queue(r.q.below, lanes, floors).Query(func(rows pgx.Rows) error {
			return eachLane(rows, func(lane int16) { found = append(found, lane) })
		})
		b.Queue(r.q.highest).QueryRow(func(row pgx.Row) error { return row.Scan(&now, &highest) })
	}))
	if now != ids { // behind a pooler it is another server: the next step sees it too
		found = nil
	}
	again := slices.DeleteFunc(slices.Clone(open), func(lane int16) bool { return !slices.Contains(idle, lane) })
	if err == nil && len(again) > 0 {
		r.lanes.reread(again)
		r.kickPumps()
	}
	// Rows of an open entry may stand there, when a crash has taken its settle back. A lane at work finds that by itself.
	found = slices.DeleteFunc(found, func(lane int16) bool { return slices.Contains(open, lane) })
	if err != nil || len(found) == 0 {
		return err
	}
	r.lanes.dropFloors(found)
	r.lanes.awaken(found)
	r.kickPumps()
	r.log.Error("events stood below the floor of their lanes, where none can be: they are published now, perhaps out of order; "+
		"either ids were written by hand or the sequence was set back, or this is a bug: report it", "lanes", found)
	for _, lane := range found {
		if r.cfg.Observer.BelowFloor != nil {
			r.cfg.Observer.BelowFloor(lane)
		}
	}
	return nil
}

// errOtherSequence: floors would follow a sequence that says nothing of the table's ids.
var errOtherSequence = errors.New("relay: outbox_event takes its ids from another sequence than outbox_event_id_seq")

// checkSequence fails when ids do not come from the sequence that floors are found by.
func (r *Relay) checkSequence(ctx context.Context, s *session) error {
	var other string
	err := s.send(ctx, transaction(r.cfg.Lease, toNothing, func(b *pgx.Batch) {
		b.Queue(r.q.otherSequence).QueryRow(func(row pgx.Row) error { return row.Scan(&other) })
	}))
	if err != nil || other == "" {
		return err
	}
	return fmt.Errorf("%w, from %s: give what has that name another, and the table's sequence that name (alter sequence ... rename to ...)",
		errOtherSequence, other)
}

// numbering is what the floors belong to.
func (t *laneTable) numbering() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ids
}

// resetFloors puts every floor at zero; those found later belong to the numbering of ids.
func (t *laneTable) resetFloors(ids string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.falls++
	t.ids, t.decided = ids, 0
	for _, l := range t.owned {
		l.floor = 0
	}
}

// decide notes up to which id everything is decided.
func (t *laneTable) decide(ids string, highest int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids == ids {
		t.decided = highest
	}
}

// passing reports whether lanes that have much to send are past what is decided: their floors do not follow them.
func (t *laneTable) passing() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		if l.bulk && l.pace.last > t.decided {
			return true
		}
	}
	return false
}

// passed raises the floor of a lane whose claim is settled, unless floors fell since: what the claim knew may not hold any more.
func (t *laneTable) passed(l *laneClaim) {
	t.update(l.lane, l.fence, func(s *laneState) {
		if t.falls == l.falls {
			s.floor = max(s.floor, l.floorAfter)
		}
	})
}

// listFloors returns the lanes for which want is true, their floors, and the numbering that these are in.
func (t *laneTable) listFloors(want func(l *laneState) bool) (lanes []int16, floors []int64, ids string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lanes, floors = []int16{}, []int64{} // not nil: a nil slice would reach Postgres as null
	for lane, l := range t.owned {
		if want(l) {
			lanes, floors = append(lanes, lane), append(floors, l.floor)
		}
	}
	return lanes, floors, t.ids
}

// fallen is how often floors fell.
func (t *laneTable) fallen() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.falls
}

// raiseFloors gives lanes their new floors, unless floors fell since they were looked for; what is not known of a lane leaves it as it is.
func (t *laneTable) raiseFloors(ids string, falls int, to func(lane int16) (floor int64, ok bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids != ids || t.falls != falls {
		return
	}
	for lane, l := range t.owned {
		if floor, ok := to(lane); ok {
			l.floor = max(l.floor, floor)
		}
	}
}

func (t *laneTable) dropFloors(lanes []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.falls++
	for _, lane := range lanes {
		if l := t.owned[lane]; l != nil {
			l.floor = 0
		}
	}
}
