package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Relays are the relays of an outbox, according to their heartbeats and lanes.
type Relays struct {
	// Cluster is the id of the Kafka cluster that they publish to, and that is the only one they accept; empty: none is
	// pinned yet.
	Cluster string        `json:"cluster"`
	List    []RelayStatus `json:"relays"`
}

// RelayStatus is a relay, or the free lanes.
type RelayStatus struct {
	Owner   *uuid.UUID `json:"owner"` // nil: the lanes are free
	Name    string     `json:"name"`  // empty if unknown
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
	// Version is that of the program that it runs in; empty: not known.
	Version string `json:"version"`
	// Trouble is the last error of Kafka, or of Postgres, that keeps it from working as it should, and TroubleFor since
	// when something fails there; empty and nil: nothing does, as of the last heartbeat. It tries again within 5 s.
	// When nothing else fails, it says for which topics or partitions the relay holds events, since when, and why.
	Trouble    string         `json:"trouble"`
	TroubleFor *time.Duration `json:"trouble_for"`
	// Acked is how long ago Kafka last acked an event of it, as of that heartbeat; nil: it never has.
	Acked *time.Duration `json:"acked"`
}

// ReadRelays reads the relays of an outbox, those without lanes included. An empty schema is the connection's
// search_path.
func ReadRelays(ctx context.Context, db *pgxpool.Pool, schema string) (r Relays, err error) {
	in, err := sql.For(schema)
	if err != nil {
		return r, fmt.Errorf("relay: %w", err)
	}
	if r.List, err = audit.Read(ctx, db, scanRelay, in.Expand(sql.StatusRelays)); err == nil {
		err = db.QueryRow(ctx, in.Expand(sql.Cluster)).Scan(&r.Cluster)
	}
	if err != nil {
		return Relays{}, fmt.Errorf("relay: reading the relays: %w", err)
	}
	return r, nil
}

func scanRelay(row pgx.CollectableRow) (r RelayStatus, err error) {
	var oldest, well float64
	var heard, trouble, acked *float64
	err = row.Scan(&r.Owner, &r.Name, &r.Lanes, &r.Overdue, &r.Claimed, &oldest, &heard, &r.Alive, &well, &r.Version,
		&r.Trouble, &trouble, &acked)
	r.Oldest, r.Well = sql.Seconds(oldest), sql.Seconds(max(well, 0))
	r.Heard, r.TroubleFor, r.Acked = seconds(heard), seconds(trouble), seconds(acked)
	return r, err
}

func seconds(s *float64) *time.Duration {
	if s == nil {
		return nil
	}
	d := sql.Seconds(*s)
	return &d
}
