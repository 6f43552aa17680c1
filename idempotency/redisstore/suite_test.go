package redisstore_test

import (
	"testing"

	"github.com/effectonce/effectonce/idempotency/idempotencytest"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/redistest"
)

// TestStore: every promise of store.Store and its Recoverer, on a real server.
func TestStore(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(t *testing.T) idempotencytest.Harness {
		prefix := redistest.Prefix()
		s := open(t, redisClient(t), prefix)
		return idempotencytest.Harness{
			Store: s, Recoverer: s, Others: []store.Store{open(t, redisClient(t), prefix)},
			Features: idempotencytest.Features{ServerTTL: true},
		}
	})
}
