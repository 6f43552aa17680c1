package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/seeded"
)

// laneEmits is outbox_streamed.emitted: whether producers may emit a lane's events, without a row.
type laneEmits string

const (
	emitsNone    laneEmits = "none"
	emitsOpen    laneEmits = "open"
	emitsClosing laneEmits = "closing" // no more; what was emitted is published from the WAL
	emitsLeaving laneEmits = "leaving" // no more; what was emitted and is not published becomes rows
)

// walClosing is what must be before nothing more can come that was emitted for a lane that is closed.
type walClosing struct {
	guard map[string]bool // transactions that may have seen the lane open; true: prepared
	until uint64          // what they have written is before it; 0: it is not known yet
}

// openLanes lets producers emit, or has them insert again.
func (f *follower) openLanes(ctx context.Context) error {
	to, from := emitsOpen, []laneEmits{emitsNone, emitsClosing}
	if !f.opens {
		to, from = emitsClosing, []laneEmits{emitsOpen}
	}
	for lane := range f.mine {
		if f.mine[lane].emits != emitsNone && f.mine[lane].fence != 0 && !f.reader.decoder.accepts {
			return errLanesChanged // somebody has opened it since the slot was looked at
		}
	}
	set := f.lanesThat(func(l *streamedLane) bool { return l.emits == from[0] || l.emits == from[len(from)-1] })
	return f.turn(ctx, set, to, from, nil)
}

// lanesThat lists lanes of ours, as parameters.
func (f *follower) lanesThat(want func(l *streamedLane) bool) (set laneKeys) {
	for lane := range f.mine {
		if l := &f.mine[lane]; l.fence != 0 && want(l) {
			set.lanes, set.fences = append(set.lanes, int16(lane)), append(set.fences, l.fence)
		}
	}
	return set
}

// turn changes what lanes do with emitted events, and whatever more belongs to it.
func (f *follower) turn(ctx context.Context, set laneKeys, to laneEmits, from []laneEmits, more func(b *pgx.Batch)) error {
	if len(set.lanes) == 0 {
		return nil
	}
	r, locked := f.r, 0
	turning(to)
	err := f.s.send(ctx, transaction(r.cfg.Lease, toDisk, func(b *pgx.Batch) {
		b.Queue(r.q.lock, set.lanes, set.fences, r.owner).Query(func(rows pgx.Rows) error {
			return eachLane(rows, func(int16) { locked++ })
		})
		b.Queue(r.q.wal.emitted, set.lanes, set.fences, r.owner, to, from)
		if more != nil {
			more(b)
		}
	}))
	if err = turned(to, err); err != nil {
		r.doubtUnknown(set, err)
		return fmt.Errorf("relay: changing which lanes take emitted events: %w", err)
	}
	if locked != len(set.lanes) {
		return errLanesChanged
	}
	for _, lane := range set.lanes {
		f.mine[lane].emits = to
	}
	r.lanes.emit(set.lanes, to != emitsNone)
	f.closing = nil
	return nil
}

// turning reaches the points before lanes do something else with emitted events.
func turning(to laneEmits) {
	switch to {
	case emitsOpen:
		failpoint.Hit(failpoint.RelayEmittedOpen)
	case emitsClosing:
		failpoint.Hit(failpoint.RelayEmittedClose)
	case emitsLeaving:
		failpoint.Hit(failpoint.RelayEmittedLeave)
	case emitsNone:
		failpoint.Hit(failpoint.RelayEmittedEnd)
	}
}

// turned reaches the points after it.
func turned(to laneEmits, err error) error {
	switch to {
	case emitsOpen:
		err = failpoint.After(failpoint.RelayEmittedOpened, err)
	case emitsClosing:
		err = failpoint.After(failpoint.RelayEmittedClosed, err)
	case emitsLeaving:
		err = failpoint.After(failpoint.RelayEmittedLeft, err)
	case emitsNone:
		err = failpoint.After(failpoint.RelayEmittedEnded, err)
	}
	return err
}

