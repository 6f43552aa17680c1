package dynamostore

import (
	"context"
	"fmt"
	"slices"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Stuck implements store.Lister, by the index, which lags a little behind.
func (s *Store) Stuck(ctx context.Context, limit int) ([]store.Record, error) {
	var heads [buckets][]idempotency.Key
	err := eachBucket(ctx, func(ctx context.Context, b int64) error {
		var bad error
		err := s.query(ctx, b, never, never, func(i item) bool {
			k, err := keyOf(i.text("key"))
			if bad = err; err == nil && len(heads[b]) < limit {
				heads[b] = append(heads[b], k)
			}
			return err == nil && len(heads[b]) < limit
		})
		if err == nil {
			err = bad
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dynamostore: stuck: %w", err)
	}
	return store.StuckAmong(ctx, s, slices.Concat(heads[:]...), limit)
}
