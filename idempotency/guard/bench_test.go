package guard_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/memstore"
)

// The cost of the guard itself, over the memory store: a first call, and a replay.
func BenchmarkGuard(b *testing.B) {
	for name, distinct := range map[string]bool{"first": true, "replay": false} {
		b.Run(name, func(b *testing.B) {
			g, err := guard.New(memstore.New(memstore.Config{}), guard.Config{Lease: time.Minute})
			if err != nil {
				b.Fatal(err)
			}
			r := request(1)
			b.ReportAllocs()
			for i := range b.N {
				if distinct {
					r.Key.Value = strconv.Itoa(i)
				}
				if _, err := g.Do(b.Context(), r, created); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
