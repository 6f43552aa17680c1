package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/sql"
)

// WALStatus is the state of the WAL feed, as part of a Status.
type WALStatus struct {
	Slot   string `json:"slot"`
	Exists bool   `json:"exists"` // false: relays publish from the table, and make the slot when they can
	Active bool   `json:"active"` // it is being read
	Reader string `json:"reader"` // the relay that reads, or read last; empty if it is gone
	// Lanes is how many lanes have the WAL as their feed, of [Lanes]; the others are published from the table.
	Lanes int `json:"lanes"`
	// LagBytes is how much WAL is behind the confirmed position, and LagTime how long ago that was: with nothing to
	// confirm it stays slightly above Config.WALHeartbeat at most. HeldBytes is how much WAL the server keeps for the
	// slot.
	LagBytes  int64         `json:"lag_bytes"`
	LagTime   time.Duration `json:"lag_time"`
	HeldBytes int64         `json:"held_bytes"`
	// State is Postgres' wal_status: reserved, extended, unreserved (the slot is about to be lost) or lost. SafeBytes
	// is its safe_wal_size: how much may be written before the slot may be lost, 0 if it is lost; nil: unlimited.
	State     string `json:"state"`
	SafeBytes *int64 `json:"safe_bytes"`
}

// WALStatus reads the state of the WAL feed; nil when no relay has read the WAL for this outbox.
func (o *Outbox) WALStatus(ctx context.Context) (*WALStatus, error) {
	var st WALStatus
	var lag float64
	err := o.db.QueryRow(ctx, o.schema.Expand(sql.StatusWAL)).Scan(&st.Slot, &lag, &st.Reader, &st.Lanes, &st.Exists,
		&st.Active, &st.State, &st.SafeBytes, &st.LagBytes, &st.HeldBytes)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("relay: reading the state of the replication slot: %w", err)
	}
	st.LagTime = sql.Seconds(lag)
	return &st, nil
}

// WALUnavailable returns the reason why a relay with [FeedWAL] currently publishes from the table; nil if it reads
// the WAL, stands by, or has another feed.
func (r *Relay) WALUnavailable() error {
	if e := r.now.Load(); e != nil {
		_, err := e.wal.Unavailable()
		return err
	}
	return nil
}
