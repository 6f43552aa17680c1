package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

var _ store.Lister = (*Store)(nil)

// Stuck implements store.Lister.
func (s *Store) Stuck(ctx context.Context, limit int) ([]store.Record, error) {
	rows, err := s.db.Query(ctx, s.sql.stuck, max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("pgstore: listing stuck keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[idempotency.Key])
	if err != nil {
		return nil, fmt.Errorf("pgstore: listing stuck keys: %w", err)
	}
	return store.StuckAmong(ctx, s, keys, limit)
}
