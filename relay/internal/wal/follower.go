package wal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// follower publishes the events of one session of reading the WAL: it takes batches from the reader, publishes the
// events of lanes whose feed is the WAL, leaves the others to the pumps, and gives acked events to the deleter. Lanes
// change their feed only between two batches.
type follower struct {
	*Feed
	session *pg.Session
	reader  *reader
	deleter *deleter
	slot    string
	epoch   string
	paused  []string // topics, as of the last change in the stream
	numbers numbers
	since   uint64 // commits from here on were not sent before

	mine [lanes.Count]streamedLane
	// Transactions with events that were left to the pumps, and which a snapshot may not show yet.
	skipped map[uint32]bool
	guard   pg.Holders // transactions that may have committed before the stream began, and may be invisible yet
	spare   *batch
	again   time.Time // when to try to take lanes from the pumps
	pause   time.Duration
	waited  int // ticks, for pumps that are at work
	scan    tableScan
	pos     uint64        // commits before it were taken
	latest  uint64        // the commit of the last event that was taken; 0: none was
	claims  cycle.Session // the buffers of its claims
	wake    bool          // changes in the last batch may have been invisible to the prober
}

// streamedLane is a lane whose feed is the WAL.
type streamedLane struct {
	fence int64 // 0: the lane has another feed
	// Commits before until, and those that snap shows, were published from the table. A nil snap: all events that come
	// are the follower's.
	until uint64
	snap  *snapshot
	// done are events that the snapshot does not show, but that were published from the table before the hand-over.
	done map[int64]bool
	// before: an earlier session may have sent, and not deleted, events that commit before follower.since.
	before bool
}

// errLanesChanged: a lane was lost, or its fence was raised. The stream begins again after the published events.
var errLanesChanged = errors.New("relay: the lanes have changed")

const (
	walTick      = 100 * time.Millisecond
	walBeat      = 500 * time.Millisecond // between requested heartbeats
	walPauseLow  = 100 * time.Millisecond
	walPauseHigh = 5 * time.Second
	// walPauseEarly is the longest pause while the follower waits for transactions of producers.
	walPauseEarly = 500 * time.Millisecond
)

func newFollower(feed *Feed, s *pg.Session, st *state, reader *reader) *follower {
	return &follower{
		Feed: feed, session: s, reader: reader, slot: st.Name, since: uint64(st.Now),
		numbers: numbers{Base: uint64(st.Base), Span: feed.Span, Most: feed.Numbers}, skipped: map[uint32]bool{},
		spare: &batch{}, pause: walPauseLow, scan: newTableScan(feed),
		deleter: newDeleter(feed, st, reader),
	}
}

// run reads and publishes until ctx ends, and settles all events that it has sent.
func (f *follower) run(ctx, work context.Context, try *try) (err error) {
	reading, stop := context.WithCancel(work)
	failed := make(chan error, 2)
	ended := make(chan struct{})
	go func() { defer close(ended); failed <- f.reader.Run(reading) }()
	go func() { failed <- f.deleter.Run(reading) }()
	go f.scan.run(reading)
	defer func() {
		stop()
		<-ended
		<-f.deleter.Ended
		<-f.scan.ended
		f.reader.Close(err == nil)
		f.Postgres.Report(f.session.Name, nil, f.session.Heard())
	}()
	if err := f.begin(ctx, failed); err != nil {
		return err
	}
	try.Reads()
	f.Log.Info("reading the WAL", "slot", f.slot, "lanes", f.count())
	tick := time.NewTicker(walTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if err := f.readPending(work, failed); err != nil {
				return err
			}
			return f.finish(work)
		case err := <-failed:
			return errors.Join(err, work.Err())
		case <-f.reader.More:
			err = f.take(work)
		case <-tick.C:
			err = f.tick(work)
		}
		if err != nil {
			return err
		}
	}
}

