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

// savepoint is one within a loan, and ends with it.
type savepoint struct {
	pgx.Tx
	of *Tx
}

func (t *Tx) lend(tx pgx.Tx) pgx.Tx {
	if tx == nil {
		return nil
	}
	return &savepoint{tx, t}
}

func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := s.of.use(); err != nil {
		return nil, err
	}
	tx, err := s.Tx.Begin(ctx)
	return s.of.lend(tx), err
}

func (s *savepoint) Commit(ctx context.Context) error {
	if err := s.of.use(); err != nil {
		return err
	}
	return s.Tx.Commit(ctx)
}

func (s *savepoint) Rollback(ctx context.Context) error {
	if err := s.of.use(); err != nil {
		return err
	}
	return s.Tx.Rollback(ctx)
}

func (s *savepoint) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := s.of.use(); err != nil {
		return 0, err
	}
	return s.Tx.CopyFrom(ctx, table, columns, rows)
}

func (s *savepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if s.of.use() != nil {
		return lateBatch{}
	}
	return s.Tx.SendBatch(ctx, b)
}

func (s *savepoint) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := s.of.use(); err != nil {
		return nil, err
	}
	return s.Tx.Prepare(ctx, name, sql)
}

func (s *savepoint) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := s.of.use(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return s.Tx.Exec(ctx, sql, args...)
}

func (s *savepoint) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := s.of.use(); err != nil {
		return late{}, err
	}
	return s.Tx.Query(ctx, sql, args...)
}

func (s *savepoint) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if s.of.use() != nil {
		return late{}
	}
	return s.Tx.QueryRow(ctx, sql, args...)
}
