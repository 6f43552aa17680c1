package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
)

var _ idempotency.Lister = (*Store)(nil)

// Stuck implements idempotency.Lister.
func (s *Store) Stuck(ctx context.Context, limit int) ([]idempotency.Record, error) {
	rows, err := s.db.Query(ctx, s.sql.stuck, max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("pgstore: stuck: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k idempotency.Key, err error) {
		return k, row.Scan(&k.Tenant, &k.Operation, &k.Value)
	})
	if err != nil {
		return nil, fmt.Errorf("pgstore: stuck: %w", err)
	}
	var out []idempotency.Record
	for _, k := range keys {
		rec, found, err := s.Get(ctx, k)
		switch {
		case err != nil:
			return out, err
		case found && rec.Stuck: // not taken since
			out = append(out, rec)
		}
	}
	return out, nil
}
