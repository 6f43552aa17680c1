package operator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Status is the state of an outbox in its database, whichever relays work on it.
type Status struct {
	Backlog int64         `json:"backlog"` // events in the outbox, those under way included
	Oldest  time.Duration `json:"oldest"`  // age of the oldest, in nanoseconds in JSON; 0 when there is none
	Lanes   []LaneStatus  `json:"lanes"`
	Topics  []TopicStatus `json:"topics"`
	// Aside are the topics that are paused or have held events. Those events are not in the backlog.
	Aside []Topic `json:"aside"`
	// ParkedFor is the longest time that a key has been in its state, parked or being released; 0 when there is none.
	// Events that were parked alone do not count.
	ParkedFor time.Duration `json:"parked_for"`
	// Scheduled counts the events for later; no other figure includes them.
	Scheduled ScheduledStatus `json:"scheduled"`
	// Open are the first five transactions that have been open for a minute and have appended: their events wait for
	// their COMMIT. Those of other roles are shown to a role with pg_read_all_stats only.
	Open []OpenStatus `json:"open"`
	Relays
	// WAL is nil when no relay has read the WAL for this outbox.
	WAL *relay.WALStatus `json:"wal,omitempty"`
}

// LaneStatus is one lane of a Status.
type LaneStatus struct {
	Lane    int16         `json:"lane"`
	Owner   *uuid.UUID    `json:"owner"` // nil: free
	Name    string        `json:"name"`  // of the owner; empty if unknown
	Fence   int64         `json:"fence"`
	Lease   time.Duration `json:"lease"`   // remaining time; 0: overdue
	Claimed int64         `json:"claimed"` // events between claim and settle
	Oldest  time.Duration `json:"oldest"`  // age of its next event
	Waiting bool          `json:"waiting"` // it has events
	Held    int64         `json:"held"`    // events that wait for their partition or topic
	Parked  int64         `json:"parked"`  // events that wait for an operator
}

// TopicStatus is one topic of a Status.
type TopicStatus struct {
	Topic   string        `json:"topic"`
	Backlog int64         `json:"backlog"`
	Oldest  time.Duration `json:"oldest"`
}

// OpenStatus is an open transaction of a Status.
type OpenStatus struct {
	PID         int32         `json:"pid"`
	User        string        `json:"user"`
	Application string        `json:"application"`
	State       string        `json:"state"` // as in pg_stat_activity
	For         time.Duration `json:"for"`
}

// longOpen is from when on an open transaction is shown.
const longOpen = time.Minute

// ReadStatus reads the state of an outbox. It counts every waiting event, which takes about a second per ten million;
// for a figure every few seconds use [relay.Relay.Sample]. An empty schema is the connection's search_path.
func ReadStatus(ctx context.Context, db *pgxpool.Pool, schema string) (Status, error) {
	in, err := sql.For(schema)
	if err != nil {
		return Status{}, fmt.Errorf("relay: %w", err)
	}
	var st Status
	if st.Lanes, err = audit.Read(ctx, db, scanLane, in.Expand(sql.StatusLanes)); err != nil {
		return Status{}, fmt.Errorf("relay: reading lanes: %w", err)
	}
	if st.Topics, err = audit.Read(ctx, db, scanTopicStatus, in.Expand(sql.StatusTopics)); err != nil {
		return Status{}, fmt.Errorf("relay: reading topics: %w", err)
	}
	if st.Aside, err = audit.Read(ctx, db, pgx.RowToStructByPos[Topic], in.Expand(sql.ListTopics)); err != nil {
		return Status{}, fmt.Errorf("relay: reading what is held: %w", err)
	}
	st.Aside = slices.DeleteFunc(st.Aside, func(t Topic) bool { return t.Held == 0 && t.PausedAt == nil })
	parked, err := audit.Read(ctx, db, pgx.RowTo[float64], in.Expand(sql.StatusParked))
	if err != nil {
		return Status{}, fmt.Errorf("relay: reading what is parked: %w", err)
	}
	st.ParkedFor = sql.Seconds(parked[0])
	scheduled, err := audit.Read(ctx, db, pgx.RowToStructByPos[ScheduledStatus], in.Expand(sql.StatusScheduled))
	if err != nil {
		return Status{}, fmt.Errorf("relay: reading what is scheduled: %w", err)
	}
	st.Scheduled = scheduled[0]
	if st.Open, err = readOpen(ctx, db, in, longOpen); err != nil {
		return Status{}, err
	}
	if st.Relays, err = ReadRelays(ctx, db, schema); err != nil {
		return Status{}, err
	}
	box, err := relay.Open(db, schema)
	if err != nil {
		return Status{}, err
	}
	if st.WAL, err = box.WALStatus(ctx); err != nil {
		return Status{}, err
	}
	for _, t := range st.Topics {
		st.Backlog += t.Backlog
		st.Oldest = max(st.Oldest, t.Oldest)
	}
	return st, nil
}

func readOpen(ctx context.Context, db *pgxpool.Pool, in *sql.Schema, long time.Duration) ([]OpenStatus, error) {
	list, err := audit.Read(ctx, db, scanOpen, in.Expand(sql.StatusOpen), sql.Interval(long))
	if err != nil {
		return nil, fmt.Errorf("relay: reading open transactions: %w", err)
	}
	return list, nil
}

func scanOpen(row pgx.CollectableRow) (o OpenStatus, err error) {
	var age float64
	err = row.Scan(&o.PID, &o.User, &o.Application, &o.State, &age)
	o.For = sql.Seconds(age)
	return o, err
}

func scanTopicStatus(row pgx.CollectableRow) (t TopicStatus, err error) {
	var age float64
	err = row.Scan(&t.Topic, &t.Backlog, &age)
	t.Oldest = sql.Seconds(age)
	return t, err
}

func scanLane(row pgx.CollectableRow) (l LaneStatus, err error) {
	var lease, oldest float64
	err = row.Scan(&l.Lane, &l.Owner, &l.Name, &l.Fence, &lease, &l.Claimed, &oldest, &l.Waiting, &l.Held, &l.Parked)
	l.Lease, l.Oldest = sql.Seconds(lease), sql.Seconds(oldest)
	return l, err
}
