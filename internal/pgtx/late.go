package pgtx

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// errLate is what everything answers once the loan is over.
var errLate = fmt.Errorf("the code that this transaction was given to has returned: wait for its goroutines before that: %w", pgx.ErrTxClosed)

// late is the rows, the row or the batch's results of a statement that was refused.
type late struct{}

var (
	_ pgx.Rows         = late{}
	_ pgx.BatchResults = lateBatch{}
)

func (late) Close()                                       {}
func (late) Err() error                                   { return errLate }
func (late) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (late) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (late) Next() bool                                   { return false }
func (late) Scan(...any) error                            { return errLate }
func (late) Values() ([]any, error)                       { return nil, errLate }
func (late) RawValues() [][]byte                          { return nil }
func (late) Conn() *pgx.Conn                              { return nil }
func (late) TypeMap() *pgtype.Map                         { return nil }

type lateBatch struct{}

func (lateBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, errLate }
func (lateBatch) Query() (pgx.Rows, error)         { return late{}, errLate }
func (lateBatch) QueryRow() pgx.Row                { return late{} }
func (lateBatch) Tx() pgx.Tx                       { return nil }
func (lateBatch) Close() error                     { return errLate }

// statements is how a connection and a transaction of pgx run them.
type statements interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// lent passes statements through until the loan is over.
type lent struct {
	on statements
	of *Tx
}

// CopyFrom passes through.
func (l lent) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := l.of.use(); err != nil {
		return 0, err
	}
	return l.on.CopyFrom(ctx, table, columns, rows)
}

// SendBatch passes through.
func (l lent) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if l.of.use() != nil {
		return lateBatch{}
	}
	return l.on.SendBatch(ctx, b)
}

// Prepare passes through.
func (l lent) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := l.of.use(); err != nil {
		return nil, err
	}
	return l.on.Prepare(ctx, name, sql)
}

// Exec passes through.
func (l lent) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := l.of.use(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return l.on.Exec(ctx, sql, args...)
}

// Query passes through.
func (l lent) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := l.of.use(); err != nil {
		return late{}, err
	}
	return l.on.Query(ctx, sql, args...)
}

// QueryRow passes through.
func (l lent) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if l.of.use() != nil {
		return late{}
	}
	return l.on.QueryRow(ctx, sql, args...)
}

// savepoint is one within a loan, and ends with it.
type savepoint struct {
	lent
	tx pgx.Tx
}

var _ pgx.Tx = (*savepoint)(nil)

func (t *Tx) lend(tx pgx.Tx) pgx.Tx {
	if tx == nil {
		return nil
	}
	return &savepoint{lent{tx, t}, tx}
}

func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := s.of.use(); err != nil {
		return nil, err
	}
	tx, err := s.tx.Begin(ctx)
	return s.of.lend(tx), err
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
