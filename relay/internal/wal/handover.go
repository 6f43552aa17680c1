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

// mostSkipped is how many transactions are remembered before the follower asks which of them every snapshot shows.
const mostSkipped = 10_000

// tick moves lanes between the pumps and the follower: it gives the pumps the lanes that have no feed yet, and takes
// those that are empty.
func (f *follower) tick(work context.Context) error {
	if f.Foreign.Load() {
		return errStandby
	}
	if err := f.owned(); err != nil {
		return err
	}
	if f.wake {
		f.wake = false
		f.kick()
	}
	if err := f.newLanes(work); err != nil {
		return err
	}
	if err := f.released(work); err != nil {
		return err
	}
	if err := f.publishLeftover(work); err != nil {
		return err
	}
	if time.Now().Before(f.again) {
		return nil
	}
	if f.count() == lanes.Count {
		return nil
	}
	if len(f.skipped) > mostSkipped { // of other relays' lanes
		if _, err := f.decided(work); err != nil {
			return err
		}
	}
	return f.handOver(work)
}

// newLanes gives newly leased lanes to the pumps. A lane that another session published from the WAL may have missed
// events.
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
	f.kick()
	return nil
}

// released gives lanes with released events back to the pumps.
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

// mostLeft is how many events a lane may have in the table to be handed over with them.
const mostLeft = 2000

// handOver makes the WAL the feed of lanes. The pumps leave them alone meanwhile, and the follower publishes their
// remaining events from the table: all that a snapshot shows, and perhaps some that it does not, which are recorded.
//
// Events that the snapshot does not show will come from the WAL. For that, the snapshot must show every transaction
// that was streamed already and left to the pumps; and every one that had committed when the stream began, but was not
// yet visible: all those hold a lock on the table. A commit is in the WAL a moment before snapshots show it, and long
// before if it waits for a synchronous standby.
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
	f.kick()
	switch f.pause = min(2*f.pause, walPauseHigh); {
	case len(h.over) > 0:
		f.pause = walPauseLow
	case h.early: // it waits for transactions, which end soon
		f.pause = min(f.pause, walPauseEarly)
	}
	f.again = time.Now().Add(f.pause)
	if len(h.over) > 0 && f.count() == lanes.Count {
		f.Log.Info("every lane is published from the WAL", "slot", f.slot)
	}
	return err
}

// mostWaits is how many ticks the follower waits for pumps that are working on lanes that it wants.
const mostWaits = 20

// handOver is one attempt to hand lanes over.
type handOver struct {
	f      *follower
	fences map[int16]int64
	ids    string // the numbering of floors
	floors map[int16]int64
	left   map[int16][]int64 // ids that the snapshot shows and that are not published yet
	done   map[int16][]int64 // ids that were published since the snapshot
	over   map[int16]streamedLane
	early  bool // some transaction that must be visible is not yet
}

func (h *handOver) run(work context.Context) error {
	f := h.f
	// Only few may be left, and one more read of the journal of each lane.
	if _, err := h.drain(work); err != nil {
		return err
	}
	if ready, err := f.decided(work); err != nil || !ready {
		h.early = err == nil
		return err
	}
	seen, texts, err := h.read(work)
	if err != nil {
		return err
	}
	clear(h.done)
	for n := 0; n < 3 && h.some(); n++ {
		if n, err := h.drain(work); err != nil || n == 0 {
			return err
		}
	}
	var set sql.Fenced
	var snapshots []string
	var untils, ids []int64
	var of []int16
	for lane, l := range seen {
		if len(h.left[lane]) > 0 {
			continue
		}
		set.Add(lane, h.fences[lane], 0)
		snapshots, untils = append(snapshots, texts[lane]), append(untils, int64(l.until))
		for _, id := range h.done[lane] {
			of, ids = append(of, lane), append(ids, id)
		}
	}
	if len(set.Lanes) == 0 {
		return nil
	}
	over, reads := map[int16]streamedLane{}, false
	err = f.session.Transaction(work, pg.Disk, func(b *pgx.Batch) {
		b.Queue(f.SQL(sql.Lock), set.Lanes, set.Fences, f.Owner)
		b.Queue(f.SQL(sql.WALReads), f.slot, f.Owner).Query(func(rows pgx.Rows) error {
			reads = rows.Next()
			rows.Close()
			return rows.Err()
		})
		b.Queue(f.SQL(sql.Stream), set.Lanes, set.Fences, f.Owner, snapshots, untils, notNil(of), notNil(ids)).Query(
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
		f.DoubtUnknown(&set, err)
		return fmt.Errorf("relay: handing lanes over to the WAL: %w", err)
	}
	// The claim may have taken long: if another relay reads by now, it has passed the events that this hand-over left
	// out.
	if !reads {
		return errLanesChanged
	}
	h.over = over
	return nil
}

// notNil returns a non-nil slice: a nil parameter would reach Postgres as null.
func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// some reports whether the snapshot shows events that are not published.
func (h *handOver) some() bool {
	for _, ids := range h.left {
		if len(ids) > 0 {
			return true
		}
	}
	return false
}

// read takes the snapshot.
func (h *handOver) read(work context.Context) (map[int16]streamedLane, map[int16]string, error) {
	f := h.f
	var set sql.Fenced
	var floors []int64
	for lane, fence := range h.fences {
		set.Lanes, set.Fences, floors = append(set.Lanes, lane), append(set.Fences, fence),
			append(floors, h.floors[lane])
	}
	seen, texts := map[int16]streamedLane{}, map[int16]string{}
	h.left = map[int16][]int64{}
	err := h.f.session.Transaction(work, pg.Async, func(b *pgx.Batch) {
		b.Queue(f.SQL(sql.Lock), set.Lanes, set.Fences, f.Owner)
		b.Queue(f.SQL(sql.HandOver), set.Lanes, set.Fences, f.Owner, floors, h.ids, mostLeft).Query(
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

// drain is one claim of all lanes that the follower wants, as by a pump. It returns how many events it claimed.
func (h *handOver) drain(work context.Context) (n int, err error) {
	f := h.f
	grants := f.Lanes.TakeOffered(time.Now())
	if len(grants) == 0 {
		return 0, nil
	}
	f.claims.Session = f.session
	c, err := f.Cycle.ClaimLanes(work, &f.claims, grants)
	if err != nil {
		return 0, err
	}
	claimed := map[int16][]int64{}
	for i := range c.Items {
		lane := c.Events[i].Position.Lane
		claimed[lane] = append(claimed[lane], c.Items[i].ID)
	}
	if _, err := f.Cycle.Complete(work, &f.claims, c, nil); err != nil {
		return 0, err
	}
	clear(h.fences)
	h.ids, _, _ = strings.Cut(grants[0].IDs, " ") // without exceptions, like the floors
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

// decided reports whether a snapshot taken from now on shows all transactions that it must.
func (f *follower) decided(work context.Context) (bool, error) {
	var text string
	var now pg.Holders
	err := f.session.Transaction(work, pg.Async, func(b *pgx.Batch) {
		if len(f.guard) > 0 {
			b.Queue(f.SQL(sql.Holders)).Query(pg.ReadHolders(&now))
		}
		b.Queue(f.SQL(sql.Snapshot)).QueryRow(func(row pgx.Row) error { return row.Scan(&text) })
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
