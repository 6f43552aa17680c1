package wal

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

// changes is what operators have changed that the relay looks at.
type changes struct {
	Epoch  string // of the numbering
	Same   bool   // the numbering is of this server and timeline
	Paused []string
}

// readChanges reads what somebody has changed in some transactions, once they show: a commit stands in the WAL before,
// and for long with a synchronous standby. Events that were committed after a topic was paused must not be sent, and
// those that were committed after a new numbering began must not go under the old one, which consumers may have left.
func readChanges(ctx context.Context, s *pg.Session, schema *sql.Schema, xids []uint32) (*changes, error) {
	for pause := outage.NewBackOff(); ; _ = sleep.For(ctx, pause.NextBackOff()) {
		var c changes
		var text string
		err := s.Transaction(ctx, pg.Async, func(b *pgx.Batch) {
			b.Queue(schema.Expand(sql.Snapshot)).QueryRow(func(row pgx.Row) error { return row.Scan(&text) })
			b.Queue(schema.Expand(sql.Paused)).QueryRow(func(row pgx.Row) error { return row.Scan(&c.Paused) })
			b.Queue(schema.Expand(sql.Meta)).QueryRow(func(row pgx.Row) error { return row.Scan(&c.Epoch, &c.Same) })
		})
		if err != nil {
			return nil, fmt.Errorf("relay: reading what an operator has changed: %w", err)
		}
		snap, err := parseSnapshot(text)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(xids, func(xid uint32) bool { return !snap.Shows(xid) }) {
			return &c, nil
		}
	}
}
