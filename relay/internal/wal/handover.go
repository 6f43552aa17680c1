package wal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// mostSkipped is how many transactions are remembered before it is asked which of them every snapshot shows.
const mostSkipped = 10_000

// tick looks after the lanes that the pumps have: it gives them those that have no source yet, and takes those that are
// empty.
func (f *follower) tick(work context.Context) error {
	if err := f.owned(); err != nil {
		return err
	}
	if f.wake {
		f.wake = false
		f.Engine.Wake()
	}
	if err := f.newLanes(work); err != nil {
		return err
	}
	if err := f.released(work); err != nil {
		return err
	}
	if err := f.leftBehind(work); err != nil {
		return err
	}
	if time.Now().Before(f.again) {
		return nil
	}
	if f.count() == lanes.Count {
		return nil
	}
	if len(f.skipped) > mostSkipped { // of lanes that others have
		if _, err := f.decided(work); err != nil {
			return err
		}
	}
	return f.handOver(work)
}

// newLanes gives lanes that came since to the pumps. One that another session read the WAL for may have missed
// something.
func (f *follower) newLanes(work context.Context) error {
	unassigned, _ := f.Lanes.Unassigned()
	if len(unassigned) == 0 {
		return nil
	}
	rows, err := f.rows(work)
	if err != nil {
		return err
	}
	for _, lane := range unassigned {
		if _, streamed := rows[lane]; streamed {
			return errLanesChanged
		}
	}
	f.Lanes.Assign(unassigned, lanes.Pumps)
	f.again, f.pause = time.Now().Add(walPauseLow), walPauseLow
	f.Engine.Wake()
	return nil
}

// released gives lanes back to the pumps of which an operator has released something.
func (f *follower) released(work context.Context) error {
	releasing := f.Lanes.ReleasingFromWAL()
	if len(releasing) == 0 {
		return nil
	}
	var which [lanes.Count]bool
	for _, lane := range releasing {
		which[lane] = true
	}
	return f.aside(work, which, false, &deletion{})
}

// mostLeft is how many events a lane may have left to be handed over with them.
const mostLeft = 2000

// handOver makes the WAL the source of lanes. The pumps leave them alone for it, and the follower publishes from the
// table what they have left: all that a snapshot shows, and perhaps some that it does not, which are noted.
//
// What the snapshot does not show will come from the WAL. That is only true when it shows every transaction that has
// come already and was left to the pumps; and every one that had committed when the stream began, and then still was in
// nobody's snapshot: all those hold a lock on the table. A commit stands in the WAL a moment before snapshots show it,
// and for as long as it waits for a synchronous standby.
func (f *follower) handOver(work context.Context) error {
	if some, busy := f.Lanes.Offer(); !some || busy && f.waited < mostWaits {
		f.waited++
		f.again = time.Now() // the next tick
		if !some {
			f.waited = 0
			f.again = time.Now().Add(f.pause)
		}
		return nil
	}
	f.waited = 0
	h := &handOver{f: f, fences: map[int16]int64{}, left: map[int16][]int64{}, done: map[int16][]int64{}}
	err := h.run(work)
	for lane, l := range h.over {
		f.mine[lane] = l
		f.Lanes.HandedOver(lane, l.fence)
	}
	f.Lanes.Withdraw()
	f.Engine.Wake()
	switch f.pause = min(2*f.pause, walPauseHigh); {
	case len(h.over) > 0:
		f.pause = walPauseLow
	case h.early: // what is waited for are transactions, which end soon
		f.pause = min(f.pause, walPauseEarly)
	}
	f.again = time.Now().Add(f.pause)
	if len(h.over) > 0 && f.count() == lanes.Count {
		f.Log.Info("every lane is published from the WAL", "slot", f.slot)
	}
	return err
}

// mostWaits is how many ticks the follower waits for pumps that are at work with lanes that it wants.
const mostWaits = 20

// handOver is one try to hand lanes over.
type handOver struct {
	f      *follower
	fences map[int16]int64
	ids    string // the numbering of floors
	floors map[int16]int64
	left   map[int16][]int64 // ids that the snapshot shows and that are not published yet
	done   map[int16][]int64 // ids that were published since the snapshot
	over   map[int16]streamedLane
	early  bool // not every transaction that it must show is in a snapshot yet
}

