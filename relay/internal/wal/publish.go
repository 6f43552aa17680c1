package wal

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// publish sends the events of a batch until each is acked, or must be published from the table: then its lane goes back
// to the pumps, which hold and park. It fails if the work ends before, or if lanes were lost.
func (f *follower) publish(work context.Context, b *batch, done *deletion) error {
	if f.deleter.Standbys() {
		err := f.session.Transaction(work, pg.Standby, func(b *pgx.Batch) { b.Queue(f.SQL(sql.WALBarrier)) })
		if err != nil {
			return fmt.Errorf("relay: waiting for the synchronous standby: %w", err)
		}
	}
	items := make([]delivery.Item, len(b.Events))
	for i := range items {
		it := &items[i]
		it.ID, it.Alone = b.Items[i].ID, f.Cycle.ParkEvent || b.Events[i].Key == ""
		if !f.numbers.Have(&b.Items[i]) {
			it.Fate = delivery.Held // no number is left for it
		}
	}
	grants := make([]lanes.Grant, 0, lanes.Count)
	for lane := range f.mine {
		if l := &f.mine[lane]; l.fence != 0 {
			grants = append(grants, lanes.Grant{Lane: int16(lane), Fence: l.fence})
		}
	}
	d := delivery.New(b.Events, items)
	switch late := f.send(work, grants, d); {
	case late:
		return errLanesChanged
	case d.Len() > 0:
		return work.Err()
	}
	var aside [lanes.Count]bool
	unsure := false
	for i := range items {
		lane := b.Items[i].Lane
		if items[i].Fate != delivery.Acked {
			l := &f.mine[lane]
			sent := items[i].MaybePublished || l.before && !b.Events[i].Position.First
			aside[lane], unsure = true, unsure || sent
			continue
		}
		done.Add(&b.Items[i], b.Events[i].Position.Seq)
	}
	done.Epoch = f.epoch
	if !slices.Contains(aside[:], true) {
		return nil
	}
	for i := range items {
		if items[i].Fate != delivery.Acked {
			f.skipped[b.Items[i].XID] = true
		}
	}
	return f.aside(work, aside, unsure, done)
}

// send sends events of granted lanes until each is acked, or must be published from the table. It gives up when work
// ends, and when a lease is no longer certain (late).
func (f *follower) send(work context.Context, grants []lanes.Grant, d *delivery.Delivery) (late bool) {
	const part = "effectonce relay wal"
	defer f.Progress.Streams()()
	_, late = f.Cycle.Deliver(work, part, grants, d, f.paused, nil)
	f.Cycle.ReportRest(part) // events without an ack are held, or another relay's
	return late
}

// aside gives lanes back to the pumps. Their acked events are deleted first; the rest is published from the table,
// under other numbers. If an event may have been written, consumers in watermark mode must not trust the old numbers
// any more: a new numbering begins.
func (f *follower) aside(work context.Context, which [lanes.Count]bool, unsure bool, done *deletion) error {
	acked := *done
	acked.Pos, *done = 0, deletion{Pos: done.Pos}
	f.deleter.Add(work, &acked)
	if err := f.deleter.Flush(work); err != nil {
		return err
	}
	var set sql.Fenced
	for lane := range which {
		if l := &f.mine[lane]; which[lane] && l.fence != 0 {
			set.Add(int16(lane), l.fence, 0)
		}
	}
	unsure = unsure || slices.ContainsFunc(set.Lanes, func(lane int16) bool { return f.pending(&f.mine[lane]) })
	statement, gone := f.SQL(sql.Unstream), 0
	if unsure {
		statement = f.SQL(sql.Abandon)
	}
	epoch := f.epoch
	err := f.session.Transaction(work, pg.Disk, func(b *pgx.Batch) {
		b.Queue(f.SQL(sql.Lock), set.Lanes, set.Fences, f.Owner).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				gone++
			}
			return rows.Err()
		})
		b.Queue(statement, set.Lanes, set.Fences, f.Owner).Query(func(rows pgx.Rows) error {
			defer rows.Close()
			if !unsure {
				return nil
			}
			_, err := pgx.ForEachRow(rows, []any{&epoch}, func() error { return nil })
			return err
		})
		if unsure { // events that come again after a crash would get the new numbering
			b.Queue(f.SQL(sql.WALConfirm), f.slot, int64(f.deleter.Gone()))
		}
	})
	if err != nil {
		f.DoubtUnknown(&set, err)
		return fmt.Errorf("relay: giving lanes back to the table: %w", err)
	}
	if gone != len(set.Lanes) {
		return errLanesChanged
	}
	if epoch != f.epoch {
		f.epoch = epoch
		f.Log.Warn("events that may have been written are published from the table now: a new incarnation of the "+
			"numbering has begun", "epoch", epoch)
	}
	f.Log.Info("lanes are published from the table until nothing of them is held or parked", "lanes", set.Lanes)
	for i, lane := range set.Lanes {
		f.mine[lane] = streamedLane{}
		f.Lanes.HandedBack(lane, set.Fences[i])
	}
	f.again, f.pause = time.Now().Add(walPauseLow), walPauseLow
	f.kick()
	return nil
}
