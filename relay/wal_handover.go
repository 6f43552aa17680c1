package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// mostSkipped is how many transactions are remembered before it is asked which of them every snapshot shows.
const mostSkipped = 10_000

// tick looks after the lanes that the pumps have: it gives them those that have no source yet, and takes those that are empty.
func (f *follower) tick(work context.Context) error {
	if err := f.owned(); err != nil {
		return err
	}
	if err := f.newLanes(work); err != nil {
		return err
	}
	if err := f.released(work); err != nil {
		return err
	}
	if time.Now().Before(f.again) {
		return nil
	}
	if f.count() == Lanes {
		return nil
	}
	if len(f.skipped) > mostSkipped { // of lanes that others have
		if _, err := f.decided(work); err != nil {
			return err
		}
	}
	before := f.count()
	if err := f.handOver(work); err != nil {
		return err
	}
	if f.pause = min(2*f.pause, walPauseHigh); f.count() > before {
		f.pause = walPauseLow
	}
	f.again = time.Now().Add(f.pause)
	return nil
}

// newLanes gives lanes that came since to the pumps. One that another session read the WAL for may have missed something.
func (f *follower) newLanes(work context.Context) error {
	set := f.r.lanes.unassigned()
	if len(set.lanes) == 0 {
		return nil
	}
	rows, err := f.rows(work)
	if err != nil {
		return err
	}
	for _, lane := range set.lanes {
		if _, streamed := rows[lane]; streamed {
			return errLanesChanged
		}
	}
	f.r.lanes.assign(set.lanes, polled)
	f.again, f.pause = time.Now().Add(walPauseLow), walPauseLow
	f.r.kickPumps()
	f.r.Wake()
	return nil
}

// released gives lanes back to the pumps of which an operator has released something.
func (f *follower) released(work context.Context) error {
	lanes := f.r.lanes.list(func(l *laneState) bool { return l.source == streamed && l.releasing })
	if len(lanes) == 0 {
		return nil
	}
	var which [Lanes]bool
	for _, lane := range lanes {
		which[lane] = true
	}
	return f.aside(work, which, false, &deletion{})
}

// handOver makes the WAL the source of lanes of which nothing is left in the table.
//
// What a snapshot shows was published from the table then, and what it does not show will come. That is only true when the
// snapshot shows every transaction that has come already and was left to the pumps; and every one that had committed when the
// stream began, and then still was in nobody's snapshot: all those hold a lock on the table. A commit stands in the WAL a
// moment before snapshots show it, and for as long as it waits for a synchronous standby.
func (f *follower) handOver(work context.Context) error {
	r := f.r
	grants := r.lanes.hold()
	if len(grants) == 0 {
		return nil
	}
	back := func(change func(l *laneState)) { r.giveBack(grants, change) }
	ready, err := f.decided(work)
	if err != nil || !ready {
		back(func(*laneState) {})
		return err
	}
	var set laneKeys
	floors, ids := make([]int64, len(grants)), grants[0].ids
	for i, g := range grants {
		set.lanes, set.fences, floors[i] = append(set.lanes, g.lane), append(set.fences, g.fence), g.floor
	}
	over := map[int16]streamedLane{}
	err = f.s.send(work, transaction(r.cfg.Lease, toDisk, func(b *pgx.Batch) {
		b.Queue(r.q.lock, set.lanes, set.fences, r.owner)
		b.Queue(r.q.wal.handOver, set.lanes, set.fences, r.owner, floors, ids).Query(func(rows pgx.Rows) error { return readStreamed(rows, over) })
	}))
	if err != nil {
		unknown := err == errBarrier || pgerr.CommitUnknown(err)
		back(func(l *laneState) { l.doubt = l.doubt || unknown })
		return fmt.Errorf("relay: handing lanes over to the WAL: %w", err)
	}
	for _, g := range grants {
		l, ok := over[g.lane]
		if !ok {
			r.giveBack([]grant{g}, func(*laneState) {})
			continue
		}
		l.fence = g.fence
		f.mine[g.lane] = l
		r.giveBack([]grant{g}, func(s *laneState) { s.source, s.woken = streamed, false })
	}
	if len(over) > 0 {
		r.log.Debug("lanes are published from the WAL", "lanes", len(over), "all", f.count())
		if f.count() == Lanes {
			r.log.Info("every lane is published from the WAL", "slot", f.slot)
		}
	}
	return nil
}

// decided reports whether a snapshot that is taken from now on shows all that it must.
func (f *follower) decided(work context.Context) (bool, error) {
	var text string
	var now map[string]bool
	err := f.s.send(work, transaction(f.r.cfg.Lease, toNothing, func(b *pgx.Batch) {
		if len(f.guard) > 0 {
			b.Queue(f.r.q.holders).Query(func(rows pgx.Rows) (err error) { now, err = readHolders(rows); return err })
		}
		b.Queue(f.r.q.wal.snapshot).QueryRow(func(row pgx.Row) error { return row.Scan(&text) })
	}))
	if err != nil {
		return false, fmt.Errorf("relay: reading a snapshot: %w", err)
	}
	for name, prepared := range now {
		if prepared && len(f.guard) > 0 {
			f.guard[name] = true // perhaps one that we wait for, under its new name
		}
	}
	for name := range f.guard {
		if _, still := now[name]; !still {
			delete(f.guard, name)
		}
	}
	snap, err := parseSnapshot(text)
	if err != nil {
		return false, err
	}
	for xid := range f.skipped {
		if snap.shows(xid) {
			delete(f.skipped, xid)
		}
	}
	return len(f.guard) == 0 && len(f.skipped) == 0, nil
}
