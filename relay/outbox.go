package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Outbox reads and maintains an outbox without a relay. Make one with [Open].
type Outbox struct {
	db     DB
	schema *sql.Schema
}

// DB is what an Outbox uses; a *pgxpool.Pool, a *pgxpool.Conn and a *pgx.Conn have it.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Open returns the outbox in a schema; an empty one is the connection's search_path. It asks the server nothing: it
// fails only if schema cannot be the name of one.
func Open(db DB, schema string) (*Outbox, error) {
	in, err := sql.For(schema)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return &Outbox{db, in}, nil
}
