package pgstore

import (
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestQueriesPrepare(t *testing.T) {
	t.Parallel()
	pgtest.PrepareAll(t, pgtest.New(t, "idempotency"), map[string]string{
		"claim": sqlClaim, "get": sqlGet, "regrant": sqlRegrant, "takeOver": sqlTakeOver, "expireLease": sqlExpireLease,
		"claimTombstone": sqlClaimTombstone, "extend": sqlExtend, "save": sqlSave, "finish": sqlFinish,
		"release": sqlRelease, "markUnknown": sqlMarkUnknown, "recover": sqlRecover, "postpone": sqlPostpone,
		"expireBodies": sqlExpireBodies, "deleteTombstones": sqlDeleteTombstones, "moreOverdue": sqlMoreOverdue,
		"stats": sqlStats,
		"begin": sqlBegin, "savepoint": sqlSavepoint, "rollbackTo": sqlRollbackTo, "commit": sqlCommit,
		"rollback": sqlRollback, "adopt": sqlAdopt,
		"tryLock": sqlTryLock, "isLocked": sqlIsLocked, "awaitLock": sqlAwaitLock,
		"deleteTombstone": sqlDeleteTombstone,
		"insertResult":    sqlInsertResult, "reserveBlock": sqlReserveBlock,
	})
}
