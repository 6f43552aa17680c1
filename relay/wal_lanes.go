package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

// assignPolled gives lanes that have no source yet to the pumps. Where the WAL was their source, and nobody reads it, a
// new numbering begins.
func (r *Relay) assignPolled(ctx context.Context, s *session) error {
	var set laneKeys
	if set.lanes, set.fences = r.lanes.Unassigned(); len(set.lanes) == 0 {
		return nil
	}
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Lock), set.lanes, set.fences, r.owner)
		b.Queue(r.sql(sql.Abandon), set.lanes, set.fences, r.owner).Query(wal.LogRaised(r.log))
	}))
	if err != nil {
		r.doubtUnknown(set, err)
		return fmt.Errorf("relay: giving lanes to the pumps: %w", err)
	}
	r.lanes.Assign(set.lanes, lanes.Pumps)
	r.kickPumps()
	return nil
}

// doubtUnknown puts lanes in doubt when it is not known whether a transaction has changed, or will change, where they
// are published from: once their fences are raised it cannot any more (P3.7).
func (r *Relay) doubtUnknown(set laneKeys, err error) {
	if !pg.CommitUnknown(err) {
		return
	}
	for i, lane := range set.lanes {
		r.lanes.Doubt(lane, set.fences[i])
	}
	r.nudge()
}
