package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// releaseBatch is how many keys, and how many events alone, one look finds.
const releaseBatch = 100

// released is what an operator let go: the list of a key, or an event alone.
type released struct {
	id    int64  // of the event alone
	hash  []byte // of the key
	topic string
	// seen is the event that was next when it was looked for, and counts what was counted of it.
	seen   int64
	counts int
}

// mine says whether the head may be counted by who looked: unless somebody else has counted it since, and so runs it.
// Members that wait for the same lock would count it one after the other, and their number alone would make a killer of
// it.
func (r *released) mine(head *record) bool {
	if head.id == r.seen {
		return head.attempts <= r.counts
	}
	return head.attempts == 0
}

// releaseTexts are the statements of a release, with their schema.
type releaseTexts struct {
	freeMark, freeAlone, lockMark, lockAlone, head, count, uncount, leave, unmark, parkAgain, failedAgain string
}

func newReleaseTexts(prefix string) (t releaseTexts) {
	for to, sql := range map[*string]string{
		&t.freeMark: sqlFreeMark, &t.freeAlone: sqlFreeAlone, &t.lockMark: sql.LockMark, &t.lockAlone: sqlLockAlone, &t.head: sqlHead, &t.count: sqlCountRelease, &t.uncount: sqlUncountRelease,
		&t.leave: sqlLeave, &t.unmark: sql.Unmark, &t.parkAgain: sqlParkAgain, &t.failedAgain: sqlFailedAgain,
	} {
		*to = pgschema.Expand(sql, prefix)
	}
	return t
}

