package pgstore

import (
	"context"
	"fmt"
)

// NextBlock implements keys.Blocks, for keys.NewHiLo: it reserves size numbers of a name, of which nobody else gets
// any, and returns the first. Processes that share a name share its numbers, which begin with 1; they may use different
// sizes.
//
// It is one statement on one row, so reservations of a name queue for the moment of a commit: take a size that lasts
// for seconds. A reply that is lost loses its block. A database that was restored from a backup may give numbers again:
// raise idempotency_block.next by hand before it serves.
func (s *Store) NextBlock(ctx context.Context, name string, size int64) (int64, error) {
	if name == "" || size < 1 {
		return 0, fmt.Errorf("pgstore: a block of %d numbers under the name %q: want a name and 1 or more", size, name)
	}
	var first int64
	if err := s.db.QueryRow(ctx, s.sql.block, name, size).Scan(&first); err != nil {
		return 0, fmt.Errorf("pgstore: reserving a block of numbers: %w", err)
	}
	return first, nil
}
