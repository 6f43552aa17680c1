package outboxtest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// Outbox is an outbox in a schema that is not in the connection's search_path. [Appended] uses the zero value.
type Outbox struct {
	// Schema is the Appender's: 1 to 63 of a-z, 0-9 and _. Empty: the connection's search_path.
	Schema string
}

// Querier is a transaction of database/sql, such as *sql.Tx.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Appended returns the events that tx has appended to topic, in the order of appending, those of savepoints included.
// An empty topic means all topics. It returns no events of other transactions, so tests may share a database. An error
// fails the test at once; the role needs SELECT on outbox_event and outbox_scheduled.
//
// Events with a NotBefore in the future come last. ID, Time and headers, the trace included, are those that consumers
// get. Of Position only Lane is set.
func Appended(ctx context.Context, t testing.TB, tx pgx.Tx, topic string) []event.Event {
	t.Helper()
	return Outbox{}.Appended(ctx, t, tx, topic)
}

// Appended is [Appended] for this outbox.
func (o Outbox) Appended(ctx context.Context, t testing.TB, tx pgx.Tx, topic string) []event.Event {
	t.Helper()
	if tx == nil {
		t.Fatal("outboxtest: Appended needs the transaction that the test appended in, not nil")
	}
	rows, err := tx.Query(ctx, o.query(t), topic)
	if err != nil {
		t.Fatal(readError(err))
	}
	defer rows.Close()
	return collect(t, rows)
}

// AppendedSQL is [Appended] for a transaction of database/sql.
func (o Outbox) AppendedSQL(ctx context.Context, t testing.TB, tx Querier, topic string) []event.Event {
	t.Helper()
	if tx == nil {
		t.Fatal("outboxtest: AppendedSQL needs the transaction that the test appended in, not nil")
	}
	rows, err := tx.QueryContext(ctx, o.query(t), topic)
	if err != nil {
		t.Fatal(readError(err))
	}
	defer func() { _ = rows.Close() }()
	return collect(t, rows)
}

func (o Outbox) query(t testing.TB) string {
	t.Helper()
	prefix, err := pgschema.Prefix(o.Schema)
	if err != nil {
		t.Fatalf("outboxtest: Outbox.Schema: %v", err)
	}
	return pgschema.Expand(queryAppended, prefix)
}

// scanner is implemented by the rows of pgx and of database/sql.
type scanner interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}

func collect(t testing.TB, rows scanner) []event.Event {
	t.Helper()
	var events []event.Event
	for rows.Next() {
		var (
			e       event.Event
			id      string
			headers *string
			due     *time.Time
		)
		if err := rows.Scan(&e.Position.Lane, &id, &e.Source, &e.Tenant, &e.Topic, &e.Key, &e.Type, &e.ContentType,
			&headers,
			&e.Payload, &e.Time, &due); err != nil {
			t.Fatal(readError(err))
		}
		if id != "" {
			var err error
			if e.ID, err = uuid.Parse(id); err != nil {
				t.Fatal(readError(err))
			}
		}
		if due != nil {
			e.NotBefore = *due
		}
		if headers != nil {
			if err := json.Unmarshal([]byte(*headers), &e.Headers); err != nil {
				t.Fatal(readError(err))
			}
		}
		events = append(events, e)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(readError(err))
	}
	return events
}

// readError adds a hint to the common errors of a first test.
func readError(err error) error {
	hint := ""
	switch pgerr.Code(err) {
	case pgerr.UndefinedTable:
		hint = " (run the outbox migrations on the test's database, or name their schema: " +
			"outboxtest.Outbox{Schema: ...})"
	case pgerr.InsufficientPrivilege:
		hint = " (grant select on outbox_event and outbox_scheduled to the role " +
			"of the tests)"
	case "25P02": // in_failed_sql_transaction
		hint = " (an earlier statement of this transaction failed; see its error)"
	}
	return fmt.Errorf("outboxtest: reading the appended events%s: %w", hint, err)
}
