package relay

import (
	"maps"
	"testing"
)

// TestWALPending: a lane that an earlier reading has published from is pending until everything was read that it may
// have sent.
func TestWALPending(t *testing.T) {
	t.Parallel()
	f := &follower{since: 100}
	f.mine[3] = streamedLane{fence: 1, before: true}
	f.mine[4] = streamedLane{fence: 1}
	f.pos = 99
	if pending := f.pendingLanes(); len(pending.lanes) != 1 || pending.lanes[0] != 3 {
		t.Errorf("at 99 of 100 the lanes %v are pending, want [3]", pending.lanes)
	}
	f.pos = 100
	if pending := f.pendingLanes(); len(pending.lanes) != 0 {
		t.Errorf("at 100 of 100 the lanes %v are pending", pending.lanes)
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
