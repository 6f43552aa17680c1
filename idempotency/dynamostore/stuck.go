package dynamostore

import (
	"context"
	"fmt"
	"slices"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Stuck implements store.Lister. Its index lags a little behind.
func (s *Store) Stuck(ctx context.Context, limit int) ([]store.Record, error) {
	var stuck [buckets][]idempotency.Key
	err := eachBucket(ctx, func(ctx context.Context, b int64) error {
		var keyErr error
		err := s.query(ctx, b, farFuture, farFuture, func(i item) bool {
			k, err := parseKey(i.text("key"))
			if keyErr = err; err == nil && len(stuck[b]) < limit {
				stuck[b] = append(stuck[b], k)
			}
			return err == nil && len(stuck[b]) < limit
		})
		if err == nil {
			err = keyErr
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dynamostore: stuck: %w", err)
	}
	return store.StuckAmong(ctx, s, slices.Concat(stuck[:]...), limit)
}
