package store_test

import (
	"context"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// A person has asked the provider about an operation that recovery gave up.
func ExampleClaimStuck() {
	type said int
	const (
		happened said = iota
		didNotHappen
	)
	_ = func(ctx context.Context, s store.Store, key idempotency.Key, answer said, result idempotency.Result) error {
		c, err := store.ClaimStuck(ctx, s, key, 10*time.Minute)
		if err != nil {
			return err
		}
		switch answer {
		case happened:
			return s.Finish(ctx, c.Lease, result, c.Record.Keep) // its callers get the result
		case didNotHappen:
			return s.Release(ctx, c.Lease) // the key is free
		default:
			return s.MarkUnknown(ctx, c.Lease, "asked by hand", 0) // recovery tries again
		}
	}
}
