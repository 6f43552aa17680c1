package wal

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// deletion has published events whose rows must be deleted, and the position in the WAL to confirm afterwards.
type deletion struct {
	Epoch string
	Pos   uint64 // 0: none

	lanes []int16
	ids   []int64
	xids  []uint32
	seqs  []int64
	done  chan struct{} // closed when the rows are deleted
}

// Add adds an event that was published under a number.
func (d *deletion) Add(it *item, seq int64) {
	d.lanes, d.ids = append(d.lanes, it.Lane), append(d.ids, it.ID)
	d.xids, d.seqs = append(d.xids, it.XID), append(d.seqs, seq)
}

// deleter deletes published events in the background, and confirms positions in the WAL whose events are gone from the
// table: first in the table, then to the slot. So an event that the slot does not send again is not in the table
// either.
type deleter struct {
	Ended chan struct{} // closed when Run has returned

	*Feed
	session *pg.Session
	reader  *reader
	slot    string
	in      chan *deletion
	deleted uint64 // every event before this place is gone
	marked  uint64 // and this was written
	// standbys: commits wait for a synchronous standby, as of the last confirmation.
	standbys atomic.Bool
	last     time.Time
}

// newDeleter makes a deleter that continues at the slot's position.
func newDeleter(feed *Feed, st *state, reader *reader) *deleter {
	d := &deleter{
		Feed: feed, session: feed.Session("wal deleter"), reader: reader, slot: st.Name,
		in: make(chan *deletion, 8), Ended: make(chan struct{}),
		deleted: uint64(st.Confirmed), marked: uint64(st.Confirmed),
	}
	d.standbys.Store(st.Standbys)
	return d
}

// Standbys reports whether commits wait for a synchronous standby.
func (d *deleter) Standbys() bool { return d.standbys.Load() }

// Gone returns the position before which every event is deleted, after a Flush.
func (d *deleter) Gone() uint64 { return d.deleted }

// confirmEvery is the least pause between two confirmations.
const confirmEvery = time.Second

// Add queues a deletion, and waits while there are many.
func (d *deleter) Add(ctx context.Context, what *deletion) {
	if len(what.ids) == 0 && what.Pos == 0 && what.done == nil {
		return
	}
	select {
	case d.in <- what:
	case <-d.Ended:
	case <-ctx.Done():
	}
}

// errDeleterEnded: the deleter has failed, and reports its own error.
var errDeleterEnded = errors.New("relay: deleting what was published was interrupted")

// errAnotherServer: what this reader has published is unknown there.
var errAnotherServer = errors.New("relay: the server is another one than the WAL was read from")

