// Package sqltx lends an open transaction of pgx to code that is written for database/sql, and so to GORM, ent, sqlx
// and bun: an effect written with them commits together with the event's id in the inbox, or not at all.
//
//	h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
//		return sqltx.Do(ctx, tx, func(tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, "insert into ledger_entry ...", ...)
//			return err
//		})
//	})
//
// It works with every [pgx.Tx]: of Each, Batch and ProcessTx of package inbox, and of InTx of idempotency/pgstore.
// docs/orms.md has the lines for each library.
package sqltx

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
)

// errEnded is the error of Commit and Rollback of a lent transaction.
var errEnded = errors.New("sqltx: the transaction is lent, and is neither committed nor rolled back by who borrowed " +
	"it: return an error to have it rolled back, or execute SAVEPOINT and ROLLBACK TO for a part of it")

// Do calls do with tx as a transaction of database/sql, and returns its error. Both are the same transaction: each sees
// the rows that were written through the other. Do itself sends nothing.
//
// The *sql.Tx refuses Commit and Rollback, as methods and as statements: Do then returns an error whatever do returns,
// and an inbox parks the event. After these methods, and after do, the *sql.Tx is done, and open rows are closed. Do
// returns when database/sql no longer uses the connection.
//
// A statement without a context (tx.Exec, a GORM session without WithContext) uses ctx. If ctx ends while do runs, Do
// returns an error. Values are those of pgx's driver for database/sql (pgx/v5/stdlib); arguments are $1, $2, of any
// type that pgx supports. A statement is prepared when it first runs, depending on pgx's mode.
func Do(ctx context.Context, tx pgx.Tx, do func(tx *sql.Tx) error) error {
	if tx == nil {
		return errors.New("sqltx: tx is nil")
	}
	c := &conn{tx: tx, closed: make(chan struct{})}
	c.context = func(given context.Context) context.Context {
		if given == context.Background() {
			return ctx
		}
		return given
	}
	db := sql.OpenDB(connector{c})
	lent, err := db.BeginTx(ctx, nil)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	err = c.lend(db, lent, do)
	switch {
	case c.refused.Load() && !errors.Is(err, errEnded):
		return errors.Join(errEnded, err)
	case err == nil:
		return ctx.Err() // database/sql has ended the transaction
	}
	return err
}

// lend runs do, and waits until database/sql has closed the connection: after the end of a context it closes rows and
// rolls back in goroutines of its own.
func (c *conn) lend(db *sql.DB, lent *sql.Tx, do func(tx *sql.Tx) error) error {
	defer func() {
		c.returned.Store(true)
		_ = lent.Rollback() // waits for statements and rows; ErrTxDone: another goroutine does
		_ = db.Close()
		<-c.closed
	}()
	return do(lent)
}
