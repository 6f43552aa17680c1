package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// releaseBatch is how many keys, and how many events alone, one look finds.
const releaseBatch = 100

// releaseEvents and releaseBytes bound the events of a key that run in one transaction: whoever puts another one
// behind them waits for it.
const (
	releaseEvents = 100
	releaseBytes  = 16 << 20
)

// released is what an operator let go: the list of a key, or an event alone.
type released struct {
	id    int64  // of the event alone
	hash  []byte // of the key
	topic string
	// seen is the event that was next when it was looked for, and counts what was counted of it.
	seen   int64
	counts int
	waits  bool // it is noted that it waits for its next attempt

	// last is the last event of the list that is decided. Up to alone they run one at a time.
	last, alone int64
}

// mine says whether the head may be counted by who looked: unless somebody else has counted it since, and so runs it.
// Members that wait for the same lock would count it one after the other, and their number alone would make a killer of
// it.
func (r *released) mine(head *record) bool {
	counts := 0
	if head.id == r.seen {
		counts = max(r.counts, 0)
	}
	return head.attempts <= counts
}

// release runs what operators have released since the last look.
func (in *Inbox) release(ctx context.Context) error {
	if err := in.Prepare(ctx); err != nil {
		return err
	}
	rows, err := in.db.Query(ctx, in.q(sqlReleasing), in.consumer, releaseBatch,
		in.releasable())
	if err != nil {
		return fmt.Errorf("inbox: looking for released events: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r released, err error) {
		err = row.Scan(&r.id, &r.hash, &r.topic, &r.seen, &r.counts, &r.waits)
		return r, err
	})
	if err != nil {
		return fmt.Errorf("inbox: looking for released events: %w", err)
	}
	for _, r := range list {
		h := in.releaser(r.topic)
		if h == nil || !h.waiting.due(&r) {
			continue // its effect is in another process, or not there yet; or it waits for something else
		}
		h.releaseList(ctx, r)
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// releaseList runs a list to its end, or the event alone, and says once how many events of a key are decided.
func (h *handler) releaseList(ctx context.Context, r released) {
	decided := 0
	for more := true; more && ctx.Err() == nil; {
		n, err := h.releaseNext(ctx, &r)
		if more = n > 0 && r.hash != nil; more {
			decided += n
		}
		if err != nil && ctx.Err() == nil {
			h.log.Warn("inbox: a released event waits for the next look", "topic", r.topic, "error", err)
		}
	}
	if decided > 0 {
		h.log.Info("inbox: released events of a key are decided", "topic", r.topic, "events", decided)
	}
}

// releaseNext runs the next events of a list, or the event alone, and says how many of them are decided. An error
// leaves everything as it was, still to be released.
func (h *handler) releaseNext(ctx context.Context, r *released) (decided int, err error) {
	if free, err := h.isFree(ctx, r); err != nil || !free {
		return 0, err
	}
	if r.hash == nil || r.last < r.alone {
		return h.releaseOne(ctx, r)
	}
	ids, waiting, f := h.planRelease(ctx, r)
	switch {
	case f != nil:
		return 0, f.err
	case waiting == 0:
		return 0, nil
	case len(ids) > 1:
		if f = h.releaseTogether(ctx, r, ids); f == nil {
			return len(ids), nil
		}
		if f.kind != failed && f.kind != dayMissing {
			return 0, f.err
		}
		h.log.Warn("inbox: released events failed together, and run one at a time",
			"topic", r.topic, "events", len(ids), "error", f.err)
		r.alone = ids[len(ids)-1]
	}
	return h.releaseOne(ctx, r)
}

// releaseTogether runs the next events of a list in one transaction, as a batch of a partition: not counted, and beside
// others.
func (h *handler) releaseTogether(ctx context.Context, r *released, ids []int64) *failure {
	leave, err := h.gate.enter(ctx, false)
	if err != nil {
		return &failure{kind: canceled, err: err}
	}
	defer leave()
	t := &releasing{in: h.Inbox, run: h.run, what: *r, ids: ids}
	if f := t.settle(ctx); f != nil {
		return f
	}
	h.waiting.forget(r)
	r.last = ids[len(ids)-1]
	for i := range t.events {
		h.tellReleased(t.events[i], t.out[i], nil)
	}
	return nil
}

// releaseOne runs the next event of a list, or the event alone.
func (h *handler) releaseOne(ctx context.Context, r *released) (decided int, err error) {
	in := h.Inbox
	// Counted, and so alone: a released event may kill the process as well.
	leave, err := in.gate.enter(ctx, true)
	if err != nil {
		return 0, err
	}
	defer leave()
	if free, err := in.isFree(ctx, r); err != nil || !free {
		return 0, err // somebody was quicker, and the others need not wait for that
	}
	head, f := in.countRelease(ctx, r, h.stands)
	if f != nil {
		if head != nil && f.maybe() {
			h.takeBack(ctx, head, false) // a lost answer does not say whether it counts
		}
		return 0, f.err
	}
	if head == nil {
		return 0, nil
	}
	h.stands = 0
	e, err := head.event()
	if err != nil {
		return 0, in.failAgain(ctx, r, head, Terminal(CodeMalformed, err), 0)
	}
	if r.hash != nil && head.code == CodeMaybePublished {
		// Released was what stood before it. Whoever releases it must have looked at it.
		h.tellReleased(e, Parked, errMaybe)
		return 0, in.failAgain(ctx, r, head, errMaybe, 0)
	}
	if head.attempts >= in.cfg.CrashAttempts { // before this count
		h.tellReleased(e, Parked, errKilled)
		return 0, in.failAgain(ctx, r, head, errKilled, 0)
	}
	t := &releasing{in: in, run: h.run, what: *r, ids: []int64{head.id}}
	f = t.settle(ctx)
	if f != nil && f.kind == lost && h.waiting.lose(r, h.cfg.Backoff) > h.cfg.MaxAttempts {
		in.answers(ctx, f)
	}
	switch end := releaseEnd(f, func() bool { return h.waitedOut(r) }); end {
	case releaseLater:
		// It was outlived: the count goes back.
		waits := f.kind == failed || f.kind == lost
		if h.takeBack(ctx, head, waits) && waits {
			h.waiting.noted(r)
		}
		return 0, f.err
	case releaseFailed:
		h.waiting.forget(r)
		h.tellReleased(e, Parked, f.err)
		return 0, in.failAgain(ctx, r, head, f.err, 1)
	}
	h.waiting.forget(r)
	h.tellReleased(e, t.out[0], nil)
	if r.hash == nil {
		h.log.Info("inbox: a released event is decided", "id", e.ID, "topic", e.Topic, "outcome", t.out[0])
	}
	r.last = head.id
	return 1, nil
}

// isFree: no other process runs what was released, nor does an operator change it. Whoever waits for that waits outside
// of the gate.
func (in *Inbox) isFree(ctx context.Context, r *released) (free bool, err error) {
	statement, key := sqlFreeAlone, any(r.id)
	if r.hash != nil {
		statement, key = sqlFreeMark, r.hash
	}
	tag, err := in.db.Exec(ctx, in.q(statement), in.consumer, key)
	if err != nil {
		return false, in.classify(ctx, fmt.Errorf("inbox: looking whether a release is free: %w", err)).err
	}
	return tag.RowsAffected() > 0, nil
}

// releaseTurn is what follows the run of a released event.
type releaseTurn uint8

const (
	releaseDone   releaseTurn = iota // it is decided
	releaseLater                     // nothing is said of it: another look runs it again
	releaseFailed                    // it is parked again
)

// releaseEnd decides that. waitedOut is asked when the effect answered Retryable.
func releaseEnd(f *failure, waitedOut func() bool) releaseTurn {
	switch {
	case f == nil:
		return releaseDone
	case f.kind != failed:
		return releaseLater
	}
	if c, _ := classOf(f.err); c == classRetryable && !waitedOut() {
		return releaseLater
	}
	return releaseFailed
}

// waitedOut puts a release off that answered Retryable, and says whether it has done so for too long.
func (h *handler) waitedOut(r *released) bool {
	waited := h.waiting.later(r, h.cfg.Backoff)
	return h.cfg.MaxRetryFor >= 0 && waited >= h.cfg.MaxRetryFor
}

// releaseWaits paces releases whose effect answers Retryable.
type releaseWaits struct {
	mu sync.Mutex
	of map[string]*releaseWait
}

type releaseWait struct {
	since, until time.Time
	pace         backoff.BackOff
	losses       int  // sessions that ended in the effect
	noted        bool // in the row, where an operator may take it back
}

func (r *released) name() string { return fmt.Sprintf("%x %d", r.hash, r.id) }

// due reports whether a release may be tried now: its time has come, or an operator has taken its note back.
func (w *releaseWaits) due(r *released) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := w.of[r.name()]
	return wait == nil || !time.Now().Before(wait.until) || wait.noted && !r.waits
}

// noted: it is written down that a release waits.
func (w *releaseWaits) noted(r *released) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if wait := w.of[r.name()]; wait != nil {
		wait.noted = true
	}
}

