// Package pgtx lends an open transaction to code that must not end it.
package pgtx

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// Tx is a transaction as borrowed code sees it: everything but its end. It may have been begun in one pipeline with
// other statements, so there is no pgx.Tx below it until one is needed. Use New.
type Tx struct {
	// Raw is the connection; to look at it through Raw does not count as a use.
	Raw *pgx.Conn
	// Touched says that code used the transaction; Broken that it tried to end it.
	Touched, Broken bool
	// Set says that a statement changed settings, which what runs next in the transaction inherits; Lasts that what it
	// did outlives the transaction: the connection is to be closed. Both go by the statements' texts.
	Set, Lasts bool

	guarded
	// inner is made for the first savepoint or large object.
	inner   pgx.Tx
	adopt   string
	refusal error
	closed  atomic.Bool
}

var _ pgx.Tx = (*Tx)(nil)

// New lends the transaction that is open on conn. inner is pgx's object for it, or nil; then one is made when it is
// needed, with adopt as its "begin": an empty query. refusal is what Commit and Rollback answer.
func New(conn *pgx.Conn, inner pgx.Tx, adopt string, refusal error) *Tx {
	t := &Tx{Raw: conn, inner: inner, adopt: adopt, refusal: refusal}
	t.guarded = guarded{conn, t}
	if inner != nil { // of an effect's transaction, which is to know what is done
		t.on = inner
	}
	return t
}

// Next lends the same transaction to other code: what the code before is left with is closed. Set and Lasts stay, for
// they are about the transaction.
func (t *Tx) Next() *Tx {
	next := New(t.Raw, t.inner, t.adopt, t.refusal)
	next.Set, next.Lasts = t.Set, t.Lasts
	return next
}

// Close says that the code has returned. A goroutine that it left behind would write into whatever runs on the
// connection next.
func (t *Tx) Close() { t.closed.Store(true) }

// use notes a use of the transaction; the error says that the code has returned.
func (t *Tx) use() error {
	if t.closed.Load() {
		return errClosed
	}
	t.Touched = true
	return nil
}

// admit notes a use by a statement, and refuses one that would end the transaction.
func (t *Tx) admit(sql string) error {
	does := look(sql)
	if does.ends {
		return t.Refuse()
	}
	if err := t.use(); err != nil {
		return err
	}
	t.Set, t.Lasts = t.Set || does.sets, t.Lasts || does.lasts
	return nil
}

// Begin makes a savepoint.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.open(ctx); err != nil {
		return nil, err
	}
	tx, err := t.inner.Begin(ctx)
	return t.guard(tx), err
}

func (t *Tx) open(ctx context.Context) (err error) {
	if err := t.use(); err != nil {
		return err
	}
	if t.inner == nil {
		t.inner, err = t.Raw.BeginTx(ctx, pgx.TxOptions{BeginQuery: t.adopt})
	}
	return err
}

// Commit refuses.
func (t *Tx) Commit(context.Context) error { return t.Refuse() }

// Rollback refuses.
func (t *Tx) Rollback(context.Context) error { return t.Refuse() }

// Refuse notes that the code tried to end the transaction.
func (t *Tx) Refuse() error {
	if err := t.use(); err != nil {
		return err
	}
	t.Broken = true
	return t.refusal
}

// LargeObjects works on the open transaction. When that is lost, its methods panic.
func (t *Tx) LargeObjects() pgx.LargeObjects {
	if err := t.open(context.Background()); err != nil {
		return pgx.LargeObjects{}
	}
	return t.inner.LargeObjects()
}

// Conn is the connection below. Ending the transaction through it is found out by Left. Nothing refuses what is done
// with it later.
func (t *Tx) Conn() *pgx.Conn {
	_ = t.use()
	return t.Raw
}

// Left looks at what the code that returned err did to the transaction, without a round trip, and returns an error
// where that does not go with err. ended: the code ended the transaction, or tried to.
func (t *Tx) Left(err error) (left error, ended bool) {
	switch status := t.Raw.PgConn().TxStatus(); {
	case t.Broken:
		return errors.Join(t.refusal, err), true
	case !t.Raw.IsClosed() && t.Raw.PgConn().IsBusy():
		return errors.Join(errors.New("the effect returned while rows or batch results of its transaction were still "+
			"open: close them"), err), false
	case t.Raw.IsClosed() || status == 'T' || err != nil && status == 'E':
		return err, false
	case status == 'E':
		return errors.New("the effect returned nil although a statement of its transaction had failed: return that " +
			"error, or put the statement under a savepoint"), false
	default:
		return fmt.Errorf("the effect ended the transaction with an SQL statement (status %q): %w", status,
			errors.Join(t.refusal, err)), true
	}
}
