// Package audit is what the operators of an outbox and of an inbox share: how a person's change is made and written
// down, and the words for what people choose and get.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// Person is who acts.
type Person struct {
	DB       *pgxpool.Pool
	Name     string // for the audit
	room     string // the prefix of errors
	timeouts string // the statement that sets Timeout
}

// Timeout is how long an operator's transaction may be idle; in an inbox, also how long it may wait for a lock. Relays
// and workers wait for the rows that it has locked. A laptop that falls asleep must not keep them.
const Timeout = "10s"

// New makes a Person. Errors begin with room. The statement timeouts applies [Timeout] to a transaction.
func New(room string, db *pgxpool.Pool, name, timeouts string) (*Person, error) {
	switch {
	case db == nil:
		return nil, fmt.Errorf("%s: an operator needs a pool", room)
	case strings.TrimSpace(name) == "":
		return nil, fmt.Errorf("%s: say who you are: the operator's name goes into the audit", room)
	}
	return &Person{DB: db, Name: name, room: room, timeouts: timeouts}, nil
}

// Act runs a change, which writes its row of the audit, in one transaction.
func (p *Person) Act(ctx context.Context, action, reason string, change func(tx pgx.Tx) error) error {
	if strings.TrimSpace(reason) == "" {
		return fmt.Errorf("%s: %s: give a reason: it goes into the audit", p.room, action)
	}
	err := p.Begin(ctx, change)
	if pgerr.Retry(err) {
		err = fmt.Errorf("somebody else is at it: try again: %w", err)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", p.room, action, err)
	}
	return nil
}

// Begin runs a transaction, which ends when its process is idle for longer than [Timeout]. It is READ COMMITTED,
// whatever the database's default is: a read behind a lock must see the rows as they are then.
func (p *Person) Begin(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, p.DB, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, p.timeouts, Timeout); err != nil {
			return err
		}
		return do(tx)
	})
}

// Entry is one row of the audit.
type Entry struct {
	At        time.Time       `json:"at"`
	Operator  string          `json:"operator"`
	Action    string          `json:"action"`
	Reason    string          `json:"reason"`
	Consumer  string          `json:"consumer,omitempty"` // of an inbox
	MessageID *uuid.UUID      `json:"message_id"`         // nil: not about one event
	Tenant    string          `json:"tenant"`
	Topic     string          `json:"topic"`
	Key       string          `json:"key"`
	Detail    json.RawMessage `json:"detail"`
}

// Log reads what a statement returns of the audit.
func (p *Person) Log(ctx context.Context, statement string, args ...any) ([]Entry, error) {
	return List(ctx, p, "reading the audit", func(row pgx.CollectableRow) (e Entry, err error) {
		var tenant, key []byte
		err = row.Scan(&e.At, &e.Operator, &e.Action, &e.Reason, &e.Consumer, &e.MessageID, &tenant, &e.Topic, &key,
			&e.Detail)
		e.Tenant, e.Key = string(tenant), string(key)
		return e, err
	}, statement, args...)
}

// List reads the rows of a statement. An error says what was read.
func List[T any](ctx context.Context, p *Person, what string, scan pgx.RowToFunc[T], statement string, args ...any) (
	[]T, error,
) {
	rows, err := p.DB.Query(ctx, statement, args...)
	var list []T
	if err == nil {
		list, err = pgx.CollectRows(rows, scan)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", p.room, what, err)
	}
	return list, nil
}

// ErrNotParked: what an operator was asked to act on is not parked (any more).
var ErrNotParked = errors.New("not parked: it was released or discarded meanwhile, or never was; list what is parked")

// ErrReleasing: an event cannot be changed while it is being released. Wait until that is done, or it is parked again.
var ErrReleasing = errors.New("is being released at this moment: wait until that is done, or it is parked again")
