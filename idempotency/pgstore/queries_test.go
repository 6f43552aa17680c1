package pgstore

import (
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestQueriesPrepare(t *testing.T) {
	t.Parallel()
	pgtest.PrepareAll(t, pgtest.New(t, "idempotency"), map[string]string{
		"claim": sqlClaim, "get": sqlGet, "regrant": sqlRegrant, "takeOver": sqlTakeOver, "note": sqlNote,
		"regain": sqlRegain,
		"extend": sqlExtend, "save": sqlSave, "finish": sqlFinish, "release": sqlRelease, "doubt": sqlDoubt,
		"recover": sqlRecover, "postpone": sqlPostpone, "erase": sqlErase, "forget": sqlForget, "more": sqlMore,
		"stats": sqlStats,
		"begin": sqlBegin, "savepoint": sqlSavepoint, "rollbackTo": sqlRollbackTo, "commit": sqlCommit,
		"rollback": sqlRollback, "adopt": sqlAdopt,
		"lock": sqlLock, "await": sqlAwait, "bury": sqlBury, "write": sqlWrite, "block": sqlBlock,
	})
}
