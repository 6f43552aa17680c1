// Package audit has the common part of an outbox's and an inbox's Operator: transactions that record a change in the
// audit, and reads and checks that both need. Package admin has their types.
package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgsession"
)

// Person is the person who runs an operator's commands.
type Person struct {
	DB       *pgxpool.Pool
	Name     string // for the audit
	room     string // prefix of errors
	timeouts string // the statement that sets Timeout
}

// Timeout is how long an operator's transaction may be idle, and in an inbox also how long it may wait for a lock.
// Relays and workers wait for rows that it has locked, also while the operator's laptop sleeps.
const Timeout = "10s"

// New makes a Person. Errors begin with room. The statement timeouts applies [Timeout] to a transaction.
func New(room string, db *pgxpool.Pool, name, timeouts string) (*Person, error) {
	switch {
	case db == nil:
		return nil, fmt.Errorf("%s: the operator's pool is nil", room)
	case strings.TrimSpace(name) == "":
		return nil, fmt.Errorf("%s: the operator's name is empty: the audit records it", room)
	}
	return &Person{DB: db, Name: name, room: room, timeouts: timeouts}, nil
}

// Act runs a change in a transaction. action is one of [Actions]; change writes the audit's row.
func (p *Person) Act(ctx context.Context, action, reason string, change func(tx pgx.Tx) error) error {
	if !slices.Contains(Actions(), action) {
		return fmt.Errorf("%s: %q is no action of package audit", p.room, action)
	}
	if strings.TrimSpace(reason) == "" {
		return fmt.Errorf("%s: %s: the reason is empty: the audit records it", p.room, action)
	}
	if len(reason) > admin.MostReason {
		return fmt.Errorf("%s: %s: the reason has %d bytes, and may have %d", p.room, action, len(reason),
			admin.MostReason)
	}
	err := p.Begin(ctx, change)
	if pgerr.Retry(err) {
		err = fmt.Errorf("another transaction changed the same rows: try again: %w", err)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", p.room, action, err)
	}
	return nil
}

// Begin runs a transaction, which Postgres ends when it is idle for longer than [Timeout]. It is READ COMMITTED,
// whatever the database's default: a read after a wait for a lock must see the current rows.
func (p *Person) Begin(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, p.DB, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := errors.Join(pgsession.Texts(tx.Conn()), pgsession.Times(tx.Conn())); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, p.timeouts, Timeout); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, allRows); err != nil {
			return err
		}
		return do(tx)
	})
}

// Log returns the audit's rows that a statement selects.
func (p *Person) Log(ctx context.Context, statement string, args ...any) ([]admin.AuditEntry, error) {
	return List(ctx, p, "reading the audit", func(row pgx.CollectableRow) (e admin.AuditEntry, err error) {
		var tenant, key []byte
		err = row.Scan(&e.At, &e.Operator, &e.Action, &e.Reason, &e.Consumer, &e.MessageID, &tenant, &e.Topic, &key,
			&e.Detail)
		e.Tenant, e.Key = string(tenant), string(key)
		return e, err
	}, statement, args...)
}

// List returns the rows of a statement. Errors contain what.
func List[T any](ctx context.Context, p *Person, what string, scan pgx.RowToFunc[T], statement string, args ...any) (
	[]T, error,
) {
	list, err := Read(ctx, p.DB, scan, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", p.room, what, err)
	}
	return list, nil
}

// DB is a pool or a transaction.
type DB interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Read returns the rows of a statement. It fails if row-level security would hide rows: a backlog would look empty.
func Read[T any](ctx context.Context, db DB, scan pgx.RowToFunc[T], statement string, args ...any) (list []T,
	err error,
) {
	var b pgx.Batch
	b.Queue(allRows)
	b.Queue(statement, args...).Query(func(rows pgx.Rows) (err error) {
		list, err = pgx.CollectRows(rows, scan)
		return err
	})
	err = db.SendBatch(ctx, &b).Close()
	return list, pgsession.Advise(err)
}
