// Package start has what the actors of a relay share between its start, or its waking, and its end or its next sleep.
package start

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/signal"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Start is one start of a relay. Its actors share it by reference.
type Start struct {
	DB       *pgxpool.Pool
	Schema   *sql.Schema
	Owner    uuid.UUID // of this start
	Outbox   string    // the identity of the one that the program has checked; empty: any will do
	Lease    time.Duration
	Log      *slog.Logger
	Observer Observer
	To       Publisher

	Lanes    *lanes.Table
	Health   *delivery.Health
	Postgres *outage.Monitor
	Kafka    *outage.Monitor
	Signals  *signal.Signals
	Clock    Clock
	Progress Progress
	Foreign  atomic.Bool // the brokers are those of another cluster than the outbox publishes to

	refused sync.Map // refusedLane by the lane's int16
	closed  sync.Map // why, an error, by delivery.Place; some may be open again
}

// Publisher is what the user's publisher can do. Route and Reach are nil if it cannot.
type Publisher struct {
	Publish func(ctx context.Context, events []event.Event) []error
	Route   func(ctx context.Context, topic string) (partition func(e *event.Event) int32, err error)
	Reach   func(ctx context.Context) error
}

// Observer is relay.Observer, which says what its callbacks mean.
type Observer struct {
	Claimed       func(n, discarded int, took time.Duration)
	Published     func(n, attempts int, took time.Duration)
	Due           func(n int)
	Settled       func(n, discarded int, took time.Duration)
	PublishFailed func(n int, err error)
	LaneTaken     func(lane int16, fence int64)
	LaneLeft      func(lane int16, lost bool)
	Closed        func(topic string, partition int32, err error)
	Reopened      func(topic string, partition int32, took time.Duration)
	Held          func(topic string, partition int32, n int)
	Drained       func(n int)
	Parked        func(n int)
	Behind        func(n int)
	Released      func(n int)
	BelowFloor    func(lane int16)
	Outage        func(what string, err error)
}

// SQL is a statement with the relay's schema.
func (s *Start) SQL(statement string) string { return s.Schema.Expand(statement) }

// Session makes a session with Postgres for an actor.
func (s *Start) Session(name string) *pg.Session {
	return &pg.Session{
		Dial: pg.DialAs(s.DB), Name: "effectonce relay " + name, Timeout: s.Lease,
		Reopened: func() { s.Lanes.Reset() },
	}
}

// ErrOther ends a start: the outbox is not the one that the program has checked.
var ErrOther = errors.New("relay: the outbox's tables or its server are others than those that were checked")

// Same asks, within a transaction, whether the outbox is the one that the program has checked. If it is not, the
// transaction fails.
type Same struct {
	start  *Start
	passed bool
}

// Same makes the question for one transaction.
func (s *Start) Same() *Same { return &Same{start: s, passed: s.Outbox == ""} }

// Queue asks. Behind a lock on outbox_lane the answer stays true until the transaction ends.
func (q *Same) Queue(b *pgx.Batch) {
	if q.passed {
		return
	}
	b.Queue(q.start.SQL(sql.SameOutbox), q.start.Outbox).
		Exec(func(pgconn.CommandTag) error { q.passed = true; return nil })
}

// Error returns [ErrOther] if the transaction failed with err because it is another outbox, and err otherwise.
func (q *Same) Error(err error) error {
	if q.passed || !pgerr.Is(err, pgerr.DivisionByZero) {
		return err
	}
	q.start.Signals.Beat() // the keeper ends the start
	return fmt.Errorf("%w: %w", ErrOther, err)
}

// AskKafka asks a publisher that can tell whether it is reachable.
func (s *Start) AskKafka(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, s.Lease/3)
	defer cancel()
	return s.To.Reach(asking)
}

// ForeignError is why the brokers of another cluster than the outbox publishes to get no event.
type ForeignError struct{ Pinned, Found string }

// Error names both clusters and what an operator can do.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("relay: the brokers are those of Kafka cluster %s, and the outbox publishes to %s: look at the "+
		"brokers' addresses; if its topics have moved, let everything published so far be consumed, then run `relay "+
		"topics accept-cluster --cluster %[1]s`", e.Found, e.Pinned)
}

// IsForeign reports whether an error is that of another cluster's brokers.
func IsForeign(err error) bool {
	_, is := errors.AsType[*ForeignError](err)
	return is
}

// DoubtUnknown puts lanes in doubt if a transaction may have changed, or may still change, their feed: once their
// fences are raised it cannot any more (P3.7).
func (s *Start) DoubtUnknown(set *sql.Fenced, err error) {
	if !pg.CommitUnknown(err) {
		return
	}
	for i, lane := range set.Lanes {
		s.Lanes.Doubt(lane, set.Fences[i])
	}
	s.Signals.Beat()
}
