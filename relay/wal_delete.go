package relay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

// deletion is what the deleter is to do: delete rows that were published, and then confirm a place in the WAL.
type deletion struct {
	lanes []int16
	ids   []int64
	xids  []uint32
	seqs  []int64
	epoch string
	pos   uint64        // 0: none
	done  chan struct{} // closed when it is
}

// walDeleter deletes published events in the background, and confirms places in the WAL whose events are gone from the
// table: first in the table, then to the slot. So what the slot does not send any more is not left in the table either.
type walDeleter struct {
	r       *Relay
	s       *session
	slot    string
	in      chan *deletion
	ended   chan struct{}
	reader  *wal.Reader
	deleted uint64 // every event before this place is gone
	marked  uint64 // and this was written
	// standbys: commits wait for a synchronous standby, as of the last confirmation.
	standbys atomic.Bool
	last     time.Time
}

// walConfirmEvery is the least pause between two confirmations.
const walConfirmEvery = time.Second

// add queues a deletion, and waits while there are many.
func (d *walDeleter) add(ctx context.Context, what *deletion) {
	if len(what.ids) == 0 && what.pos == 0 && what.done == nil {
		return
	}
	select {
	case d.in <- what:
	case <-d.ended:
	case <-ctx.Done():
	}
}

// errDeleterEnded: the deleter has failed, and says itself why.
var errDeleterEnded = errors.New("relay: deleting what was published was interrupted")

// flush waits until everything that was added is deleted.
func (d *walDeleter) flush(ctx context.Context) error {
	done := make(chan struct{})
	d.add(ctx, &deletion{done: done})
	select {
	case <-done:
		return nil
	case <-d.ended:
		return errDeleterEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run works until ctx ends. It fails when the slot is not the one that we read any more.
func (d *walDeleter) run(ctx context.Context) error {
	defer close(d.ended)
	d.s = d.r.session("wal deleter")
	defer d.s.Close()
	defer func() { d.r.postgres.Report(d.s.Name, nil, d.s.Heard()) }()
	d.last = time.Now()
	soon := time.NewTimer(time.Hour)
	defer soon.Stop()
	beat := time.NewTicker(d.r.cfg.WALHeartbeat)
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
		// a place without rows waits for the heartbeat
		case idle, urged, dirty && time.Since(d.last) >= walConfirmEvery:
			if err := d.confirm(ctx, idle); err != nil {
				return err
			}
			dirty = false
		case dirty:
			soon.Reset(walConfirmEvery - time.Since(d.last))
		}
	}
}

// work does one deletion, together with what else has come.
func (d *walDeleter) work(ctx context.Context, first *deletion) error {
	all, more := first, []*deletion{first}
	for len(all.ids) < d.r.cfg.ClaimEvents {
		select {
		case next := <-d.in:
			more = append(more, next)
			if next.epoch != "" && all.epoch != "" && next.epoch != all.epoch && d.r.cfg.ArchiveDays > 0 {
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
			if all.epoch == "" {
				all.epoch = next.epoch
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
		d.deleted = max(d.deleted, m.pos)
		if m.done != nil {
			close(m.done)
		}
	}
	return nil
}

// delete deletes rows. A row can be published before its transaction is in anybody's snapshot: then the statement does
// not find it, and is repeated until every transaction shows.
func (d *walDeleter) delete(ctx context.Context, what *deletion) error {
	lanes, ids, xids, seqs := what.lanes, what.ids, what.xids, what.seqs
	since, pause, all := time.Now(), outage.NewBackOff(), len(what.ids)
	for first := true; len(ids) > 0; first = false {
		text, gone, err := d.deleteOnce(ctx, &deletion{lanes: lanes, ids: ids, seqs: seqs, epoch: what.epoch}, !first)
		d.r.postgres.Report(d.s.Name, err, d.s.Heard())
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			// A server that is shut down in order lets nobody in, and waits for us until all that it has sent is
			// confirmed: for ever, unless we go. What is not deleted comes again.
			if pgerr.Is(err, pgerr.CannotConnectNow) {
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
		snap, err := wal.ParseSnapshot(text)
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
			_ = sleep.For(ctx, min(pause.NextBackOff(), walConfirmEvery))
		}
		if kept > 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if all > 0 {
		d.r.moved.Store(time.Now().UnixNano())
		if d.r.cfg.Observer.Settled != nil {
			d.r.cfg.Observer.Settled(all, 0, time.Since(since))
		}
	}
	return nil
}

// deleteOnce deletes the rows that it finds, and says how many; with look, it takes a snapshot first, as text.
func (d *walDeleter) deleteOnce(ctx context.Context, what *deletion, look bool) (snapshot string, gone int64, err error) {
	if err := failpoint.Err(failpoint.RelayWALDelete); err != nil {
		d.s.Close()
		return "", 0, err
	}
	err = d.s.Send(ctx, pg.Transaction(d.r.cfg.Lease, pg.Async, func(b *pgx.Batch) {
		if look {
			b.Queue(d.r.sql(sql.Snapshot)).QueryRow(func(row pgx.Row) error { return row.Scan(&snapshot) })
		}
		count := func(tag pgconn.CommandTag) error { gone = tag.RowsAffected(); return nil }
		if d.r.cfg.ArchiveDays > 0 {
			b.Queue(d.r.sql(sql.StreamedArchived), what.lanes, what.ids, what.seqs, what.epoch).Exec(count)
			return
		}
		b.Queue(d.r.sql(sql.StreamedGone), what.lanes, what.ids).Exec(count)
	}))
	return snapshot, gone, failpoint.After(failpoint.RelayWALDeleted, err)
}

// confirm writes down up to where everything is published and deleted, on the disk, and then lets the slot go on to
// there.
func (d *walDeleter) confirm(ctx context.Context, idle bool) error {
	found, standbys := false, false
	failpoint.Hit(failpoint.RelayWALConfirm)
	err := d.s.Send(ctx, pg.Transaction(d.r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(d.r.sql(sql.WALConfirm), d.slot, int64(d.deleted)).Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&standbys}, func() error { found = true; return nil })
			return err
		})
		if idle {
			b.Queue(d.r.sql(sql.WALBeat))
		}
	}))
	err = failpoint.After(failpoint.RelayWALConfirmed, err)
	d.r.postgres.Report(d.s.Name, err, d.s.Heard())
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("relay: confirming what was published: %w", err)
	case !found:
		return errors.New("relay: the replication slot was given up by somebody")
	}
	d.last, d.marked = time.Now(), d.deleted
	d.standbys.Store(standbys)
	d.reader.Confirm(d.deleted)
	return nil
}
