package relay

import (
	"maps"
	"testing"
)

// TestWALOwes: a lane that an earlier reading has published from is owed until everything was read that it may have
// sent.
func TestWALOwes(t *testing.T) {
	t.Parallel()
	f := &follower{since: 100}
	f.mine[3] = streamedLane{fence: 1, before: true}
	f.mine[4] = streamedLane{fence: 1}
	f.pos = 99
	if owed := f.owed(); len(owed.lanes) != 1 || owed.lanes[0] != 3 {
		t.Errorf("at 99 of 100 the lanes %v are owed, want [3]", owed.lanes)
	}
	f.pos = 100
	if owed := f.owed(); len(owed.lanes) != 0 {
		t.Errorf("at 100 of 100 the lanes %v are owed", owed.lanes)
	}
}

// TestWALGuardFollowsPrepare: a transaction that is prepared goes on under another name, and is waited for under that.
func TestWALGuardFollowsPrepare(t *testing.T) {
	t.Parallel()
	guard := holders{"a": {}, "b": {}}
	narrow(guard, holders{"a": {}, "prepared b": {prepared: true}, "c": {}})
	if want := (holders{"a": {}, "prepared b": {prepared: true}}); !maps.Equal(guard, want) {
		t.Errorf("while a is open and b is prepared, %v are waited for, want %v", guard, want)
	}
	narrow(guard, holders{"prepared b": {prepared: true}, "prepared d": {prepared: true}})
	narrow(guard, holders{"c": {}})
	if len(guard) > 0 {
		t.Errorf("when all have ended, %v are waited for", guard)
	}
	narrow(guard, holders{"prepared e": {prepared: true}})
	if len(guard) > 0 {
		t.Errorf("with nobody to wait for, %v are waited for", guard)
	}
}
