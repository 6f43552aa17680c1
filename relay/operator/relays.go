package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Relays are those of an outbox, as their heartbeats and their lanes show them.
type Relays struct {
	// Cluster is the id of the Kafka cluster that they publish to, and refuse another than; empty: none is pinned yet.
	Cluster string        `json:"cluster"`
	List    []RelayStatus `json:"relays"`
}

// RelayStatus is a relay, or what nobody has.
type RelayStatus struct {
	Owner   *uuid.UUID `json:"owner"` // nil: the lanes are free
	Name    string     `json:"name"`  // empty when it is not known
	Lanes   []int16    `json:"lanes"`
	Overdue int64      `json:"overdue"` // lanes whose lease has run out
	Claimed int64      `json:"claimed"` // events between claim and settle
	// Oldest is the age of the oldest event of its lanes, in nanoseconds in JSON; 0 when they are empty.
	Oldest time.Duration `json:"oldest"`
	// Heard is how long ago its last heartbeat was; nil: it has left, or is gone for long. Alive: its lease runs.
	Heard *time.Duration `json:"heard"`
	Alive bool           `json:"alive"`
	// Well is for how long it has been there and has reached Kafka, as of that heartbeat. Under a second it has just
	// started, or does not reach it.
	Well time.Duration `json:"well"`
}

// ReadRelays reads the relays of an outbox, those without lanes included. An empty schema is the connection's
// search_path.
func ReadRelays(ctx context.Context, db *pgxpool.Pool, schema string) (r Relays, err error) {
	in, err := sql.For(schema)
	if err != nil {
		return r, fmt.Errorf("relay: %w", err)
	}
	if r.List, err = read(ctx, db, scanRelay, in.Expand(sql.StatusRelays)); err == nil {
		err = db.QueryRow(ctx, in.Expand(sql.Cluster)).Scan(&r.Cluster)
	}
	if err != nil {
		return Relays{}, fmt.Errorf("relay: reading the relays: %w", err)
	}
	return r, nil
}

func scanRelay(row pgx.CollectableRow) (r RelayStatus, err error) {
	var oldest, well float64
	var heard *float64
	err = row.Scan(&r.Owner, &r.Name, &r.Lanes, &r.Overdue, &r.Claimed, &oldest, &heard, &r.Alive, &well)
	r.Oldest, r.Well = sql.Seconds(oldest), sql.Seconds(max(well, 0))
	if heard != nil {
		ago := sql.Seconds(*heard)
		r.Heard = &ago
	}
	return r, err
}
