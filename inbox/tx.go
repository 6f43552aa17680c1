package inbox

import (
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgtx"
)

// errTransactionControl is what Commit and Rollback of an effect's transaction return.
var errTransactionControl = errors.New("inbox: an effect must not commit or roll back the inbox's transaction: " +
	"return an error to roll it back, use tx.Begin for a savepoint")

// guardTx is the transaction as an effect sees it.
type guardTx struct{ *pgtx.Tx }

// newGuardTx lends the transaction that is open on conn; inner is pgx's object for it, or nil.
func newGuardTx(conn *pgx.Conn, inner pgx.Tx) *guardTx {
	return &guardTx{pgtx.New(conn, inner, sqlAdopt, errTransactionControl)}
}

// check looks at what the effect did to the transaction; it costs no round trip.
func (g *guardTx) check(err error) error {
	err, ended := g.Left(err)
	if ended {
		return Terminal(CodeTransaction, err)
	}
	return err
}
