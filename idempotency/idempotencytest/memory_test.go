package idempotencytest_test

import (
	"testing"

	"github.com/effectonce/effectonce/idempotency/idempotencytest"
	"github.com/effectonce/effectonce/idempotency/memstore"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(*testing.T) idempotencytest.Harness {
		m := memstore.New(memstore.Config{})
		return idempotencytest.Harness{Store: m, Recoverer: m}
	})
}