// release runs what operators have released since the last look.
func (in *Inbox) release(ctx context.Context) error {
	if err := in.Prepare(ctx); err != nil {
		return err
	}
	rows, err := in.db.Query(ctx, pgschema.Expand(sqlReleasing, in.cfg.prefix), in.consumer, releaseBatch, in.releasable())
	if err != nil {
		return fmt.Errorf("inbox: looking for released events: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r released, err error) {
		err = row.Scan(&r.id, &r.hash, &r.topic, &r.seen, &r.counts)
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
		var err error
		if more, err = h.releaseOne(ctx, r); more {
			decided++
		}
		if err != nil && ctx.Err() == nil {
			h.log.Warn("inbox: a released event waits for the next look", "topic", r.topic, "error", err)
		}
	}
	if decided > 0 {
		h.log.Info("inbox: released events of a key are decided", "topic", r.topic, "events", decided)
	}
}

// releaseOne runs the next event of a list, or the event alone, and says whether another one may follow. An error
// leaves everything as it was, still to be released.
func (h *handler) releaseOne(ctx context.Context, r released) (more bool, err error) {
	in := h.Inbox
	if free, err := in.isFree(ctx, &r); err != nil || !free {
		return false, err
	}
	// Counted, and so alone: a released event may kill the process as well.
	leave, err := in.gate.enter(ctx, true)
	if err != nil {
		return false, err
	}
	defer leave()
	if free, err := in.isFree(ctx, &r); err != nil || !free {
		return false, err // somebody was quicker, and the others need not wait for that
	}
	head, f := in.countRelease(ctx, r, h.stands)
	if f != nil {
		if head != nil && f.maybe() {
			h.takeBack(ctx, head) // a lost answer does not say whether it counts
		}
		return false, f.err
	}
	if head == nil {
		return false, nil
	}
	h.stands = 0
	e, err := head.event()
	if err != nil {
		return false, in.failAgain(ctx, r, head, Terminal(CodeMalformed, err), 0)
	}
	if r.hash != nil && head.code == CodeMaybePublished {
		// Released was what stood before it. Whoever releases it must have looked at it.
		h.tellReleased(e, Parked, errMaybe)
		return false, in.failAgain(ctx, r, head, errMaybe, 0)
	}
	if head.attempts >= in.cfg.CrashAttempts { // before this count
		h.tellReleased(e, Parked, errKilled)
		return false, in.failAgain(ctx, r, head, errKilled, 0)
	}
	t := &releasing{in: in, run: h.run, what: r, head: head, event: e}
	outcome, f := t.settle(ctx)
	if f != nil && f.kind == lost && h.waiting.lose(&r, h.cfg.Backoff) > h.cfg.MaxAttempts {
		in.answers(ctx, f)
	}
	switch end := releaseEnd(f, func() bool { return h.waitedOut(&r) }); end {
	case releaseLater:
		// It was outlived: the count goes back.
		h.takeBack(ctx, head)
		return false, f.err
	case releaseFailed:
		h.waiting.forget(&r)
		h.tellReleased(e, Parked, f.err)
		return false, in.failAgain(ctx, r, head, f.err, 1)
	}
	h.waiting.forget(&r)
	h.tellReleased(e, outcome, nil)
	if r.hash == nil {
		h.log.Info("inbox: a released event is decided", "id", e.ID, "topic", e.Topic, "outcome", outcome)
	}
	return r.hash != nil, nil
}

// isFree: no other process runs what was released, nor does an operator change it. Whoever waits for that waits outside
// of the gate.
func (in *Inbox) isFree(ctx context.Context, r *released) (free bool, err error) {
	sql, key := in.releaseSQL.freeAlone, any(r.id)
	if r.hash != nil {
		sql, key = in.releaseSQL.freeMark, r.hash
	}
	tag, err := in.db.Exec(ctx, sql, in.consumer, key)
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
	losses       int // sessions that ended in the effect
}

func (r *released) name() string { return fmt.Sprintf("%x %d", r.hash, r.id) }

// due reports whether a release may be tried now.
func (w *releaseWaits) due(r *released) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := w.of[r.name()]
	return wait == nil || !time.Now().Before(wait.until)
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
	wait.until = time.Now().Add(wait.pace.NextBackOff())
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
func (in *Inbox) countRelease(ctx context.Context, r released, stands int64) (head *record, f *failure) {
	err := in.inTx(ctx, func(tx pgx.Tx) (err error) {
		if head, err = in.lockHead(ctx, tx, r); err != nil || head == nil {
			return err
		}
		if !r.mine(head) {
			head = nil
			return nil
		}
		if head.id == stands {
			head.attempts-- // ours is among them
			return nil
		}
		_, err = tx.Exec(ctx, in.releaseSQL.count, in.consumer, head.id)
		return err
	})
	if err = failpoint.After(failpoint.InboxReleaseCounted, err); err != nil {
		return head, in.classify(ctx, fmt.Errorf("inbox: counting a release: %w", err))
	}
	return head, nil
}

// lockHead locks the mark of a list, or the row of an event alone, and reads the head; nil when it is not to be
// released any more. A list that is empty under the lock loses its mark.
func (in *Inbox) lockHead(ctx context.Context, tx pgx.Tx, r released) (*record, error) {
	sql, key := in.releaseSQL.lockAlone, any(r.id)
	if r.hash != nil {
		sql, key = in.releaseSQL.lockMark, r.hash
	}
	var state string
	err := tx.QueryRow(ctx, sql, in.consumer, key).Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && state != "releasing" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	head := &record{}
	err = tx.QueryRow(ctx, in.releaseSQL.head, in.consumer, r.hash, r.id).Scan(&head.id, &head.messageID, &head.topic, &head.partition,
		&head.offset, &head.millis, &head.key, &head.value, &head.headers, &head.kind, &head.attempts, &head.code)
	if !errors.Is(err, pgx.ErrNoRows) {
		return head, err
	}
	if r.hash != nil {
		_, err = tx.Exec(ctx, in.releaseSQL.unmark, in.consumer, r.hash)
		return nil, failpoint.After(failpoint.InboxUnmarked, err)
	}
	return nil, nil
}

// inTx runs do in a transaction with the inbox's time-outs.
func (in *Inbox) inTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, in.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, in.sql.state, in.cfg.lockTimeout, in.cfg.statementTimeout, in.consumer, in.cfg.idleTimeout); err != nil {
			return err
		}
		return do(tx)
	})
}

// takeBack takes the count of a run back that this process outlived. When that cannot be told the database, the next
// run does without a count of its own.
func (h *handler) takeBack(ctx context.Context, head *record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
	defer cancel()
	h.stands = 0
	if _, err := h.db.Exec(ctx, h.releaseSQL.uncount, h.consumer, head.id); err != nil {
		h.stands = head.id
	}
}