// later puts a release off, and says for how long it has been so.
func (w *releaseWaits) later(r *released, first time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.off(r, first).since)
}

// lose puts a release off whose session ended in its effect, and says how often that was so.
func (w *releaseWaits) lose(r *released, first time.Duration) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := w.off(r, first)
	wait.losses++
	return wait.losses
}

func (w *releaseWaits) off(r *released, first time.Duration) *releaseWait {
	if w.of == nil {
		w.of = map[string]*releaseWait{}
	}
	wait := w.of[r.name()]
	if wait == nil {
		wait = &releaseWait{since: time.Now(), pace: pauses(first, 2*time.Minute, 2.3)}
		w.of[r.name()] = wait
	}
	wait.until, wait.noted = time.Now().Add(wait.pace.NextBackOff()), false
	return wait
}

func (w *releaseWaits) forget(r *released) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of, r.name())
}

// countRelease locks, finds the head and counts its run, in a transaction of its own, unless a count of ours stands for
// it already. Under the lock, and on a second look, an empty list means that the mark may go: nil is returned when
// nothing is left to do. With a failure, head is what would have been counted.
func (in *Inbox) countRelease(ctx context.Context, r *released, stands int64) (head *record, f *failure) {
	err := in.inTx(ctx, func(tx pgx.Tx) error {
		list, err := in.lockHeads(ctx, tx, r, 1)
		if err != nil || len(list) == 0 {
			return err
		}
		head = list[0]
		if !r.mine(head) {
			head = nil
			return nil
		}
		if head.id == stands {
			head.attempts-- // ours is among them
			return nil
		}
		_, err = tx.Exec(ctx, in.q(sqlCountRelease), in.consumer, head.id)
		return err
	})
	if err != nil {
		return head, in.classify(ctx, fmt.Errorf("inbox: counting a release: %w", err))
	}
	return head, nil
}

