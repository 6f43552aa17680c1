package pg_test

import (
	"maps"
	"testing"

	"github.com/effectonce/effectonce/relay/internal/pg"
)

// TestWALGuardFollowsPrepare: a transaction gets another name when it is prepared, and the guard waits for it under
// that name.
func TestWALGuardFollowsPrepare(t *testing.T) {
	t.Parallel()
	guard := pg.Holders{"a": {}, "b": {}}
	guard.Keep(pg.Holders{"a": {}, "prepared b": {Prepared: true}, "c": {}}, nil)
	if want := (pg.Holders{"a": {}, "prepared b": {Prepared: true}}); !maps.Equal(guard, want) {
		t.Errorf("while a is open and b is prepared, the guard waits for %v, want %v", guard, want)
	}
	guard.Keep(pg.Holders{"prepared b": {Prepared: true}, "prepared d": {Prepared: true}}, nil)
	guard.Keep(pg.Holders{"c": {}}, nil)
	if len(guard) > 0 {
		t.Errorf("after the end of all, the guard waits for %v", guard)
	}
	guard.Keep(pg.Holders{"prepared e": {Prepared: true}}, nil)
	if len(guard) > 0 {
		t.Errorf("with no transaction to wait for, the guard waits for %v", guard)
	}
	guard = pg.Holders{"a": {XID: "7"}}
	renamed, other, unknown := pg.Holder{Prepared: true, XID: "7"}, pg.Holder{Prepared: true, XID: "8"},
		pg.Holder{Prepared: true}
	guard.Keep(pg.Holders{"prepared a": renamed, "prepared f": other, "prepared": unknown}, nil)
	if want := (pg.Holders{"prepared a": renamed, "prepared": unknown}); !maps.Equal(guard, want) {
		t.Errorf("one transaction of another id is prepared, and one of an unknown id: the guard waits for %v, want %v",
			guard, want)
	}
}