// setAside gives lanes back to the table. One that producers emit for stays with the follower a little longer: what they have emitted
// becomes rows first, all of it, before anybody publishes a row of it; order holds because those have the ids that they drew.
func (f *follower) setAside(work context.Context, which [Lanes]bool, unsure bool, done *deletion) error {
	var leaving [Lanes]bool
	some, at := false, false
	for i := range f.down.items {
		leaving[f.down.items[i].lane] = true
	}
	for lane := range which {
		switch emits := f.mine[lane].emits; {
		case !which[lane]:
		case emits == emitsNone:
			at = true
		case emits == emitsLeaving: // it is on its way, and would begin to wait anew
			which[lane] = false
		default:
			leaving[lane], which[lane], some = true, false, true
		}
	}
	if at {
		if err := f.aside(work, which, unsure, done); err != nil {
			return err
		}
	}
	if !some {
		return nil
	}
	set := f.lanesThat(func(*streamedLane) bool { return true })
	kept := laneKeys{}
	for i, lane := range set.lanes {
		if leaving[lane] {
			kept.lanes, kept.fences = append(kept.lanes, lane), append(kept.fences, set.fences[i])
		}
	}
	f.r.log.Info("lanes are closed to emitted events, and go back to the table when what was emitted stands there", "lanes", kept.lanes)
	err := f.turn(work, kept, emitsLeaving, []laneEmits{emitsNone, emitsOpen, emitsClosing}, f.queueDown)
	f.down = walBatch{}
	return err
}

// leaveOut is what becomes of an event that is not to be published from the WAL: a row is in the table; what is none becomes one.
func (f *follower) leaveOut(e *event.Event, it *walItem, l *streamedLane) {
	switch {
	case !it.emitted:
		f.skipped[it.xid] = true
	case l.fence == 0:
		f.last = append(f.last, *e)
	case !l.done[it.id]:
		f.down.events, f.down.items = append(f.down.events, *e), append(f.down.items, *it)
	}
}

// putDown makes rows of the emitted events that are not published from the WAL, before the batch that they came with counts as done.
func (f *follower) putDown(work context.Context) error {
	if len(f.down.items) == 0 && len(f.last) == 0 {
		return nil
	}
	r := f.r
	if len(f.last) > 0 {
		r.log.Warn("events were emitted for lanes that have gone back to the table since: they are appended there now, perhaps behind later ones of their keys", "events", len(f.last))
	}
	locks := f.lanesThat(func(l *streamedLane) bool { return l.emits == emitsLeaving })
	locked := 0
	failpoint.Hit(failpoint.RelayEmittedPutDown)
	err := f.s.send(work, transaction(r.cfg.Lease, toDisk, func(b *pgx.Batch) {
		b.Queue(r.q.lock, locks.lanes, locks.fences, r.owner).Query(func(rows pgx.Rows) error {
			return eachLane(rows, func(int16) { locked++ })
		})
		f.queueDown(b)
		if len(f.last) > 0 {
			b.Queue(r.q.wal.putLast, columnsOf(f.last)...)
		}
	}))
	if err = failpoint.After(failpoint.RelayEmittedRows, err); err != nil {
		r.doubtUnknown(locks, err)
		return fmt.Errorf("relay: making rows of emitted events: %w", err)
	}
	if locked != len(locks.lanes) {
		return errLanesChanged
	}
	f.down, f.last = walBatch{}, nil
	return nil
}

// queueDown makes rows of what is to be put down.
func (f *follower) queueDown(b *pgx.Batch) {
	n := len(f.down.items)
	if n == 0 {
		return
	}
	lanes, fences, ids := make([]int16, n), make([]int64, n), make([]int64, n)
	for i := range f.down.items {
		it := &f.down.items[i]
		lanes[i], fences[i], ids[i] = it.lane, f.mine[it.lane].fence, it.id
	}
	b.Queue(f.r.q.wal.putDown, append([]any{lanes, fences, f.r.owner, ids}, columnsOf(f.down.events)...)...)
}

// columnsOf are the arrays of a row's columns, from message_id on.
func columnsOf(events []event.Event) []any {
	n := len(events)
	ids, times, payloads, headers := make([]uuid.UUID, n), make([]time.Time, n), make([][]byte, n), make([]*string, n)
	texts := [6][]string{}
	for c := range texts {
		texts[c] = make([]string, n)
	}
	for i := range events {
		e := &events[i]
		ids[i], times[i], payloads[i] = e.ID, e.Time, e.Payload
		for c, v := range [...]string{e.Source, e.Tenant, e.Topic, e.Key, e.Type, e.ContentType} {
			texts[c][i] = v
		}
		if len(e.Headers) > 0 {
			b, _ := json.Marshal(e.Headers) // a map of texts: it cannot fail
			s := string(b)
			headers[i] = &s
		}
	}
	return []any{ids, texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], headers, payloads, times}
}

