package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/outcome"
)

// chanceStale is how often in a row the base of a plan may have changed by chance. Each time, another transaction
// has decided events of the partition.
const chanceStale = 10

// after decides what follows a transaction that was not committed, or may not have been.
func (b *batch) after(ctx context.Context, f *failure) error {
	switch f.kind {
	case canceled:
		return ctx.Err()
	case databaseChanged:
		return f.err
	case fatal:
		return b.haltHere(ctx, f.err)
	case stale:
		if b.retries++; f.err == nil || b.retries < chanceStale {
			return nil // what was read again decides
		}
		f.kind, f.err = rejected, fmt.Errorf("%w %d times in a row: does a trigger BEFORE INSERT take rows "+
			"of inbox_watermark away?", f.err, b.retries)
	case skipping:
		b.skipped(f)
		return nil
	case apart:
		if !b.in.apart.Swap(true) {
			b.in.log.Warn("inbox: an effect changes settings of its transaction (SET, set_config, a temporary table): "+
				"each event has a transaction of its own from now on", "topic", b.name.topic)
		}
		return nil
	case undecidable, bounded:
		if b.upTo(f.index) {
			return nil // the events before it go first
		}
		if f.kind == undecidable {
			return b.undecidable(ctx)
		}
		return b.haltHere(ctx, f.err)
	case unsure:
		if !b.upTo(f.index) {
			b.spent(0)
			b.doom = f.err
		}
		return nil
	case lost, commitUnknown:
		if b.losses++; b.losses > 1 && b.in.answers(ctx, f) {
			return b.failed(ctx, f)
		}
	case contended:
		// A smaller transaction conflicts with fewer others. The first conflict may be chance. Parts meet each other
		// all the time, and halving one after the other costs each a deadlock_timeout a step.
		if b.part {
			b.assignment.narrow(min(2, b.limit-b.pos))
		} else if b.retries > 0 {
			b.assignment.narrow(b.limit - b.pos)
		}
		if b.retries >= chanceConflicts && b.limit == b.pos+1 {
			f.kind, f.err = failed, losing(f.err)
			return b.failed(ctx, f)
		}
	case failed:
		if !b.undeployed(f) {
			return b.failed(ctx, f)
		}
		if f.kind == failed {
			return nil // the events before it go first
		}
	}
	return b.again(ctx, f)
}

// skipped excludes the effects of skipped events from the next run, or puts every effect under a savepoint.
func (b *batch) skipped(f *failure) {
	if len(f.skips) == 0 {
		b.careful = true
	}
	for _, i := range f.skips {
		if b.skip == nil {
			b.skip = map[uuid.UUID]bool{}
		}
		b.skip[b.events[b.pos+i].ID] = true
	}
	b.retried("skip", 1, 0, f.err)
}

// undecidable reads the state again before an undecidable event halts the partition: the plan was made from the state
// of an earlier transaction.
func (b *batch) undecidable(ctx context.Context) error {
	if err := b.in.refresh(ctx); err != nil {
		return b.again(ctx, b.in.classify(ctx, err))
	}
	b.assignment.setWatermarks(nil)
	if f := b.in.dedup.ready(ctx, b.name, b.assignment); f != nil {
		return b.again(ctx, f)
	}
	if _, f := b.in.dedup.plan(b.events[b.pos:b.pos+1], b.assignment, false); f != nil {
		return b.haltHere(ctx, f.err)
	}
	return nil
}

// chanceConflicts is how many conflicts in a row may be chance.
const chanceConflicts = 5

// errLosing is why an event waits whose effect finds a conflict each time.
var errLosing = errors.New("the effect, alone, keeps losing against other transactions")

// losing is the error of an effect that keeps losing although no other event is in its transaction. Whatever it waits
// for may end, like the outage of another system: so it waits as long, and no longer.
func losing(err error) error { return outcome.Retryable(fmt.Errorf("%w: %w", errLosing, err)) }

// serves reports whether the database answers another session right now.
func (in *Inbox) serves(ctx context.Context) bool {
	// By a write: a disk may be full, or the server a standby.
	_, err := in.db.Exec(ctx, sqlBarrier)
	return err == nil
}

// servesOthers reports whether the database serves others, and has answered a statement with the code of an outage.
func (in *Inbox) servesOthers(ctx context.Context, err error) bool {
	return pgerr.Answered(err) && in.serves(ctx)
}

// answers reports whether the database answers right after a session, or a statement, failed in an effect or at its
// COMMIT, as a deferred trigger may have it each time; a COMMIT that has happened is found by its ids. If it does,
// answers makes f a failure of that effect. Callers ask from the second time on, since a server or a pooler may have
// restarted once.
func (in *Inbox) answers(ctx context.Context, f *failure) bool {
	if !in.serves(ctx) {
		return false
	}
	// The new error drops the class that the effect gave.
	f.kind, f.err = failed, errors.New("the effect, or its COMMIT, lost its session or a statement again, while the "+
		"database answers others: "+f.err.Error())
	return true
}

// failed handles the failure of the effect of the event at f.index, or of any event that ran.
func (b *batch) failed(ctx context.Context, f *failure) error {
	cfg := &b.in.cfg
	if f.index < b.pos && errors.Is(f.err, errOverdue) {
		b.assignment.narrow(b.limit - b.pos) // the next transaction of this size would be late, too
	}
	c, reason := classOf(f.err)
	waitedOut := cfg.MaxRetryFor >= 0 && !b.retryableSince.IsZero() && time.Since(b.retryableSince) >= cfg.MaxRetryFor
	turn := b.walk.failed(f.index, c, cfg.MaxAttempts, waitedOut)
	if turn == turnSplit || turn == turnAhead {
		b.retried("split", 1, 0, f.err)
	}
	if turn == turnSplit {
		return nil
	}
	b.doom = f.err
	if b.runs == 1 || b.pace == nil {
		b.retryableSince = time.Time{}
		b.pace = pauses(cfg.Backoff, 2*time.Minute, 2.3)
	}
	if c == classRetryable && b.retryableSince.IsZero() {
		b.retryableSince = time.Now()
	}
	if turn != turnAgain {
		return nil
	}
	wait := b.pace.NextBackOff()
	if errors.Is(f.err, errLosing) {
		wait = min(wait, longestConflict)
	}
	e := &b.events[b.suspect]
	b.in.log.Warn("inbox: an effect failed and runs again",
		append(failureAttrs(e, f.err), "reason", reason, "attempt", b.runs, "wait", wait)...)
	b.retried(reason, b.runs, wait, f.err)
	return b.pause(ctx, wait,
		fmt.Errorf("event %s at offset %d, attempt %d: %w", e.ID, e.Position.Offset, b.runs, f.err))
}

// classOf returns the class of an effect's error, and its name in metrics.
func classOf(err error) (c class, reason string) {
	switch of, _ := outcome.Of(err); of {
	case outcome.ClassTerminal:
		return classTerminal, "terminal"
	case outcome.ClassRetryable:
		return classRetryable, "retryable"
	case outcome.ClassUnknown:
		return classRetryable, "unknown"
	}
	return classNone, "failed"
}
