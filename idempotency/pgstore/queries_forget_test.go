package pgstore

import (
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestQueriesPrepare_Cascade(t *testing.T) {
	t.Parallel()
	pgtest.PrepareAll(t, pgtest.New(t, "idempotency"), map[string]string{"forget a key": sqlForgetKey})
}