// begin waits for the lanes of the relay that read the WAL before, and continues at its position.
func (f *follower) begin(ctx context.Context, failed <-chan error) error {
	err := f.session.Transaction(ctx, pg.Disk, func(b *pgx.Batch) { b.Queue(f.SQL(sql.WALOwn), f.Owner, f.slot) })
	if err != nil {
		return fmt.Errorf("relay: noting who reads the WAL: %w", err)
	}
	f.set(streaming, nil)
	for {
		// The fences first: a relay with an older one cannot change the rows any more.
		var fences [lanes.Count]int64
		for lane := range fences {
			fences[lane] = f.Lanes.Fence(int16(lane))
		}
		rows, err := f.rows(ctx)
		if err != nil {
			return err
		}
		missing := false
		for lane, l := range rows {
			l.fence = fences[lane]
			missing = missing || l.fence == 0
			f.mine[lane] = l
		}
		if !missing {
			break
		}
		f.mine = [lanes.Count]streamedLane{}
		f.Signals.Beat()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-time.After(walBeat):
		}
	}
	var fromWAL []int16
	for lane := range f.mine {
		if f.mine[lane].fence != 0 {
			fromWAL = append(fromWAL, int16(lane))
		}
	}
	f.Lanes.Assign(fromWAL, lanes.WAL)
	return f.check(ctx)
}

// rows reads the lanes whose feed is the WAL.
func (f *follower) rows(ctx context.Context) (map[int16]streamedLane, error) {
	out := map[int16]streamedLane{}
	err := f.session.Transaction(ctx, pg.Async, func(b *pgx.Batch) {
		b.Queue(f.SQL(sql.Streamed)).Query(func(rows pgx.Rows) error { return readStreamed(rows, out) })
	})
	if err != nil {
		return nil, fmt.Errorf("relay: reading which lanes come from the WAL: %w", err)
	}
	return out, nil
}

func readStreamed(rows pgx.Rows, into map[int16]streamedLane) error {
	var lane int16
	var text string
	var until int64
	var ids []int64
	_, err := pgx.ForEachRow(rows, []any{&lane, &text, &until, &ids}, func() error {
		snap, err := parseSnapshot(text)
		into[lane] = streamedLane{until: uint64(until), snap: snap, done: setOf(ids), before: true}
		return err
	})
	return err
}

// check reads, once the stream has begun, the current numbering and pauses, and the transactions that may have
// committed before the stream began.
func (f *follower) check(ctx context.Context) error {
	same, checked := false, f.Same()
	err := f.session.Transaction(ctx, pg.Async, func(b *pgx.Batch) {
		checked.Queue(b)
		b.Queue(f.SQL(sql.Meta)).QueryRow(func(row pgx.Row) error { return row.Scan(&f.epoch, &same) })
		b.Queue(f.SQL(sql.Paused)).QueryRow(func(row pgx.Row) error { return row.Scan(&f.paused) })
		b.Queue(f.SQL(sql.Holders)).Query(pg.ReadHolders(&f.guard))
	})
	if err == nil && !same {
		return errLanesChanged
	}
	if err := checked.Error(err); err != nil {
		return fmt.Errorf("relay: reading the numbering: %w", err)
	}
	return nil
}

