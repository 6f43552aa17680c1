package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Waits reports whether an outbox has anything for a relay to do now, or for a person to see: events, also held and
// parked ones, scheduled ones that are due, and paused topics. highest is the id that was drawn last, or 0: while it
// stays, nothing was appended. It asks without joining, for whoever runs relays only where there is work. A lock that
// somebody holds on a table is an error.
func Waits(ctx context.Context, db interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}, schema string,
) (waits bool, highest int64, err error) {
	in, err := sql.For(schema)
	if err != nil {
		return false, 0, fmt.Errorf("relay: %w", err)
	}
	var b pgx.Batch
	b.Queue(sql.WaitsSettings)
	b.Queue(in.Expand(sql.Waits)).QueryRow(func(row pgx.Row) error { return row.Scan(&waits, &highest) })
	if err := db.SendBatch(ctx, &b).Close(); err != nil {
		return false, 0, fmt.Errorf("relay: looking whether anything waits in the outbox: %w", err)
	}
	return waits, highest, nil
}
