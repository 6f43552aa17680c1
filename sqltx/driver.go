package sqltx

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgtx"
)

// connector returns the transaction as the only connection.
type connector struct{ c *conn }

// Connect is called once, by BeginTx.
func (c connector) Connect(context.Context) (driver.Conn, error) { return c.c, nil }

// Driver implements [driver.Connector]. Its Open is not supported.
func (c connector) Driver() driver.Driver { return c }

// Open implements [driver.Driver].
func (connector) Open(string) (driver.Conn, error) { return nil, errors.ErrUnsupported }

// conn is a transaction as a driver's connection. database/sql calls its methods one at a time, and closes it after its
// transaction, because it is no [driver.SessionResetter].
type conn struct {
	tx       pgx.Tx
	context  func(given context.Context) context.Context
	returned atomic.Bool   // do has returned
	refused  atomic.Bool   // do tried to end the transaction
	closed   chan struct{} // closed by Close
}

var (
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
)

// BeginTx sends nothing: the transaction is open already.
func (c *conn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }

// Begin implements [driver.Conn].
func (c *conn) Begin() (driver.Tx, error) { return c, nil }

// Commit fails.
func (c *conn) Commit() error { return c.end() }

// Rollback fails, unless database/sql itself rolls back: do has returned, or its context has ended.
func (c *conn) Rollback() error { return c.end() }

func (c *conn) end() error {
	if c.returned.Load() || c.context(context.Background()).Err() != nil {
		return nil
	}
	return c.refuse()
}

func (c *conn) refuse() error {
	c.refused.Store(true)
	// The lender must know about it even if do drops the error.
	if lender, ok := c.tx.(interface{ Refuse() error }); ok {
		_ = lender.Refuse()
	}
	return errEnded
}

// Close is the last call.
func (c *conn) Close() error {
	close(c.closed)
	return nil
}

// CheckNamedValue accepts all values: pgx checks them, and supports driver.Valuer.
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if v.Name != "" {
		return fmt.Errorf("sqltx: argument %d has the name %q: Postgres knows $1, $2 and so on", v.Ordinal, v.Name)
	}
	return nil
}

// ExecContext executes a statement in the transaction.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if pgtx.Ends(query) {
		return nil, c.refuse()
	}
	tag, err := c.tx.Exec(c.context(ctx), query, values(nil, args)...)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(tag.RowsAffected()), nil
}

// QueryContext runs a query in the transaction.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if pgtx.Ends(query) {
		return nil, c.refuse()
	}
	of, err := c.tx.Query(c.context(ctx), query, values([]any{formats}, args)...)
	if err != nil {
		return nil, err
	}
	// In some modes of pgx the columns are unknown before the first row.
	more := of.Next()
	if err := of.Err(); err != nil {
		of.Close()
		return nil, err
	}
	return newRows(of, more), nil
}

func values(to []any, args []driver.NamedValue) []any {
	for _, a := range args {
		to = append(to, a.Value)
	}
	return to
}

// PrepareContext keeps the text: pgx prepares what it executes, unless its mode forbids that.
func (c *conn) PrepareContext(_ context.Context, query string) (driver.Stmt, error) {
	return &stmt{c, query}, nil
}

// Prepare implements [driver.Conn].
func (c *conn) Prepare(query string) (driver.Stmt, error) { return &stmt{c, query}, nil }

type stmt struct {
	c     *conn
	query string
}

var (
	_ driver.StmtExecContext  = (*stmt)(nil)
	_ driver.StmtQueryContext = (*stmt)(nil)
)

func (s *stmt) Close() error { return nil }

// NumInput leaves the count of arguments to Postgres.
func (s *stmt) NumInput() int { return -1 }

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.c.ExecContext(ctx, s.query, args)
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.c.QueryContext(ctx, s.query, args)
}

// Exec and Query are not called: the contextual methods are.
func (s *stmt) Exec([]driver.Value) (driver.Result, error) { return nil, errors.ErrUnsupported }

func (s *stmt) Query([]driver.Value) (driver.Rows, error) { return nil, errors.ErrUnsupported }
