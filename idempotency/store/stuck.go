package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

// Lister is the part of a Store that people's tools use; the stores of this module have it.
type Lister interface {
	// Stuck returns operations that were given to a person, at most limit of them, in no order.
	Stuck(ctx context.Context, limit int) ([]Record, error)
}

// StuckAmong reads the keys that a store's index names, and returns those that are a person's now, at most limit of
// them: the second half of a Lister. With an error it returns what it has.
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
		if found && rec.Stuck { // not taken since
			out = append(out, rec)
		}
	}
	return out, nil
}

// ErrNotStuck: no person has to look at this operation, or another one does.
var ErrNotStuck = errors.New("the operation is not a person's")

// ClaimStuck gives a person an operation that recovery gave up, under a lease. The person asks the provider by the key
// of the step that is open, and then ends it:
//
//   - it happened: Store.Finish, with what its callers are to be told.
//   - it did not, and nothing on its way can make it happen: Store.Release. The key is free.
//   - the provider can be asked again now: Store.MarkUnknown without a delay. Recovery tries once more.
//
// A lease that ends makes it unknown again, and recovery's. An error matches ErrNotStuck, or is the store's.
func ClaimStuck(ctx context.Context, store Store, k idempotency.Key, lease time.Duration) (ClaimResult, error) {
	rec, found, err := store.Get(ctx, k)
	if err != nil {
		return ClaimResult{}, fmt.Errorf("looking at the operation: %w", err)
	}
	if !found || !rec.Stuck {
		return ClaimResult{}, fmt.Errorf("%w: it is %q", ErrNotStuck, rec.State)
	}
	token := rand.Text()
	// A record that is there keeps its input: only one that this claim makes has the token for one.
	c, err := store.Claim(ctx, idempotency.Request{Key: k, Fingerprint: rec.Fingerprint, Input: []byte(token)},
		ClaimOptions{Token: token, Lease: lease, Rerun: true})
	switch {
	case err != nil:
		return ClaimResult{}, fmt.Errorf("taking the operation: %w", err)
	case !c.Won:
		return ClaimResult{}, fmt.Errorf("%w any more: it is %q", ErrNotStuck, c.Record.State)
	case string(c.Record.Input) == token:
		return ClaimResult{}, errors.Join(fmt.Errorf("%w any more: its key was freed", ErrNotStuck),
			store.Release(ctx, c.Lease))
	case c.Record.Attempts == 0: // freed since, and somebody else's now, who may have done something: recovery's first
		return ClaimResult{}, errors.Join(fmt.Errorf("%w any more: its key was freed and used again", ErrNotStuck),
			store.MarkUnknown(ctx, c.Lease, c.Record.Reason, 0))
	}
	return c, nil
}
