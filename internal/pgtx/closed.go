package pgtx

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// errClosed is what everything answers once the transaction is closed.
var errClosed = fmt.Errorf("the code that this transaction was given to has returned: wait for its goroutines before "+
	"that: %w", pgx.ErrTxClosed)

// closedRows is the rows, the row or the batch's results of a statement that was refused.
type closedRows struct{}

var (
	_ pgx.Rows         = closedRows{}
	_ pgx.BatchResults = closedBatch{}
)

func (closedRows) Close()                                       {}
func (closedRows) Err() error                                   { return errClosed }
func (closedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (closedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (closedRows) Next() bool                                   { return false }
func (closedRows) Scan(...any) error                            { return errClosed }
func (closedRows) Values() ([]any, error)                       { return nil, errClosed }
func (closedRows) RawValues() [][]byte                          { return nil }
func (closedRows) Conn() *pgx.Conn                              { return nil }
func (closedRows) TypeMap() *pgtype.Map                         { return nil }

type closedBatch struct{}

func (closedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, errClosed }
func (closedBatch) Query() (pgx.Rows, error)         { return closedRows{}, errClosed }
func (closedBatch) QueryRow() pgx.Row                { return closedRows{} }
func (closedBatch) Tx() pgx.Tx                       { return nil }
func (closedBatch) Close() error                     { return errClosed }

// statements is how a connection and a transaction of pgx run them.
type statements interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// guarded passes statements through until the transaction is closed.
type guarded struct {
	on statements
	of *Tx
}

// CopyFrom passes through.
func (g guarded) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64,
	error,
) {
	if err := g.of.use(); err != nil {
		return 0, err
	}
	return g.on.CopyFrom(ctx, table, columns, rows)
}

// SendBatch passes through.
func (g guarded) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if g.of.use() != nil {
		return closedBatch{}
	}
	return g.on.SendBatch(ctx, b)
}

// Prepare passes through.
func (g guarded) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := g.of.use(); err != nil {
		return nil, err
	}
	return g.on.Prepare(ctx, name, sql)
}

// Exec passes through.
func (g guarded) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := g.of.use(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return g.on.Exec(ctx, sql, args...)
}

// Query passes through.
func (g guarded) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := g.of.use(); err != nil {
		return closedRows{}, err
	}
	return g.on.Query(ctx, sql, args...)
}

// QueryRow passes through.
func (g guarded) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if g.of.use() != nil {
		return closedRows{}
	}
	return g.on.QueryRow(ctx, sql, args...)
}

// savepoint is one within a lent transaction, and ends with it.
type savepoint struct {
	guarded
	tx pgx.Tx
}

var _ pgx.Tx = (*savepoint)(nil)

func (t *Tx) guard(tx pgx.Tx) pgx.Tx {
	if tx == nil {
		return nil
	}
	return &savepoint{guarded{tx, t}, tx}
}

func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := s.of.use(); err != nil {
		return nil, err
	}
	tx, err := s.tx.Begin(ctx)
	return s.of.guard(tx), err
}

func (s *savepoint) Commit(ctx context.Context) error {
	if err := s.of.use(); err != nil {
		return err
	}
	return s.tx.Commit(ctx)
}

func (s *savepoint) Rollback(ctx context.Context) error {
	if err := s.of.use(); err != nil {
		return err
	}
	return s.tx.Rollback(ctx)
}

func (s *savepoint) LargeObjects() pgx.LargeObjects { return s.tx.LargeObjects() }

func (s *savepoint) Conn() *pgx.Conn { return s.tx.Conn() }
