package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// Forget deletes a finished key in the caller's transaction, for operations whose key is deleted with the resource that
// it created. It returns whether it deleted the key; a key that is in progress or unknown stays. Afterwards the key is
// free, so a late retry creates the resource again: use Forget only where a retry after a deletion means that.
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
