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

// refusedRows is the rows or the row of a statement that was refused.
type refusedRows struct{ err error }

var (
	_ pgx.Rows         = refusedRows{}
	_ pgx.BatchResults = refusedBatch{}
)

func (refusedRows) Close()                                       {}
func (r refusedRows) Err() error                                 { return r.err }
func (refusedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (refusedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (refusedRows) Next() bool                                   { return false }
func (r refusedRows) Scan(...any) error                          { return r.err }
func (r refusedRows) Values() ([]any, error)                     { return nil, r.err }
func (refusedRows) RawValues() [][]byte                          { return nil }
func (refusedRows) Conn() *pgx.Conn                              { return nil }
func (refusedRows) TypeMap() *pgtype.Map                         { return nil }

// refusedBatch is the results of a batch that was refused.
type refusedBatch struct{ err error }

func (b refusedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b refusedBatch) Query() (pgx.Rows, error)         { return refusedRows(b), b.err }
func (b refusedBatch) QueryRow() pgx.Row                { return refusedRows(b) }
func (b refusedBatch) Tx() pgx.Tx                       { return nil }
func (b refusedBatch) Close() error                     { return b.err }

// statements is how a connection and a transaction of pgx run them.
type statements interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// guarded passes statements through until the transaction is closed, but for those that would end it: sent, they would
// commit what the lender has begun for others.
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

// SendBatch passes a batch through as a whole, or not at all.
func (g guarded) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := g.of.admit(q.SQL); err != nil {
			return refusedBatch{err}
		}
	}
	if err := g.of.use(); err != nil {
		return refusedBatch{err}
	}
	return g.on.SendBatch(ctx, b)
}

// Prepare passes through.
func (g guarded) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := g.of.admit(sql); err != nil {
		return nil, err
	}
	return g.on.Prepare(ctx, name, sql)
}

// Exec passes through.
func (g guarded) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := g.of.admit(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	return g.on.Exec(ctx, sql, args...)
}

// Query passes through.
func (g guarded) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := g.of.admit(sql); err != nil {
		return refusedRows{err}, err
	}
	return g.on.Query(ctx, sql, args...)
}

// QueryRow passes through.
func (g guarded) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := g.of.admit(sql); err != nil {
		return refusedRows{err}
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
