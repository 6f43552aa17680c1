package keeper

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

// assignPolled gives lanes that have no feed yet to the pumps. If their feed was the WAL, and no relay reads it, a
// new numbering begins.
func (k *Keeper) assignPolled(ctx context.Context, s *pg.Session) error {
	var set sql.Fenced
	if set.Lanes, set.Fences = k.Lanes.Unassigned(); len(set.Lanes) == 0 {
		return nil
	}
	err := s.Send(ctx, pg.Transaction(k.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(k.SQL(sql.Lock), set.Lanes, set.Fences, k.Owner)
		b.Queue(k.SQL(sql.Abandon), set.Lanes, set.Fences, k.Owner).Query(wal.LogRaised(k.Log))
	}))
	if err != nil {
		k.DoubtUnknown(&set, err)
		return fmt.Errorf("relay: giving lanes to the pumps: %w", err)
	}
	k.Lanes.Assign(set.Lanes, lanes.Pumps)
	k.Signals.Kick()
	return nil
}