// Flush waits until all queued deletions are done.
func (d *deleter) Flush(ctx context.Context) error {
	done := make(chan struct{})
	d.Add(ctx, &deletion{done: done})
	select {
	case <-done:
		return nil
	case <-d.Ended:
		return errDeleterEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run works until ctx ends. It fails if the slot was replaced.
func (d *deleter) Run(ctx context.Context) error {
	defer close(d.Ended)
	defer d.session.Close()
	defer func() { d.Postgres.Report(d.session.Name, nil, d.session.Heard()) }()
	d.last = time.Now()
	soon := time.NewTimer(time.Hour)
	defer soon.Stop()
	beat := time.NewTicker(d.Heartbeat)
	defer beat.Stop()
	dirty := false // rows were deleted since the last confirmation
	for {
		idle, urged := false, false
		select {
		case <-ctx.Done():
			return nil
		case what := <-d.in:
			dirty = dirty || len(what.ids) > 0
			if err := d.work(ctx, what); ctx.Err() != nil {
				return nil
			} else if err != nil {
				return err
			}
		case <-soon.C:
		case <-d.reader.Urged:
			urged = true
		case <-beat.C:
			idle = true
		}
		switch {
		case d.deleted == d.marked:
		// A position without rows waits for the heartbeat.
		case idle, urged, dirty && time.Since(d.last) >= confirmEvery:
			if err := d.confirm(ctx, idle); err != nil {
				return err
			}
			dirty = false
		case dirty:
			soon.Reset(confirmEvery - time.Since(d.last))
		}
	}
}

// work runs one deletion, together with others in the queue.
func (d *deleter) work(ctx context.Context, first *deletion) error {
	all, more := first, []*deletion{first}
	for len(all.ids) < d.Cycle.MostEvents {
		select {
		case next := <-d.in:
			more = append(more, next)
			if next.Epoch != "" && all.Epoch != "" && next.Epoch != all.Epoch && d.Cycle.Archive {
				if err := d.delete(ctx, all); err != nil {
					return err
				}
				all = next
				continue
			}
			if all == first {
				copied := *first
				all = &copied
			}
			all.lanes, all.ids = append(all.lanes, next.lanes...), append(all.ids, next.ids...)
			all.xids, all.seqs = append(all.xids, next.xids...), append(all.seqs, next.seqs...)
			if all.Epoch == "" {
				all.Epoch = next.Epoch
			}
			continue
		default:
		}
		break
	}
	if err := d.delete(ctx, all); err != nil {
		return err
	}
	for _, m := range more {
		d.deleted = max(d.deleted, m.Pos)
		if m.done != nil {
			close(m.done)
		}
	}
	return nil
}

// delete deletes rows. An event can be published before snapshots show its transaction: then the statement does not
// find the row, and is repeated until every transaction is visible.
func (d *deleter) delete(ctx context.Context, what *deletion) error {
	lanes, ids, xids, seqs := what.lanes, what.ids, what.xids, what.seqs
	since, pause, all := time.Now(), outage.NewBackOff(), len(what.ids)
	for first := true; len(ids) > 0; first = false {
		text, gone, err := d.deleteOnce(ctx, &deletion{lanes: lanes, ids: ids, seqs: seqs, Epoch: what.Epoch}, !first)
		d.Postgres.Report(d.session.Name, err, d.session.Heard())
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			// A server in a clean shutdown accepts no connections, and waits until the relay has confirmed all WAL: it
			// would wait for ever, unless the relay ends. Events that are not deleted come again.
			if pgerr.Is(err, pgerr.CannotConnectNow) || errors.Is(err, errAnotherServer) {
				return fmt.Errorf("relay: deleting what was published: %w", err)
			}
			_ = sleep.For(ctx, pause.NextBackOff())
			continue
		}
		if first && gone == int64(len(ids)) {
			break
		}
		if first {
			continue
		}
		snap, err := parseSnapshot(text)
		if err != nil {
			return err
		}
		kept := 0
		for i := range ids {
			if !snap.Shows(xids[i]) {
				lanes[kept], ids[kept], xids[kept], seqs[kept] = lanes[i], ids[i], xids[i], seqs[i]
				kept++
			}
		}
		lanes, ids, xids, seqs = lanes[:kept], ids[:kept], xids[:kept], seqs[:kept]
		if kept > 0 {
			_ = sleep.For(ctx, min(pause.NextBackOff(), confirmEvery))
		}
		if kept > 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if all > 0 {
		d.Progress.Settled()
		if d.Observer.Settled != nil {
			d.Observer.Settled(all, 0, time.Since(since))
		}
	}
	return nil
}

// deleteOnce deletes the rows that it finds, and returns their number; with snapped, it takes a snapshot first, as
// text.
func (d *deleter) deleteOnce(ctx context.Context, what *deletion, snapped bool) (snapshot string, gone int64,
	err error,
) {
	err = d.session.Transaction(ctx, pg.Async, func(b *pgx.Batch) {
		b.Queue(d.SQL(sql.WALHere), d.slot)
		if snapped {
			b.Queue(d.SQL(sql.Snapshot)).QueryRow(func(row pgx.Row) error { return row.Scan(&snapshot) })
		}
		count := func(tag pgconn.CommandTag) error { gone = tag.RowsAffected(); return nil }
		if d.Cycle.Archive {
			b.Queue(d.SQL(sql.StreamedArchived), what.lanes, what.ids, what.seqs, what.Epoch).Exec(count)
			return
		}
		b.Queue(d.SQL(sql.StreamedGone), what.lanes, what.ids).Exec(count)
	})
	if pgerr.Is(err, pgerr.DivisionByZero) { // sql.WALHere
		err = errAnotherServer
	}
	return snapshot, gone, err
}

// confirm records the position up to which all events are published and deleted, on disk, and then lets the slot move
// there.
func (d *deleter) confirm(ctx context.Context, idle bool) error {
	found, standbys := false, false
	err := d.session.Transaction(ctx, pg.Disk, func(b *pgx.Batch) {
		b.Queue(d.SQL(sql.WALConfirm), d.slot, int64(d.deleted)).Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&standbys}, func() error { found = true; return nil })
			return err
		})
		if idle {
			b.Queue(d.SQL(sql.WALBeat))
		}
	})
	d.Postgres.Report(d.session.Name, err, d.session.Heard())
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("relay: confirming what was published: %w", err)
	case !found:
		return errors.New("relay: the replication slot was given up by somebody, or the server is another one")
	}
	d.last, d.marked = time.Now(), d.deleted
	d.standbys.Store(standbys)
	d.reader.Confirm(d.deleted)
	return nil
}