func (h *handOver) run(work context.Context) error {
	f := h.f
	// Only few may be left, and one more look at the journal of each lane.
	if _, err := h.drain(work); err != nil {
		return err
	}
	if ready, err := f.decided(work); err != nil || !ready {
		h.early = err == nil
		return err
	}
	seen, texts, err := h.look(work)
	if err != nil {
		return err
	}
	clear(h.done)
	for n := 0; n < 3 && h.some(); n++ {
		if n, err := h.drain(work); err != nil || n == 0 {
			return err
		}
	}
	var set laneSet
	var snapshots []string
	var untils, ids []int64
	var of []int16
	for lane, l := range seen {
		if len(h.left[lane]) > 0 {
			continue
		}
		set.lanes, set.fences = append(set.lanes, lane), append(set.fences, h.fences[lane])
		snapshots, untils = append(snapshots, texts[lane]), append(untils, int64(l.until))
		for _, id := range h.done[lane] {
			of, ids = append(of, lane), append(ids, id)
		}
	}
	if len(set.lanes) == 0 {
		return nil
	}
	over, reads := map[int16]streamedLane{}, false
	err = f.session.Transaction(work, pg.Disk, func(b *pgx.Batch) {
		b.Queue(f.sql(sql.Lock), set.lanes, set.fences, f.Owner)
		b.Queue(f.sql(sql.WALReads), f.slot, f.Owner).Query(func(rows pgx.Rows) error {
			reads = rows.Next()
			rows.Close()
			return rows.Err()
		})
		b.Queue(f.sql(sql.Stream), set.lanes, set.fences, f.Owner, snapshots, untils, notNil(of), notNil(ids)).Query(
			func(rows pgx.Rows) error {
				var lane int16
				_, err := pgx.ForEachRow(rows, []any{&lane}, func() error {
					l := seen[lane]
					l.fence, l.done = h.fences[lane], setOf(h.done[lane])
					over[lane] = l
					return nil
				})
				return err
			})
	})
	if err != nil {
		f.doubtUnknown(set, err)
		return fmt.Errorf("relay: handing lanes over to the WAL: %w", err)
	}
	// a claim may have waited for long: somebody else reads by now, and has passed what this hand-over rests on
	if !reads {
		return errLanesChanged
	}
	h.over = over
	return nil
}

// notNil is a parameter: a nil slice would reach Postgres as null.
func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// some reports whether the snapshot shows something that is not published.
func (h *handOver) some() bool {
	for _, ids := range h.left {
		if len(ids) > 0 {
			return true
		}
	}
	return false
}

// look takes the snapshot.
func (h *handOver) look(work context.Context) (map[int16]streamedLane, map[int16]string, error) {
	f := h.f
	var set laneSet
	var floors []int64
	for lane, fence := range h.fences {
		set.lanes, set.fences, floors = append(set.lanes, lane), append(set.fences, fence),
			append(floors, h.floors[lane])
	}
	seen, texts := map[int16]streamedLane{}, map[int16]string{}
	h.left = map[int16][]int64{}
	err := h.f.session.Transaction(work, pg.Async, func(b *pgx.Batch) {
		b.Queue(f.sql(sql.Lock), set.lanes, set.fences, f.Owner)
		b.Queue(f.sql(sql.HandOver), set.lanes, set.fences, f.Owner, floors, h.ids, mostLeft).Query(
			func(rows pgx.Rows) error {
				var lane int16
				var text string
				var until int64
				var ids []int64
				_, err := pgx.ForEachRow(rows, []any{&lane, &text, &until, &ids}, func() error {
					snap, err := parseSnapshot(text)
					if len(ids) <= mostLeft {
						seen[lane], texts[lane] = streamedLane{until: uint64(until), snap: snap}, text
						h.left[lane] = append([]int64(nil), ids...)
					}
					return err
				})
				return err
			})
	})
	if err != nil {
		return nil, nil, fmt.Errorf("relay: reading what lanes have left: %w", err)
	}
	return seen, texts, nil
}

// drain is one claim, as a pump's, of all lanes that the follower wants. It returns how many events it claimed.
func (h *handOver) drain(work context.Context) (n int, err error) {
	grants, claimed, err := h.f.Engine.Drain(work, h.f.session)
	if err != nil || len(grants) == 0 {
		return 0, err
	}
	clear(h.fences)
	h.ids, _, _ = strings.Cut(grants[0].IDs, " ") // without exceptions, as the floors
	h.floors = map[int16]int64{}
	for _, g := range grants {
		h.fences[g.Lane], h.floors[g.Lane] = g.Fence, g.Floor
	}
	for lane, ids := range claimed {
		h.done[lane] = append(h.done[lane], ids...)
		h.left[lane] = slices.DeleteFunc(h.left[lane], func(id int64) bool { return slices.Contains(ids, id) })
		n += len(ids)
	}
	return n, nil
}

// decided reports whether a snapshot that is taken from now on shows all that it must.
func (f *follower) decided(work context.Context) (bool, error) {
	var text string
	var now pg.Holders
	err := f.session.Transaction(work, pg.Async, func(b *pgx.Batch) {
		if len(f.guard) > 0 {
			b.Queue(f.sql(sql.Holders)).Query(pg.ReadHolders(&now))
		}
		b.Queue(f.sql(sql.Snapshot)).QueryRow(func(row pgx.Row) error { return row.Scan(&text) })
	})
	if err != nil {
		return false, fmt.Errorf("relay: reading a snapshot: %w", err)
	}
	f.guard.Keep(now, nil)
	snap, err := parseSnapshot(text)
	if err != nil {
		return false, err
	}
	for xid := range f.skipped {
		if snap.Shows(xid) {
			delete(f.skipped, xid)
		}
	}
	return len(f.guard) == 0 && len(f.skipped) == 0, nil
}
