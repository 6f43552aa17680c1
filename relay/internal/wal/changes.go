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

// changes are operators' changes that the relay must apply.
type changes struct {
	Epoch  string // of the numbering
	Same   bool   // the numbering is of this server and timeline
	Paused []string
}

// readChanges reads the changes of some transactions once they are visible: a commit is in the WAL before that, and
// long before with a synchronous standby. Events that were committed after a pause of their topic must not be sent, and
// events that were committed after a new numbering began must not be sent under the old one, which consumers may have
// left.
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