// close brings lanes that are closed to emitted events to the end of that: when everybody who may have seen them open has ended, and
// all that they have written was taken. Who emits holds a lock on the table of events, taken before it looks which lanes are open.
func (f *follower) close(work context.Context) error {
	waiting := f.lanesThat(func(l *streamedLane) bool { return l.emits == emitsClosing || l.emits == emitsLeaving })
	if len(waiting.lanes) == 0 {
		return nil
	}
	if ready, err := f.closed(work); err != nil || !ready {
		return err
	}
	var leaving [Lanes]bool
	var unsure, some bool
	for _, lane := range waiting.lanes {
		if l := &f.mine[lane]; l.emits == emitsLeaving {
			leaving[lane], some, unsure = true, true, unsure || l.unsure
		}
	}
	if some {
		if err := f.aside(work, leaving, unsure, &deletion{}); err != nil {
			return err
		}
	}
	set := f.lanesThat(func(l *streamedLane) bool { return l.emits == emitsClosing })
	if err := f.turn(work, set, emitsNone, []laneEmits{emitsClosing}, nil); err != nil {
		return err
	}
	if len(set.lanes) > 0 {
		f.r.log.Info("what producers emitted is published, and they insert again", "lanes", len(set.lanes))
	}
	return nil
}

// closed reports whether nothing more can come that was emitted for lanes that are closed.
func (f *follower) closed(work context.Context) (bool, error) {
	r, c := f.r, f.closing
	if seeded.On(seeded.RelayEmittedLeft) {
		return true, nil
	}
	if c == nil || len(c.guard) > 0 {
		var now map[string]bool
		err := f.s.send(work, transaction(r.cfg.Lease, toNothing, func(b *pgx.Batch) {
			b.Queue(r.q.holders).Query(func(rows pgx.Rows) (err error) { now, err = readHolders(rows); return err })
		}))
		if err != nil {
			return false, fmt.Errorf("relay: reading who may emit events: %w", err)
		}
		if c == nil {
			c = &walClosing{guard: now}
			f.closing = c
		} else {
			narrow(c.guard, now)
		}
	}
	if len(c.guard) > 0 {
		r.log.Debug("lanes that are closed to emitted events wait for the end of transactions that may have emitted some", "transactions", len(c.guard))
		return false, nil
	}
	if c.until == 0 {
		// Its own commit brings the stream past it.
		err := f.s.send(work, transaction(r.cfg.Lease, toDisk, func(b *pgx.Batch) {
			b.Queue(r.q.wal.emittedUntil).QueryRow(func(row pgx.Row) error { return row.Scan(&c.until) })
			b.Queue(r.q.wal.barrier)
		}))
		if err != nil {
			c.until = 0
			return false, fmt.Errorf("relay: reading up to where events may have been emitted: %w", err)
		}
	}
	return f.pos >= c.until, nil
}

// narrow takes out of a guard who has ended. One that is prepared now may be one of them, under its new name.
func narrow(guard, now map[string]bool) {
	for name, prepared := range now {
		if prepared && len(guard) > 0 {
			guard[name] = true
		}
	}
	for name := range guard {
		if _, still := now[name]; !still {
			delete(guard, name)
		}
	}
}

// leaveUnread has other relays take the lanes whose emitted events only who reads the WAL can publish.
func (r *Relay) leaveUnread(unread []int16) {
	before := int(r.unread.Swap(int32(len(unread))))
	for _, lane := range unread {
		r.lanes.update(lane, r.lanes.fenceOf(lane), func(l *laneState) { l.leaving = l.leaving || l.source == unassigned })
	}
	switch {
	case len(unread) > 0 && before == 0:
		r.log.Error("lanes wait for a relay that reads the WAL, where producers have emitted events that are nowhere else: run one with the source wal "+
			"(without emitted, to come back to the table), or give those events up with `relay wal drop --lose-emitted`", "lanes", unread)
	case len(unread) == 0 && before > 0:
		r.log.Info("no lane waits for a relay that reads the WAL any more")
	}
}
