package wal

import "testing"

// TestWALPending: a lane from which an earlier session has published is pending until the relay has read everything
// that session may have sent.
func TestWALPending(t *testing.T) {
	t.Parallel()
	f := &follower{since: 100}
	f.mine[3] = streamedLane{fence: 1, before: true}
	f.mine[4] = streamedLane{fence: 1}
	f.pos = 99
	if pending := f.pendingLanes(); len(pending.Lanes) != 1 || pending.Lanes[0] != 3 {
		t.Errorf("at 99 of 100 the lanes %v are pending, want [3]", pending.Lanes)
	}
	f.pos = 100
	if pending := f.pendingLanes(); len(pending.Lanes) != 0 {
		t.Errorf("at 100 of 100 the lanes %v are pending", pending.Lanes)
	}
}
