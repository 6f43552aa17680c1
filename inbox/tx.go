package inbox

import (
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgtx"
	"github.com/effectonce/effectonce/outcome"
)

// errTransactionControl is the error of Commit and Rollback of an effect's transaction.
var errTransactionControl = errors.New("inbox: an effect must not commit or roll back the inbox's transaction: " +
	"return an error to roll it back, use tx.Begin for a savepoint")

// guardTx is the transaction that an effect gets.
type guardTx struct{ *pgtx.Tx }

// newGuardTx returns the guard of the transaction that is open on conn. inner is pgx's object for it, or nil.
func newGuardTx(conn *pgx.Conn, inner pgx.Tx) *guardTx {
	return &guardTx{pgtx.New(conn, inner, sqlAdopt, errTransactionControl)}
}

// next closes the transaction object of the code before, and returns one for the next.
func (g *guardTx) next() *guardTx {
	before := g.Tx
	before.Close()
	g.Tx = before.Next()
	return &guardTx{g.Tx}
}

// check checks what the effect did to the transaction. It costs no round trip.
func (g *guardTx) check(err error) error {
	err, ended := g.Left(err)
	if ended {
		return outcome.Terminal(CodeTransaction, err)
	}
	return err
}
