package pg_test

import (
	"maps"
	"testing"

	"github.com/effectonce/effectonce/relay/internal/pg"
)

// TestWALGuardFollowsPrepare: a transaction that is prepared goes on under another name, and is waited for under that.
func TestWALGuardFollowsPrepare(t *testing.T) {
	t.Parallel()
	guard := pg.Holders{"a": {}, "b": {}}
	guard.Keep(pg.Holders{"a": {}, "prepared b": {Prepared: true}, "c": {}}, nil)
	if want := (pg.Holders{"a": {}, "prepared b": {Prepared: true}}); !maps.Equal(guard, want) {
		t.Errorf("while a is open and b is prepared, %v are waited for, want %v", guard, want)
	}
	guard.Keep(pg.Holders{"prepared b": {Prepared: true}, "prepared d": {Prepared: true}}, nil)
	guard.Keep(pg.Holders{"c": {}}, nil)
	if len(guard) > 0 {
		t.Errorf("when all have ended, %v are waited for", guard)
	}
	guard.Keep(pg.Holders{"prepared e": {Prepared: true}}, nil)
	if len(guard) > 0 {
		t.Errorf("with nobody to wait for, %v are waited for", guard)
	}
}
