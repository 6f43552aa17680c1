package relay

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// listen reads what somebody has changed in some transactions, once they show: a commit stands in the WAL before, and
// for long with a synchronous standby. Events that were committed after a topic was paused must not be sent, and those
// that were committed after a new numbering began must not go under the old one, which consumers may have left.
func (f *follower) listen(ctx context.Context, asked []uint32) error {
	var text, epoch string
	var paused []string
	same := false
	for pause := outage.NewBackOff(); ; _ = sleep.For(ctx, pause.NextBackOff()) {
		err := f.s.Send(ctx, pg.Transaction(f.r.cfg.Lease, pg.Async, func(b *pgx.Batch) {
			b.Queue(f.r.sql(sql.Snapshot)).QueryRow(func(row pgx.Row) error { return row.Scan(&text) })
			b.Queue(f.r.sql(sql.Paused)).QueryRow(func(row pgx.Row) error { return row.Scan(&paused) })
			b.Queue(f.r.sql(sql.Meta)).QueryRow(func(row pgx.Row) error { return row.Scan(&epoch, &same) })
		}))
		if err != nil {
			return fmt.Errorf("relay: reading what an operator has changed: %w", err)
		}
		snap, err := parseSnapshot(text)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(asked, func(xid uint32) bool { return !snap.shows(xid) }) {
			break
		}
	}
	if !same {
		return errLanesChanged
	}
	f.epoch = epoch
	f.r.pauses(paused)
	return nil
}
