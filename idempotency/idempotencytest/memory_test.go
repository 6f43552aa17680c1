package idempotencytest_test

import (
	"testing"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/idempotencytest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(*testing.T) idempotencytest.Harness {
		m := idempotency.NewMemory(idempotency.MemoryConfig{})
		return idempotencytest.Harness{Store: m, Recoverer: m}
	})
}
