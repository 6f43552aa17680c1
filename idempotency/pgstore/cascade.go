package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// Forget removes a key that is done in the caller's transaction, with which it stands or falls: for operations whose
// key goes with what it made, when that is deleted. It returns whether the key was there; one that is in progress or
// unknown stays. Afterwards the key is new, so a late retry makes the resource again: choose it only where that is what
// a retry after a deletion means.
func (s *Store) Forget(ctx context.Context, tx pgx.Tx, k idempotency.Key) (bool, error) {
	prefix, err := pgschema.Prefix(s.cfg.Schema)
	if err != nil {
		return false, fmt.Errorf("pgstore: %w", err)
	}
	tag, err := tx.Exec(ctx, pgschema.Expand(sqlForgetKey, prefix), k.Tenant, k.Operation, k.Value)
	if err != nil {
		return false, fmt.Errorf("pgstore: forgetting a key: %w", err)
	}
	return tag.RowsAffected() > 0, nil
}