// planRelease finds out which events of a list run together: the first ones, unless one of them has run in this
// release, or in a batch that did not end. The last of them is noted, so that whoever comes after a process that dies
// of one runs them one at a time. No ids: the next event runs alone. None waiting: there is nothing left to do.
func (in *Inbox) planRelease(ctx context.Context, r *released) (ids []int64, waiting int, f *failure) {
	err := in.inTx(ctx, func(tx pgx.Tx) error {
		if is, err := in.lockReleased(ctx, tx, r); err != nil || !is {
			return err
		}
		rows, err := tx.Query(ctx, in.q(sqlList), in.consumer, r.hash, releaseEvents)
		if err != nil {
			return err
		}
		var id int64
		var attempts, size, sum int
		var code string
		together := true
		_, err = pgx.ForEachRow(rows, []any{&id, &attempts, &code, &size}, func() error {
			waiting++
			if attempts != 0 {
				r.alone = id
			}
			sum += size
			if together = together && sum <= releaseBytes && code != CodeMaybePublished; together {
				ids = append(ids, id)
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case waiting == 0:
			return in.unmark(ctx, tx, r)
		case len(ids) < 2 || r.alone >= ids[0]:
			ids = nil
			return nil
		}
		_, err = tx.Exec(ctx, in.q(sqlNoteBatch), in.consumer, ids[len(ids)-1])
		return err
	})
	if err != nil {
		return nil, 0, in.classify(ctx, fmt.Errorf("inbox: looking at a released key: %w", err))
	}
	return ids, waiting, nil
}

// lockReleased locks the mark of a list, or the row of an event alone, and says whether it is still to be released.
func (in *Inbox) lockReleased(ctx context.Context, tx pgx.Tx, r *released) (is bool, err error) {
	statement, key := sqlLockAlone, any(r.id)
	if r.hash != nil {
		statement, key = sql.LockMark, r.hash
	}
	var state string
	err = tx.QueryRow(ctx, in.q(statement), in.consumer, key).Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return state == "releasing", err
}

// lockHeads locks what is released, and reads the first n events of the list, or the event alone; none when it is not
// to be released any more. A list that is empty under the lock loses its mark.
func (in *Inbox) lockHeads(ctx context.Context, tx pgx.Tx, r *released, n int) ([]*record, error) {
	if is, err := in.lockReleased(ctx, tx, r); err != nil || !is {
		return nil, err
	}
	rows, err := tx.Query(ctx, in.q(sqlHead), in.consumer, r.hash, r.id, n)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*record, error) {
		h := &record{}
		return h, row.Scan(&h.id, &h.messageID, &h.topic, &h.partition, &h.offset, &h.millis, &h.key, &h.value,
			&h.headers,
			&h.kind, &h.attempts, &h.code)
	})
	if err == nil && len(list) == 0 {
		err = in.unmark(ctx, tx, r)
	}
	return list, err
}

