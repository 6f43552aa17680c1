package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// claimTimeout bounds the retries of a claim, for which a caller waits.
const claimTimeout = 2 * time.Second

// claim claims the key. It sends a claim whose reply was lost again, with the same token. The lease began at since or
// later.
func (g *Guard) claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (c store.ClaimResult,
	since time.Time, err error,
) {
	err = retry(ctx, claimTimeout, func() error {
		since = time.Now()
		c, err = g.store.Claim(ctx, r, opt)
		return err
	})
	return c, since, err
}

// undoClaim releases a key that a failed claim may have won: otherwise a caller that left early would leave the key in
// progress for a lease, and unknown after it. It tries once, because the caller waits. It returns the caller's error.
func (g *Guard) undoClaim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions, cause error) error {
	if definite(cause) {
		return fmt.Errorf("idempotency: claim the key (nothing was run): %w", cause)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	takenOver := opt.Rerun
	opt.Rerun = false // do not take the key over now
	c, err := g.store.Claim(ctx, r, opt)
	switch {
	case err != nil || !c.Won:
	case takenOver, len(c.Record.Progress.Steps) > 0:
		// The last request of the earlier owner may still arrive.
		err = g.store.MarkUnknown(ctx, c.Lease, "a claim was given up", g.cfg.RecoverAfter)
	default:
		err = g.store.Release(ctx, c.Lease)
	}
	if err != nil {
		g.log.Warn("a key may be claimed without a run of its work: it is in progress until recovery processes it",
			"operation", r.Key.Operation, "error", err)
	}
	return outcome.Retryable(fmt.Errorf("idempotency: claim the key (nothing was run): %w", cause))
}

// retry repeats a call of the store while its outcome is unknown, until the timeout or the end of ctx.
func retry(ctx context.Context, timeout time.Duration, call func() error) error {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(time.Second),
		backoff.WithMaxElapsedTime(timeout))
	var lastErr error
	return backoff.Retry(func() error {
		if lastErr != nil && ctx.Err() != nil {
			return backoff.Permanent(lastErr) // backoff may call again if its pause ends together with ctx
		}
		if lastErr = call(); lastErr != nil && definite(lastErr) {
			return backoff.Permanent(lastErr)
		}
		return lastErr
	}, backoff.WithContext(b, ctx))
}

// definite reports whether an error is an answer of the store, such as a marked one, and not an outage.
func definite(err error) bool {
	if class, _ := outcome.Of(err); class != outcome.Unclassified {
		return true
	}
	for _, answer := range []error{
		idempotency.ErrInvalidKey, idempotency.ErrMismatch, idempotency.ErrInProgress,
		idempotency.ErrUnknown, idempotency.ErrExpired, store.ErrLeaseLost,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// await waits until the key may be free, or until deadline; the caller then claims again. It only reads. An error is
// the context's; errors of the store are left to the claim.
func (g *Guard) await(ctx context.Context, r idempotency.Request, rec store.Record, deadline time.Time) error {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(10*time.Millisecond),
		backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMaxElapsedTime(0))
	found := true
	for {
		left := time.Until(deadline)
		if !found || rec.State != idempotency.InProgress || !r.Matches(rec.Fingerprint) || rec.LeaseLeft <= 0 ||
			left <= 0 {
			return nil
		}
		timer := time.NewTimer(min(b.NextBackOff(), left, rec.LeaseLeft))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		if newRec, newFound, err := g.store.Get(ctx, r.Key); err == nil {
			rec, found = newRec, newFound
		}
	}
}
