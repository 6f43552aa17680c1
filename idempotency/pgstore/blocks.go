package pgstore

import (
	"context"
	"fmt"
)

// NextBlock implements keys.Blocks, for keys.NewHiLo. It reserves the next size numbers of a name, which no other
// caller gets, and returns the first. The numbers of a name begin with 1; its callers may use different sizes.
//
// Each reservation commits a write to the name's row, so concurrent ones wait for each other: choose a size that lasts
// for seconds. A lost reply loses its block. After a restore from a backup, raise idempotency_block.next by hand before
// the database serves: it may give numbers again otherwise.
func (s *Store) NextBlock(ctx context.Context, name string, size int64) (int64, error) {
	if name == "" || size < 1 {
		return 0, fmt.Errorf("pgstore: a block of %d numbers under the name %q: want a name and 1 or more", size, name)
	}
	var first int64
	if err := s.db.QueryRow(ctx, s.sql.reserveBlock, name, size).Scan(&first); err != nil {
		return 0, fmt.Errorf("pgstore: reserving a block of numbers: %w", err)
	}
	return first, nil
}