// unmark removes the mark of an empty list, which is locked.
func (in *Inbox) unmark(ctx context.Context, tx pgx.Tx, r *released) error {
	if r.hash == nil {
		return nil
	}
	_, err := tx.Exec(ctx, in.q(sql.Unmark), in.consumer, r.hash)
	return err
}

// inTx runs do in a transaction with the inbox's time-outs.
func (in *Inbox) inTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, in.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, in.q(sql.State), in.cfg.lockTimeout, in.cfg.statementTimeout, in.consumer,
			in.cfg.idleTimeout); err != nil {
			return err
		}
		return do(tx)
	})
}

// takeBack takes the count of a run back that this process outlived, and notes whether the event waits for its next
// one. When that cannot be told the database, the next run does without a count of its own.
func (h *handler) takeBack(ctx context.Context, head *record, waits bool) (told bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
	defer cancel()
	h.stands = 0
	_, err := h.db.Exec(ctx, h.q(sqlUncountRelease), h.consumer, head.id, waits)
	if err != nil {
		h.stands = head.id
	}
	return err == nil
}

// failAgain turns a mark, or an event alone, back to parked, for a person to look again.
func (in *Inbox) failAgain(ctx context.Context, r *released, head *record, cause error, runs int) error {
	code, reason := storable(codeOf(cause), 255), storable(cause.Error(), 2000)
	return in.inTx(ctx, func(tx pgx.Tx) error {
		now, err := in.lockHeads(ctx, tx, r, 1)
		if err != nil || len(now) == 0 || now[0].id != head.id {
			return err // another process has it
		}
		if _, err := tx.Exec(ctx, in.q(sqlFailedAgain), in.consumer, head.id, code, reason, runs); err != nil ||
			r.hash == nil {
			return err
		}
		_, err = tx.Exec(ctx, in.q(sqlParkAgain), in.consumer, r.hash, code, reason)
		return err
	})
}

func (h *handler) tellReleased(e event.Event, o Outcome, err error) {
	e = bare(e)
	if err != nil {
		h.log.Error("inbox: a released event failed and is parked again", failureAttrs(&e, err)...)
	}
	if do := h.cfg.Observer.Released; do != nil {
		do(ReleasedInfo{Event: e, Outcome: o, Err: err})
	}
}

// releasing is the transaction of released events: the next ones of a list, or one alone.
type releasing struct {
	in   *Inbox
	run  runner
	what released
	ids  []int64 // of their rows

	// As the last transaction found and decided them.
	events []event.Event
	out    []Outcome
}