func setOf(ids []int64) map[int64]bool {
	if len(ids) == 0 {
		return nil
	}
	set := make(map[int64]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

func (f *follower) count() (n int) {
	for i := range f.mine {
		if f.mine[i].fence != 0 {
			n++
		}
	}
	return n
}

// owned fails if a lane was lost or its fence was raised: the read events may be another relay's by now.
func (f *follower) owned() error {
	for lane := range f.mine {
		if l := &f.mine[lane]; l.fence != 0 && f.Lanes.Fence(int16(lane)) != l.fence {
			return errLanesChanged
		}
	}
	return nil
}

// take publishes the reader's batch.
func (f *follower) take(work context.Context) error {
	if err := f.owned(); err != nil {
		return err
	}
	b := f.reader.Next(f.spare)
	f.spare = b
	if len(b.Changed) > 0 {
		if err := f.changed(work, b.Changed); err != nil {
			return err
		}
	}
	if len(b.Changed) > 0 || !b.Due.IsZero() {
		f.wake = true
		f.kick()
	}
	if n := len(b.Items); n > 0 {
		if f.latest = b.Items[n-1].Commit; f.numbers.Ended(&b.Items[n-1]) {
			return errNumbersEnd
		}
	}
	f.pos = max(f.pos, b.Pos)
	f.choose(b)
	d := &deletion{Pos: b.Pos}
	if len(b.Events) > 0 {
		if err := f.publish(work, b, d); err != nil {
			return err
		}
	}
	f.deleter.Add(work, d)
	clear(b.Events)
	return nil
}

// changed applies operators' changes in some transactions.
func (f *follower) changed(ctx context.Context, xids []uint32) error {
	c, err := readChanges(ctx, f.session, f.Schema, xids)
	if err != nil {
		return err
	}
	if !c.Same {
		return errLanesChanged
	}
	f.epoch, f.paused = c.Epoch, c.Paused
	f.Cycle.SetPaused(c.Paused)
	return nil
}

// choose keeps the follower's events of a batch, and numbers them.
func (f *follower) choose(b *batch) {
	kept := 0
	for i := range b.Events {
		it := &b.Items[i]
		l := &f.mine[it.Lane]
		if l.fence == 0 {
			f.skipped[it.XID] = true // its row is in the table
			continue
		}
		if l.snap != nil && it.Commit >= l.until {
			l.snap = nil // all commits that it shows have come
		}
		if l.snap != nil && l.snap.Shows(it.XID) {
			continue
		}
		if l.done[it.ID] {
			delete(l.done, it.ID)
			continue
		}
		b.Events[kept], b.Items[kept] = b.Events[i], *it
		e := &b.Events[kept]
		e.Position = event.Position{Lane: walLane, Epoch: f.epoch, Seq: f.numbers.Of(it), First: it.Commit >= f.since}
		kept++
	}
	clear(b.Events[kept:])
	b.Events, b.Items = b.Events[:kept], b.Items[:kept]
}

// walLane is the lane of events from the WAL: their numbers are common to all lanes.
const walLane int16 = -1

// errNumbersEnd: the session ends, and the next one begins with another base.
var errNumbersEnd = errors.New("relay: the numbers of this slot's base have come to their end")

// pending reports whether an earlier session may have sent events of the lane that are still in the table, and have not
// come again.
func (f *follower) pending(l *streamedLane) bool { return l.before && f.pos < f.since }

// pendingLanes returns the lanes that must not go back to the table yet.
func (f *follower) pendingLanes() sql.Fenced { return f.lanesThat(f.pending) }

// lanesThat returns some of the relay's lanes, as parameters.
func (f *follower) lanesThat(want func(l *streamedLane) bool) (set sql.Fenced) {
	for lane := range f.mine {
		if l := &f.mine[lane]; l.fence != 0 && want(l) {
			set.Add(int16(lane), l.fence, 0)
		}
	}
	return set
}

// inside reports whether the end of a transaction was not taken yet, and events of it were.
func (f *follower) inside() bool { return f.latest > 0 && f.pos <= f.latest }

// readPending continues reading at the end until no lane is pending, which is no more than the WAL that was committed
// when the session began, and to the end of a transaction, behind which the slot can move. It may take half of the time
// for the drain; the rest is left to the next reader.
func (f *follower) readPending(work context.Context, failed <-chan error) error {
	enough := time.NewTimer(f.Drain / 2)
	defer enough.Stop()
	for len(f.pendingLanes().Lanes) > 0 || f.inside() {
		select {
		case <-enough.C:
			return nil
		case err := <-failed:
			return errors.Join(err, work.Err())
		case <-f.reader.More:
			if err := f.take(work); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish is the clean end: published events are deleted, the lanes go back to the table, and the slot is at the last
// position. Pending lanes stay: the next reader of the WAL continues there.
func (f *follower) finish(work context.Context) error {
	if err := f.deleter.Flush(work); err != nil {
		return err
	}
	set := f.lanesThat(func(l *streamedLane) bool { return !f.pending(l) })
	if left := f.pendingLanes(); len(left.Lanes) > 0 {
		f.Log.Warn("lanes stay with the WAL: events that an earlier relay may have sent were not read again yet; "+
			"start another relay with --feed=wal before one with --feed=table, which would begin a new numbering",
			"lanes", left.Lanes)
	}
	err := f.session.Transaction(work, pg.Disk, func(b *pgx.Batch) {
		if len(set.Lanes) > 0 {
			b.Queue(f.SQL(sql.Lock), set.Lanes, set.Fences, f.Owner)
			b.Queue(f.SQL(sql.Unstream), set.Lanes, set.Fences, f.Owner)
		}
		b.Queue(f.SQL(sql.WALConfirm), f.slot, int64(f.deleter.Gone()))
	})
	if err != nil {
		return fmt.Errorf("relay: giving the lanes back to the table: %w", err)
	}
	f.reader.Confirm(f.deleter.Gone())
	return nil
}
