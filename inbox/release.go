package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

// releaseBatch is how many keys, and how many single events, one call of release reads.
const releaseBatch = 100

// releaseEvents and releaseBytes limit the events of a key that run in one transaction. Transactions that park another
// event of the key wait for it.
const (
	releaseEvents = 100
	releaseBytes  = 16 << 20
)

// released is a release by an operator: the list of a key, or a single event.
type released struct {
	id    int64  // of the single event
	hash  []byte // of the key
	topic string

	// The row as release read it: the next event, the number of its counted runs, and whether it waits for its next
	// run.
	seen   int64
	counts int
	noted  bool

	last  int64 // the last decided event of the list
	alone int64 // events up to this one run one at a time
}

// uncounted reports whether no other process has counted the head since release read it; a process that counted it runs
// it. Without this check, processes that wait for the same lock would count the head one after the other, and it would
// look like an event that kills processes.
func (r *released) uncounted(head *record) bool {
	counts := 0
	if head.id == r.seen {
		counts = max(r.counts, 0)
	}
	return head.attempts <= counts
}

// release runs the events that operators released since the last call.
func (in *Inbox) release(ctx context.Context) error {
	if !in.releasing.TryLock() {
		return nil // another Run of this process is releasing
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
		err = row.Scan(&r.id, fromHex{&r.hash}, &r.topic, &r.seen, &r.counts, &r.noted)
		return r, err
	})
	if err != nil {
		return fmt.Errorf("inbox: looking for released events: %w", err)
	}
	for _, r := range list {
		h := in.releaser(r.topic)
		if h == nil || !h.waits.due(&r) {
			continue // no effect for it in this process, or its next run is not due
		}
		h.releaseList(ctx, r)
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// releaseList runs a whole list, or a single event. It logs once how many events of a key are decided.
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

// releaseNext runs the next events of a list, or a single event, and returns how many are decided. After an error
// nothing has changed, and the events are still to be released.
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
	case f.kind != failed && f.kind != dayMissing && f.kind != apart:
		return 0, f.err
	}
	h.log.Warn("inbox: released events failed together, and run one at a time",
		"topic", r.topic, "events", len(ids), "error", f.err)
	r.alone = ids[len(ids)-1]
	return h.releaseOne(ctx, r)
}

// releaseTogether runs the next events of a list in one transaction, like a batch of a partition: not counted, and next
// to other runs.
func (h *handler) releaseTogether(ctx context.Context, r *released, ids []int64) *failure {
	leave, err := h.gate.begin(ctx, h.db, false)
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

// releaseOne runs the next event of a list, or a single event. The run is counted, and so alone in its process, because
// a released event may kill the process too.
func (h *handler) releaseOne(ctx context.Context, r *released) (decided int, err error) {
	in := h.Inbox
	leave, err := in.gate.begin(ctx, in.db, true)
	if err != nil {
		return 0, err
	}
	defer leave()
	if free, err := in.isFree(ctx, r); err != nil || !free {
		return 0, err // another process was faster; do not hold the gate during its run
	}
	head, f := in.countRelease(ctx, r, h.countLeft)
	switch {
	case f != nil:
		if head != nil && f.unknown() {
			h.uncountRelease(ctx, head, false) // after a lost answer the run may be counted
		}
		return 0, f.err
	case head == nil:
		return 0, nil
	}
	h.countLeft = 0
	e, err := head.event()
	if err != nil {
		return 0, in.failAgain(ctx, r, head, outcome.Terminal(CodeMalformed, err), 0)
	}
	parkAgain := func(cause error, runs int) error {
		h.tellReleased(e, Parked, cause)
		return in.failAgain(ctx, r, head, cause, runs)
	}
	switch {
	case r.hash != nil && head.code == CodeMaybePublished:
		// An operator must check it first: only the events before it were released.
		return 0, parkAgain(errMaybePublished, 0)
	case head.attempts >= in.cfg.CrashAttempts: // without this run
		return 0, parkAgain(errKilled, 0)
	}
	t := h.releasing(r, []int64{head.id})
	f = t.settle(ctx)
	if f != nil {
		switch {
		case (f.kind == lost || f.kind == commitUnknown) && h.waits.lost(r, h.cfg.Backoff) > h.cfg.MaxAttempts:
			in.answers(ctx, f)
		case f.kind == contended && h.waits.lost(r, h.cfg.Backoff) > chanceConflicts:
			f.kind, f.err = failed, losing(f.err)
		}
	}
	end := releaseEnd(f, func() bool { return h.waitedOut(r) })
	if end == releaseLater {
		// This process survived the run: take the count back.
		waits := f.kind == failed || f.kind == lost || f.kind == commitUnknown || f.kind == contended
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
	releaseDone   releaseTurn = iota // the event is decided
	releaseLater                     // nothing has changed: a later call runs it again
	releaseFailed                    // the event is parked again
)

// releaseEnd decides what follows a run. It calls waitedOut if the effect returned Retryable.
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

// waitedOut delays a release whose effect returned Retryable, and reports whether MaxRetryFor has passed.
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