// settle runs the effects until they are decided or one fails, with savepoints when one skipped after it had written.
func (t *releasing) settle(ctx context.Context) *failure {
	skip, careful := map[uuid.UUID]bool{}, false
	for {
		f := t.once(ctx, skip, careful)
		switch {
		case f == nil:
			return nil
		case f.kind == dayMissing && len(t.ids) == 1:
			d, _ := days.Of(t.events[0].ID)
			if err := t.in.exclusive(ctx, func() error { return t.in.keeper.MakeDay(ctx, d) }); err != nil {
				return &failure{kind: rejected, err: err}
			}
		case f.kind == skipping && len(f.skips) > 0:
			for _, i := range f.skips {
				skip[t.events[i].ID] = true
			}
		case f.kind == skipping:
			careful = true
		default:
			return f
		}
	}
}

// once is one transaction: the lock, the ids first, the effects, and the rows leave the list.
func (t *releasing) once(ctx context.Context, skip map[uuid.UUID]bool, careful bool) *failure {
	in := t.in
	conn, err := in.db.Acquire(ctx)
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: getting a connection: %w", err))
	}
	defer release(ctx, conn)
	tx, err := conn.Conn().BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return in.classify(ctx, err)
	}
	p, f := t.begin(ctx, tx)
	if f != nil {
		return f
	}
	if fresh := p.fresh(t.events, skip, &aside{}, t.out); len(fresh) > 0 {
		g := newGuardTx(conn.Conn(), tx)
		skipped, f := in.timed(ctx, t.run, g, t.events, fresh, careful)
		g.Close()
		if f == nil && conn.Conn().IsClosed() {
			f = lostSession()
		}
		if f != nil {
			return f
		}
		for _, i := range skipped {
			t.out[i] = Skipped
		}
	}
	_, err = tx.Exec(ctx, in.q(sqlLeave), in.consumer, t.ids)
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: taking events off their list: %w", err))
	}
	if ctx.Err() != nil {
		return &failure{kind: canceled, err: ctx.Err()}
	}
	if f := in.commit(ctx, conn.Conn()); f != nil {
		return f
	}
	return nil
}

// begin locks, makes sure that the list still begins with the same events, and records their ids.
func (t *releasing) begin(ctx context.Context, tx pgx.Tx) (*planned, *failure) {
	in := t.in
	s, err := stateOf(tx.QueryRow(ctx, in.q(sql.State), in.cfg.lockTimeout, in.cfg.statementTimeout, in.consumer,
		in.cfg.idleTimeout))
	if err != nil {
		return nil, in.classify(ctx, fmt.Errorf("inbox: reading the state: %w", err))
	}
	now, err := in.lockHeads(ctx, tx, &t.what, len(t.ids))
	switch {
	case err != nil:
		return nil, in.classify(ctx, fmt.Errorf("inbox: locking released events: %w", err))
	case !slices.EqualFunc(now, t.ids, func(r *record, id int64) bool { return r.id == id }):
		return nil, &failure{kind: conflict, err: errors.New("inbox: another process releases the same key")}
	}
	p := &planned{ids: make([]planID, len(now))}
	t.events, t.out = make([]event.Event, len(now)), make([]Outcome, len(now))
	for i, r := range now {
		if t.events[i], err = r.event(); err != nil {
			return nil, &failure{kind: failed, index: i, err: Terminal(CodeMalformed, err)}
		}
		p.ids[i] = planID{id: t.events[i].ID, index: int32(i), place: inAny}
		if s.Released(t.events[i].ID) {
			p.ids[i].place = inDay
		}
	}
	p.sort()
	for _, to := range []struct {
		place place
		sql   string
	}{{inDay, in.q(sqlInsertDay)}, {inAny, in.q(sqlInsertAny)}} {
		ids := p.array(to.place)
		if ids == "" {
			continue
		}
		rows, err := tx.Query(ctx, to.sql, in.consumer, ids)
		if err == nil {
			err = p.mark(rows)
		}
		if pgerr.Is(err, pgerr.CheckViolation) {
			return nil, &failure{kind: dayMissing, err: err}
		}
		if err != nil {
			return nil, in.classify(ctx, fmt.Errorf("inbox: recording released ids: %w", err))
		}
	}
	return p, nil
}
