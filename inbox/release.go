package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

// releaseBatch is how many keys, and how many events alone, one look finds.
const releaseBatch = 100

// releaseEvents and releaseBytes bound the events of a key that run in one transaction, for which a transaction waits
// that lists another event of the key.
const (
	releaseEvents = 100
	releaseBytes  = 16 << 20
)

// released is what an operator released: the list of a key, or an event alone.
type released struct {
	id    int64  // of the event alone
	hash  []byte // of the key
	topic string

	// As it was found: the event that comes next, how often its run was counted, and whether its row says that it waits
	// for its next run.
	seen   int64
	counts int
	noted  bool

	last  int64 // the last event of the list that is decided
	alone int64 // up to this one they run one at a time
}

// uncounted reports whether no process has counted the head since it was found; one that has, runs it. Otherwise
// processes that wait for the same lock would count it one after the other, and it would look like a killer.
func (r *released) uncounted(head *record) bool {
	counts := 0
	if head.id == r.seen {
		counts = max(r.counts, 0)
	}
	return head.attempts <= counts
}

// release runs what operators have released since the last look.
func (in *Inbox) release(ctx context.Context) error {
	if !in.releasing.TryLock() {
		return nil // another Run of this process does
	}
	defer in.releasing.Unlock()
	if err := in.Prepare(ctx); err != nil {
		return err
	}
	rows, err := in.db.Query(ctx, in.q(sqlReleasing), in.consumer, releaseBatch,
		in.releasable())
	if err != nil {
		return fmt.Errorf("inbox: looking for released events: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r released, err error) {
		err = row.Scan(&r.id, &r.hash, &r.topic, &r.seen, &r.counts, &r.noted)
		return r, err
	})
	if err != nil {
		return fmt.Errorf("inbox: looking for released events: %w", err)
	}
	for _, r := range list {
		h := in.releaser(r.topic)
		if h == nil || !h.waits.due(&r) {
			continue // another process has its effect, or none yet; or it is put off
		}
		h.releaseList(ctx, r)
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// releaseList runs a list to its end, or the event alone, and logs once how many events of a key are decided.
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

// releaseNext runs the next events of a list, or the event alone, and returns how many of them are decided. An error
// leaves everything as it was, still to be released.
func (h *handler) releaseNext(ctx context.Context, r *released) (decided int, err error) {
	if free, err := h.isFree(ctx, r); err != nil || !free {
		return 0, err
	}
	if r.hash == nil || r.last < r.alone {
		return h.releaseOne(ctx, r)
	}
	ids, waiting, err := h.planRelease(ctx, r)
	if err != nil || waiting == 0 {
		return 0, err
	}
	if len(ids) == 0 {
		return h.releaseOne(ctx, r)
	}
	f := h.releaseTogether(ctx, r, ids)
	switch {
	case f == nil:
		return len(ids), nil
	case f.kind != failed && f.kind != dayMissing:
		return 0, f.err
	}
	h.log.Warn("inbox: released events failed together, and run one at a time",
		"topic", r.topic, "events", len(ids), "error", f.err)
	r.alone = ids[len(ids)-1]
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
	t := h.releasing(r, ids)
	if f := t.settle(ctx); f != nil {
		return f
	}
	h.waits.forget(r)
	r.last = ids[len(ids)-1]
	for i := range t.events {
		h.tellReleased(t.events[i], t.out[i], nil)
	}
	return nil
}

// releaseOne runs the next event of a list, or the event alone. Its run is counted, and so alone in its process: a
// released event may kill it as well.
func (h *handler) releaseOne(ctx context.Context, r *released) (decided int, err error) {
	in := h.Inbox
	leave, err := in.gate.enter(ctx, true)
	if err != nil {
		return 0, err
	}
	defer leave()
	if free, err := in.isFree(ctx, r); err != nil || !free {
		return 0, err // another process was quicker; do not keep the gate while it runs
	}
	head, f := in.countRelease(ctx, r, h.countLeft)
	switch {
	case f != nil:
		if head != nil && f.unknown() {
			h.uncountRelease(ctx, head, false) // a lost answer does not say whether it counts
		}
		return 0, f.err
	case head == nil:
		return 0, nil
	}
	h.countLeft = 0
	e, err := head.event()
	if err != nil {
		return 0, in.failAgain(ctx, r, head, Terminal(CodeMalformed, err), 0)
	}
	parkAgain := func(cause error, runs int) error {
		h.tellReleased(e, Parked, cause)
		return in.failAgain(ctx, r, head, cause, runs)
	}
	switch {
	case r.hash != nil && head.code == CodeMaybePublished:
		// A person must look at it first: only the events before it were released.
		return 0, parkAgain(errMaybe, 0)
	case head.attempts >= in.cfg.CrashAttempts: // before this count
		return 0, parkAgain(errKilled, 0)
	}
	t := h.releasing(r, []int64{head.id})
	f = t.settle(ctx)
	if f != nil && f.kind == lost && h.waits.lost(r, h.cfg.Backoff) > h.cfg.MaxAttempts {
		in.answers(ctx, f)
	}
	end := releaseEnd(f, func() bool { return h.waitedOut(r) })
	if end == releaseLater {
		// This process has outlived the run: the count goes back.
		waits := f.kind == failed || f.kind == lost
		if h.uncountRelease(ctx, head, waits) && waits {
			h.waits.noted(r)
		}
		return 0, f.err
	}
	h.waits.forget(r)
	if end == releaseFailed {
		return 0, parkAgain(f.err, 1)
	}
	h.tellReleased(e, t.out[0], nil)
	if r.hash == nil {
		h.log.Info("inbox: a released event is decided", "id", e.ID, "topic", e.Topic, "outcome", t.out[0])
	}
	r.last = head.id
	return 1, nil
}

// releaseTurn is what follows the run of a released event.
type releaseTurn uint8

const (
	releaseDone   releaseTurn = iota // it is decided
	releaseLater                     // it is as it was: another look runs it again
	releaseFailed                    // it is parked again
)

// releaseEnd decides what follows a run. waitedOut is asked when the effect answered Retryable.
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

// waitedOut puts a release off whose effect answered Retryable, and reports whether that has been so for too long.
func (h *handler) waitedOut(r *released) bool {
	since := h.waits.retryable(r, h.cfg.Backoff)
	return h.cfg.MaxRetryFor >= 0 && time.Since(since) >= h.cfg.MaxRetryFor
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
