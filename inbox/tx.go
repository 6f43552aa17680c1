package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errTransactionControl is what Commit and Rollback of an effect's transaction return.
var errTransactionControl = errors.New("inbox: an effect must not commit or roll back the inbox's transaction: return an error to roll it back, use tx.Begin for a savepoint")

// guardTx is the transaction as an effect sees it. It was begun in one pipeline with the inbox's own statements, so
// there is no pgx.Tx below it until somebody needs one.
type guardTx struct {
	conn *pgx.Conn
	// inner is made when an effect asks for a savepoint or large objects.
	inner pgx.Tx
	// touched says that the effect used the transaction; broken that it tried to end it.
	touched, broken bool
}

var _ pgx.Tx = (*guardTx)(nil)

// Begin makes a savepoint.
func (g *guardTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := g.adopt(ctx); err != nil {
		return nil, err
	}
	return g.inner.Begin(ctx)
}

// adopt gives pgx a transaction object for the transaction that is already open: its "begin" is an empty query.
func (g *guardTx) adopt(ctx context.Context) (err error) {
	g.touched = true
	if g.inner == nil {
		g.inner, err = g.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: sqlAdopt})
	}
	return err
}

// Commit refuses, and so fails the event.
func (g *guardTx) Commit(context.Context) error { g.broken = true; return errTransactionControl }

// Rollback refuses, and so fails the event.
func (g *guardTx) Rollback(context.Context) error { g.broken = true; return errTransactionControl }

// CopyFrom passes through.
func (g *guardTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	g.touched = true
	return g.conn.CopyFrom(ctx, table, columns, rows)
}

// SendBatch passes through.
func (g *guardTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	g.touched = true
	return g.conn.SendBatch(ctx, b)
}

// LargeObjects works on the open transaction. When that is lost, its methods panic, which counts as a failed attempt.
func (g *guardTx) LargeObjects() pgx.LargeObjects {
	if err := g.adopt(context.Background()); err != nil {
		return pgx.LargeObjects{}
	}
	return g.inner.LargeObjects()
}

// Prepare passes through.
func (g *guardTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	g.touched = true
	return g.conn.Prepare(ctx, name, sql)
}

// Exec passes through.
func (g *guardTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	g.touched = true
	return g.conn.Exec(ctx, sql, args...)
}

// Query passes through.
func (g *guardTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	g.touched = true
	return g.conn.Query(ctx, sql, args...)
}

// QueryRow passes through.
func (g *guardTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	g.touched = true
	return g.conn.QueryRow(ctx, sql, args...)
}

// Conn is the connection below. Ending the transaction through it is found out afterwards and fails the event.
func (g *guardTx) Conn() *pgx.Conn {
	g.touched = true
	return g.conn
}

// check looks at what the effect did to the transaction; it costs no round trip.
func (g *guardTx) check(err error) error {
	switch status := g.conn.PgConn().TxStatus(); {
	case g.broken:
		return Terminal(CodeTransaction, errors.Join(errTransactionControl, err))
	case !g.conn.IsClosed() && g.conn.PgConn().IsBusy():
		return errors.Join(errors.New("the effect returned while rows or batch results of its transaction were still open: close them"), err)
	case g.conn.IsClosed() || status == 'T' || err != nil && status == 'E':
		return err
	case status == 'E':
		return errors.New("the effect returned nil although a statement of its transaction had failed: return that error, or put the statement behind a savepoint")
	default:
		return Terminal(CodeTransaction, fmt.Errorf("the effect ended the inbox's transaction with an SQL statement (status %q): %w", status, errors.Join(errTransactionControl, err)))
	}
}
