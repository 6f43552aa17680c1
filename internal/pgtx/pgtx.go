// Package pgtx lends an open transaction to code that must not end it.
package pgtx

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is a transaction as borrowed code sees it: everything but its end. It may have been begun in one pipeline with other
// statements, so there is no pgx.Tx below it until somebody needs one. Use New.
type Tx struct {
	// Raw is the connection; to look at it through Raw does not count as a use.
	Raw *pgx.Conn
	// Touched says that somebody used the transaction; Broken that somebody tried to end it.
	Touched, Broken bool

	// inner is made when somebody asks for a savepoint or large objects.
	inner   pgx.Tx
	adopt   string
	refusal error
}

var _ pgx.Tx = (*Tx)(nil)

// New lends the transaction that is open on conn. inner is pgx's object for it, or nil; then one is made when it is needed, with adopt
// as its "begin": an empty query. refusal is what Commit and Rollback answer.
func New(conn *pgx.Conn, inner pgx.Tx, adopt string, refusal error) *Tx {
	return &Tx{Raw: conn, inner: inner, adopt: adopt, refusal: refusal}
}

// Begin makes a savepoint.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.open(ctx); err != nil {
		return nil, err
	}
	return t.inner.Begin(ctx)
}

func (t *Tx) open(ctx context.Context) (err error) {
	t.Touched = true
	if t.inner == nil {
		t.inner, err = t.Raw.BeginTx(ctx, pgx.TxOptions{BeginQuery: t.adopt})
	}
	return err
}

// Commit refuses.
func (t *Tx) Commit(context.Context) error { t.Broken = true; return t.refusal }

// Rollback refuses.
func (t *Tx) Rollback(context.Context) error { t.Broken = true; return t.refusal }

// CopyFrom passes through.
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	t.Touched = true
	return t.Raw.CopyFrom(ctx, table, columns, rows)
}

// SendBatch passes through.
func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	t.Touched = true
	return t.Raw.SendBatch(ctx, b)
}

// LargeObjects works on the open transaction. When that is lost, its methods panic.
func (t *Tx) LargeObjects() pgx.LargeObjects {
	if err := t.open(context.Background()); err != nil {
		return pgx.LargeObjects{}
	}
	return t.inner.LargeObjects()
}

// Prepare passes through.
func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	t.Touched = true
	return t.Raw.Prepare(ctx, name, sql)
}

// Exec passes through.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	t.Touched = true
	return t.Raw.Exec(ctx, sql, args...)
}

// Query passes through.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	t.Touched = true
	return t.Raw.Query(ctx, sql, args...)
}

// QueryRow passes through.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	t.Touched = true
	return t.Raw.QueryRow(ctx, sql, args...)
}

// Conn is the connection below. Ending the transaction through it is found out by Left.
func (t *Tx) Conn() *pgx.Conn {
	t.Touched = true
	return t.Raw
}

// Left looks at what the code that returned err did to the transaction, without a round trip, and returns an error where that does
// not go with err. ended: the code ended the transaction, or tried to.
func (t *Tx) Left(err error) (left error, ended bool) {
	switch status := t.Raw.PgConn().TxStatus(); {
	case t.Broken:
		return errors.Join(t.refusal, err), true
	case !t.Raw.IsClosed() && t.Raw.PgConn().IsBusy():
		return errors.Join(errors.New("the effect returned while rows or batch results of its transaction were still open: close them"), err), false
	case t.Raw.IsClosed() || status == 'T' || err != nil && status == 'E':
		return err, false
	case status == 'E':
		return errors.New("the effect returned nil although a statement of its transaction had failed: return that error, or put the statement behind a savepoint"), false
	default:
		return fmt.Errorf("the effect ended the transaction with an SQL statement (status %q): %w", status, errors.Join(t.refusal, err)), true
	}
}
