package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// claimFor is how long a store that does not answer is asked again for a claim: a caller is waiting.
const claimFor = 2 * time.Second

// claim claims the key. A claim whose answer was lost is sent again with its token. The lease began at since, or later.
func (g *Guard) claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (c store.ClaimResult,
	since time.Time, err error,
) {
	err = retry(ctx, claimFor, func() error {
		since = time.Now()
		c, err = g.store.Claim(ctx, r, opt)
		return err
	})
	return c, since, err
}

// takeBack gives up a claim that may have been granted without an answer: else a caller that only left early would
// leave a key behind that is in progress for a lease, and unknown after it. One look, for the caller waits; if it
// fails, so it is. It returns what the caller is told.
func (g *Guard) takeBack(ctx context.Context, r idempotency.Request, opt store.ClaimOptions, cause error) error {
	if definite(cause) {
		return fmt.Errorf("idempotency: claiming the key (nothing was run): %w", cause)
	}
	taking, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimFor)
	defer cancel()
	takenOver := opt.Rerun
	opt.Rerun = false // its own token is all that it may find, or what it may go on with
	c, err := g.store.Claim(taking, r, opt)
	switch {
	case err != nil || !c.Won:
	case takenOver, len(c.Record.Progress.Steps) > 0:
		err = g.store.MarkUnknown(taking, c.Lease, "a claim was given up", 0)
	default:
		err = g.store.Release(taking, c.Lease)
	}
	if err != nil {
		g.log.Warn("a claim may be left behind: nothing was run, and its key is taken until recovery has seen to it",
			"operation", r.Key.Operation, "error", err)
	}
	return idempotency.Retryable(fmt.Errorf("idempotency: claiming the key (nothing was run): %w", cause))
}

// retry repeats a call of the store while its outcome is unknown, until the time is over or ctx ends.
func retry(ctx context.Context, most time.Duration, call func() error) error {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(time.Second),
		backoff.WithMaxElapsedTime(most))
	var last error
	return backoff.Retry(func() error {
		if last != nil && ctx.Err() != nil {
			return backoff.Permanent(last) // backoff goes on by chance when the pause and ctx are over at the same time
		}
		if last = call(); last != nil && definite(last) {
			return backoff.Permanent(last)
		}
		return last
	}, backoff.WithContext(b, ctx))
}

// definite tells an answer of the store from an outage. A store that marks its error has given one.
func definite(err error) bool {
	if class, _ := idempotency.Classify(err); class != idempotency.Unclassified {
		return true
	}
	for _, one := range []error{
		idempotency.ErrInvalidKey, idempotency.ErrMismatch, idempotency.ErrInProgress,
		idempotency.ErrUnknown, idempotency.ErrExpired, store.ErrLeaseLost,
	} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}

// await returns when the key may be free, or until is over: the caller claims again and sees. It only reads. An error
// is the context's; that of the store is left to the claim.
func (g *Guard) await(ctx context.Context, r idempotency.Request, rec store.Record, until time.Time) error {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(10*time.Millisecond),
		backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMaxElapsedTime(0))
	found := true
	for {
		left := time.Until(until)
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
		if now, there, err := g.store.Get(ctx, r.Key); err == nil {
			rec, found = now, there
		}
	}
}
