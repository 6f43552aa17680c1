package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

// Lister is the part of a Store for tools of operators; the stores of this module have it.
type Lister interface {
	// Stuck returns up to limit operations that recovery gave up, in no order.
	Stuck(ctx context.Context, limit int) ([]Record, error)
}

// StuckAmong returns the records of up to limit of the keys that are stuck, for a Lister whose index may lag. With an
// error it returns the records that it has read.
func StuckAmong(ctx context.Context, store Store, keys []idempotency.Key, limit int) ([]Record, error) {
	var out []Record
	for _, k := range keys {
		if len(out) >= limit {
			break
		}
		rec, found, err := store.Get(ctx, k)
		if err != nil {
			return out, err
		}
		if found && rec.Stuck {
			out = append(out, rec)
		}
	}
	return out, nil
}

// ErrNotStuck: the operation is not stuck, or no longer.
var ErrNotStuck = errors.New("the operation is not stuck")

// ClaimStuck claims an operation that recovery gave up, for a person, who asks the provider by the open step's key and
// then ends the operation:
//
//   - it happened: Store.Finish, with the result for its callers.
//   - it did not happen, and no request in flight can still do it: Store.Release.
//   - the provider can be asked again: Store.MarkUnknown without a delay, and recovery tries again.
//
// If the lease ends, the operation is recovery's again. An error matches ErrNotStuck, or is the store's.
func ClaimStuck(ctx context.Context, store Store, k idempotency.Key, lease time.Duration) (ClaimResult, error) {
	rec, found, err := store.Get(ctx, k)
	if err != nil {
		return ClaimResult{}, fmt.Errorf("read the operation: %w", err)
	}
	if !found || !rec.Stuck {
		return ClaimResult{}, fmt.Errorf("%w: its state is %q", ErrNotStuck, rec.State)
	}
	token := rand.Text()
	// An existing record keeps its input: only a new one has the token as input.
	c, err := store.Claim(ctx, idempotency.Request{Key: k, Fingerprint: rec.Fingerprint, Input: []byte(token)},
		ClaimOptions{Token: token, Lease: lease, Rerun: true})
	switch {
	case err != nil:
		return ClaimResult{}, fmt.Errorf("claim the operation: %w", err)
	case !c.Won:
		return ClaimResult{}, fmt.Errorf("%w any more: its state is %q", ErrNotStuck, c.Record.State)
	case string(c.Record.Input) == token:
		return ClaimResult{}, errors.Join(fmt.Errorf("%w any more: its key was released", ErrNotStuck),
			store.Release(ctx, c.Lease))
	case c.Record.Attempts == 0: // of another request, which may have had an effect: recovery must find out
		return ClaimResult{}, errors.Join(fmt.Errorf("%w any more: its key was released and used again", ErrNotStuck),
			store.MarkUnknown(ctx, c.Lease, c.Record.Reason, 0))
	}
	return c, nil
}
