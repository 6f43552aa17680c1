package redisstore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Stuck implements store.Lister.
func (s *Store) Stuck(ctx context.Context, limit int) ([]store.Record, error) {
	if limit <= 0 {
		return nil, nil
	}
	pipe := s.client.Pipeline()
	var heads [buckets]*redis.StringSliceCmd
	for b := range uint32(buckets) {
		heads[b] = pipe.ZRange(ctx, s.list(b, "stuck"), 0, int64(limit-1))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("redisstore: listing stuck keys: %w", err)
	}
	var keys []idempotency.Key
	for _, head := range heads {
		for _, name := range head.Val() {
			k, err := keyOf(name)
			if err != nil {
				return nil, err
			}
			keys = append(keys, k)
		}
	}
	return store.StuckAmong(ctx, s, keys, limit)
}