// failAgain turns a mark, or an event alone, back to parked, for a person to look again.
func (in *Inbox) failAgain(ctx context.Context, r released, head *record, cause error, runs int) error {
	code, reason := storable(codeOf(cause), 255), storable(cause.Error(), 2000)
	err := in.inTx(ctx, func(tx pgx.Tx) error {
		now, err := in.lockHead(ctx, tx, r)
		if err != nil || now == nil || now.id != head.id {
			return err // another process has it
		}
		if _, err := tx.Exec(ctx, in.releaseSQL.failedAgain, in.consumer, head.id, code, reason, runs); err != nil || r.hash == nil {
			return err
		}
		_, err = tx.Exec(ctx, in.releaseSQL.parkAgain, in.consumer, r.hash, code, reason)
		return failpoint.After(failpoint.InboxFailAgain, err)
	})
	if err == nil {
		failpoint.Hit(failpoint.InboxFailedAgain)
	}
	return err
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

// releasing is the transaction of one released event.
type releasing struct {
	in    *Inbox
	run   runner
	what  released
	head  *record
	event event.Event
}

// settle runs the effect until it is decided or fails, with savepoints when it skipped after it had written.
func (t *releasing) settle(ctx context.Context) (Outcome, *failure) {
	skip, careful := false, false
	for {
		o, f := t.once(ctx, skip, careful)
		switch {
		case f == nil:
			return o, nil
		case f.kind == dayMissing:
			d, _ := days.Of(t.event.ID)
			if err := t.in.exclusive(ctx, func() error { return t.in.keeper.MakeDay(ctx, d) }); err != nil {
				return Undecided, &failure{kind: rejected, err: err}
			}
		case f.kind == skipping && len(f.skips) > 0:
			skip = true
		case f.kind == skipping:
			careful = true
		default:
			return Undecided, f
		}
	}
}

// once is one transaction: the lock, the id first, the effect, and the row leaves the list.
func (t *releasing) once(ctx context.Context, skip, careful bool) (Outcome, *failure) {
	in := t.in
	conn, err := in.db.Acquire(ctx)
	if err != nil {
		return Undecided, in.classify(ctx, fmt.Errorf("inbox: getting a connection: %w", err))
	}
	defer release(ctx, conn)
	tx, err := conn.Conn().BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return Undecided, in.classify(ctx, err)
	}
	isNew, f := t.begin(ctx, tx)
	if f != nil {
		return Undecided, f
	}
	outcome := Duplicate
	if isNew {
		outcome = Applied
		if skip {
			outcome = Skipped
		} else {
			g := newGuardTx(conn.Conn(), tx)
			skipped, f := in.timed(ctx, t.run, g, []event.Event{t.event}, []int{0}, careful)
			g.Close()
			failpoint.Hit(failpoint.InboxReleaseEffected)
			if f == nil && conn.Conn().IsClosed() {
				f = lostSession()
			}
			if f != nil {
				return Undecided, f
			}
			if len(skipped) > 0 {
				outcome = Skipped
			}
		}
	}
	_, err = tx.Exec(ctx, in.releaseSQL.leave, in.consumer, t.head.id)
	if err = failpoint.After(failpoint.InboxReleaseLeft, err); err != nil {
		return Undecided, in.classify(ctx, fmt.Errorf("inbox: taking an event off its list: %w", err))
	}
	if ctx.Err() != nil {
		return Undecided, &failure{kind: canceled, err: ctx.Err()}
	}
	if f := in.commit(ctx, conn.Conn()); f != nil {
		return Undecided, f
	}
	failpoint.Hit(failpoint.InboxReleased)
	return outcome, nil
}

// begin locks, makes sure that the head is still the same, and records its id.
func (t *releasing) begin(ctx context.Context, tx pgx.Tx) (isNew bool, f *failure) {
	in := t.in
	s, err := stateOf(tx.QueryRow(ctx, in.sql.state, in.cfg.lockTimeout, in.cfg.statementTimeout, in.consumer, in.cfg.idleTimeout))
	if err != nil {
		return false, in.classify(ctx, fmt.Errorf("inbox: reading the state: %w", err))
	}
	now, err := in.lockHead(ctx, tx, t.what)
	err = failpoint.After(failpoint.InboxReleaseLocked, err)
	switch {
	case err != nil:
		return false, in.classify(ctx, fmt.Errorf("inbox: locking a released event: %w", err))
	case now == nil || now.id != t.head.id:
		return false, &failure{kind: conflict, err: errors.New("inbox: another process releases the same key")}
	}
	sql := in.sql.insertDay
	if !s.Released(t.event.ID) {
		sql = in.sql.insertAny
	}
	tag, err := tx.Exec(ctx, sql, in.consumer, uuidArray([]uuid.UUID{t.event.ID}))
	if pgerr.Is(err, pgerr.CheckViolation) {
		return false, &failure{kind: dayMissing, err: err}
	}
	if err = failpoint.After(failpoint.InboxReleaseInserted, err); err != nil {
		return false, in.classify(ctx, fmt.Errorf("inbox: recording a released id: %w", err))
	}
	return tag.RowsAffected() == 1, nil
}
