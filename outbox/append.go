package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/pgsession"
	"github.com/effectonce/effectonce/internal/tracing"
)

// copyFrom is the number of events from which COPY is faster than one statement (docs/decisions/0001-append-many.md).
const copyFrom = 50

// Appender writes events into the outbox. The zero value is ready; a value may be copied and used by many goroutines.
type Appender struct {
	// Source is the source of events without one, such as "payments". Empty: none; the relay then sends "effectonce".
	Source string
	// Schema holds the outbox's tables: 1 to 63 of a-z, 0-9 and _, not beginning with a digit. Empty: the connection's
	// search_path decides, which a pooler may lose.
	Schema string
	// MaxPayload bounds an event's payload, in bytes. Zero: key, headers and payload together must fit into a Kafka
	// record of 1 MiB, the default limit of brokers. Negative: no bound. Raise it together with the topic's
	// max.message.bytes: the broker refuses an event only after the business transaction has committed.
	MaxPayload int
	// InboxWindow is how long consumers remember ids (inbox.Config.Window). Append refuses a scheduled event whose own
	// v7 id would be older than that when it is due: no inbox would apply it. Zero: 14 days, the inbox's default.
	// Negative: not checked.
	InboxWindow time.Duration
	// Propagator writes the context's trace into the event's headers, but overwrites none. Nil: W3C trace context,
	// without baggage.
	Propagator propagation.TextMapPropagator
	// TracerProvider makes a span "append" for each call, in the trace of the context; the events' headers then name
	// that span. Nil: no spans, and the headers name the caller's.
	TracerProvider trace.TracerProvider
}

// SQLTx is a transaction of database/sql: *sql.Tx, or a type that embeds it and keeps its ExecContext (sqlx). Only a
// transaction implements it, because an event must be appended in one. Of ORMs that rewrite the arguments of a query,
// pass the transaction below: tx.Tx in bun, tx.Statement.ConnPool.(outbox.SQLTx) in GORM, with and without PrepareStmt.
// An effect's transaction is pgx's: package sqltx lends it.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Commit() error
	Rollback() error
}

// Append is [Appender.Append] of the zero Appender.
func Append(ctx context.Context, tx pgx.Tx, events ...event.Event) error {
	return Appender{}.Append(ctx, tx, events...)
}

// AppendSQL is [Appender.AppendSQL] of the zero Appender.
func AppendSQL(ctx context.Context, tx SQLTx, events ...event.Event) error {
	return Appender{}.AppendSQL(ctx, tx, events...)
}

// Append writes the events, in their order, in tx: they are published after tx commits. It sends one statement, or one
// COPY for many events, in any mode of pgx; without events it sends nothing. It does not change the events; one without
// an ID gets a UUIDv7 that the caller does not learn: set [event.NewID] to know it. Events whose NotBefore is in the
// future, by this process's clock, go into another table by a second statement, with ids of the time at which they are
// due.
//
// All events are checked first. An event that cannot be published, that was consumed (its Raw is set), or whose ID was
// appended in tx before, is refused with an [*EventError]: nothing was sent, and tx may continue. Any other error comes
// from the database, and tx must be rolled back.
func (a Appender) Append(ctx context.Context, tx pgx.Tx, events ...event.Event) error {
	if tx == nil {
		return errors.New("outbox: tx is nil: append within the transaction of the business change")
	}
	sent := false
	return a.write(ctx, events, func(ctx context.Context, b *batch) error {
		if !sent { // scheduled events are a batch of their own
			if err := pgsession.Texts(tx.Conn()); err != nil {
				return fmt.Errorf("outbox: append %d events: %w", len(events), err)
			}
			if err := give(tx, events); err != nil {
				return err
			}
			sent = true
		}
		if len(b.events) >= copyFrom || b.bytes > maxStatement {
			return b.copy(ctx, tx)
		}
		return b.statements(func(query string, args []any, events int) error {
			tag, err := tx.Exec(ctx, query, args...)
			if err != nil {
				return b.failed(err)
			}
			return took(tag.RowsAffected(), events)
		})
	})
}

// AppendSQL is [Appender.Append] for database/sql, with any Postgres driver. It sends one statement, or one for every
// 10,000 events or 8 MiB. It does not know what earlier calls have appended in tx.
func (a Appender) AppendSQL(ctx context.Context, tx SQLTx, events ...event.Event) error {
	if tx == nil {
		return errors.New("outbox: tx is nil: append within the transaction of the business change")
	}
	return a.write(ctx, events, func(ctx context.Context, b *batch) error {
		return b.statements(func(query string, args []any, events int) error {
			result, err := tx.ExecContext(ctx, query, args...)
			var n int64
			if err == nil {
				n, err = result.RowsAffected()
			}
			if err != nil {
				return b.failed(err)
			}
			return took(n, events)
		})
	})
}

// batch holds checked events, and the other values of their rows.
type batch struct {
	prefix string // of the schema, for queries
	schema string
	events []event.Event
	rows   []row
	later  bool // all of them are scheduled
	bytes  int  // approximate size of the statement
}

// write checks the events and writes them, batch by batch, in the call's span.
func (a Appender) write(ctx context.Context, events []event.Event,
	do func(ctx context.Context, b *batch) error,
) (err error) {
	if a.TracerProvider != nil && len(events) > 0 {
		var span trace.Span
		ctx, span = a.startSpan(ctx, events)
		defer func() { tracing.End(span, err) }()
	}
	batches, err := a.prepare(ctx, events)
	for i := 0; err == nil && i < len(batches); i++ {
		err = do(ctx, batches[i])
	}
	return err
}

// prepare refuses events that cannot be published, before anything is sent. It returns scheduled events as another
// batch.
func (a Appender) prepare(ctx context.Context, events []event.Event) ([]*batch, error) {
	prefix, err := pgschema.Prefix(a.Schema)
	if err != nil {
		return nil, fmt.Errorf("outbox: Appender.Schema: %w", err)
	}
	if reason := badText(a.Source); reason != "" {
		return nil, fmt.Errorf("outbox: Appender.Source %s", reason)
	}
	b := &batch{prefix: prefix, schema: a.Schema, events: events, rows: make([]row, len(events))}
	headers, now, later := a.trace(ctx), time.Now(), false
	seen := make(map[uuid.UUID]int)
	for i := range events {
		size, err := a.check(i, &events[i], headers.headers)
		if err != nil {
			return nil, err
		}
		if err := checkTwice(seen, i, events[i].ID); err != nil {
			return nil, err
		}
		later = later || events[i].NotBefore.After(now)
		b.rows[i] = a.row(&events[i], headers, now)
		b.bytes += size
	}
	if later {
		return b.split(now), nil
	}
	return []*batch{b}, nil
}
