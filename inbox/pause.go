package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/effectonce/effectonce/internal/sleep"
)

// again waits so that the same transaction can run again. It uses up no attempt.
func (b *batch) again(ctx context.Context, f *failure) error {
	if f.kind == canceled {
		return ctx.Err()
	}
	b.retries++
	reason := "conflict"
	served := b.served
	b.served = (f.kind == away || f.kind == lost) && b.in.servesOthers(ctx, f.err)
	// The connections to a standby are dropped now: if that is all, the next run succeeds.
	if f.kind == away && b.served && (served || !ofStandby(f.err)) {
		f.kind, f.err = rejected, advise(f.err)
	}
	switch f.kind {
	case away:
		if reason = "away"; !b.served {
			b.in.outage.down(f.err)
		}
	case lost:
		if reason = "failed"; !b.served {
			reason = "away"
			b.in.outage.down(f.err)
		}
	case commitUnknown:
		reason = "commit unknown"
		b.in.outage.down(f.err)
	case rejected:
		reason = "rejected"
		if f := b.rejected(ctx, f.err); f != nil {
			return f.err
		}
	case dayMissing:
		reason = "day missing"
		err := b.in.exclusive(ctx, func() error { _, err := b.in.keeper.Make(ctx, true); return err })
		switch {
		case err == nil && b.retries == 1:
			b.retried(reason, b.retries, 0, f.err)
			return nil
		case err == nil: // the day is there: it is another constraint, or a trigger
			if f := b.rejected(ctx, f.err); f != nil {
				return f.err
			}
			return b.wait(ctx, "rejected", f)
		}
		b.in.log.Error("inbox: a day of inbox_message is missing and was not made; its events wait", "error",
			errors.Join(f.err, err))
	}
	if (f.kind == conflict || f.kind == contended) && b.retries%10 == 0 {
		b.in.log.Warn("inbox: a transaction keeps losing against others", "times", b.retries, "error", f.err)
		b.noteTrying(ctx, f.err)
	}
	return b.wait(ctx, reason, f)
}

// longestConflict bounds the waits after conflicts, which may end at any moment.
const longestConflict = 5 * time.Second

func (b *batch) wait(ctx context.Context, reason string, f *failure) error {
	if b.retryPace == nil {
		b.retryPace = pauses(20*time.Millisecond, longestConflict, 2)
	}
	wait := b.retryPace.NextBackOff()
	b.retried(reason, b.retries, wait, f.err)
	return sleep.Idle(ctx, wait)
}

// askEvery is how often a long pause checks whether an operator has ended it.
const askEvery = 2 * time.Second

// pause waits before the suspect runs again. It records a long pause in inbox_progress, where an operator sees its
// cause and can end it.
func (b *batch) pause(ctx context.Context, wait time.Duration, cause error) error {
	if wait <= askEvery {
		return sleep.Idle(ctx, wait)
	}
	until := time.Now().Add(wait)
	now, _ := b.assignment.wait(b)
	noted := b.noteTrying(ctx, cause)
	for {
		left := time.Until(until)
		if err := sleep.Idle(ctx, min(left, askEvery)); err != nil || left <= askEvery {
			return err
		}
		select {
		case <-now:
			return nil
		default:
		}
		switch {
		case !noted:
			noted = b.noteTrying(ctx, cause) // what was recorded waits no longer, perhaps
		case b.tryNow(ctx):
			b.in.log.Info("inbox: an operator has effects run again at once", "topic", b.name.topic, "partition",
				b.name.id)
			b.assignment.runAll()
			return nil
		}
	}
}

// noteTrying records why a partition waits, and reports whether it succeeded. Of several parts only the one that has
// waited for longest is recorded.
func (b *batch) noteTrying(ctx context.Context, cause error) bool {
	if _, recorded := b.assignment.wait(b); !recorded {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, graceCommit)
	defer cancel()
	_, err := b.in.db.Exec(ctx, b.in.q(sqlTrying), b.in.consumer, b.name.topic, b.name.id,
		storable(cause.Error(), 2000))
	if err == nil {
		b.assignment.setPauseNoted()
	}
	return err == nil
}

// noteTried ends the wait of an event that is decided. The record ends with it, or becomes that of another part, whose
// pause sees to that; the record of a whole batch ended with the progress.
func (b *batch) noteTried(ctx context.Context) {
	if b.assignment.waited(b) && b.part {
		_ = b.in.execLate(ctx, sqlTried, b.in.consumer, b.name.topic, b.name.id) // or when the progress moves
	}
}

// tryNow reports whether an operator has ended the pause. If the database does not answer, the pause continues.
func (b *batch) tryNow(ctx context.Context) (now bool) {
	ctx, cancel := context.WithTimeout(ctx, graceCommit)
	defer cancel()
	err := b.in.db.QueryRow(ctx, b.in.q(sqlTryNow), b.in.consumer, b.name.topic, b.name.id).Scan(&now)
	return err == nil && now
}
