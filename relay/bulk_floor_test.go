package relay

import (
	"math"
	"testing"
)

// TestP3BulkNeedsAFloor: while the floors have fallen and are not found again, lanes that have much are claimed the
// ordinary way.
func TestP3BulkNeedsAFloor(t *testing.T) {
	t.Parallel()
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{cfg: cfg, lanes: newLaneTable()}
	much := pace{last: 1000, size: 600, gap: 2}
	k := r.claiming(&session{}, []grant{
		{lane: 1, fence: 1, next: 1, end: blockSize, top: math.MaxInt64, bulk: true, pace: much},
		{lane: 2, fence: 1, next: 1, end: blockSize, top: math.MaxInt64, bulk: true, pace: much, falls: 1},
		{lane: 3, fence: 1, next: 1, end: blockSize, top: math.MaxInt64, bulk: true, pace: much, falls: 1, reach: 900},
	})
	if got := k.plain.lanes; len(got) != 1 || got[0] != 2 {
		t.Errorf("lanes %v are claimed the ordinary way, want 2", got)
	}
	if got := k.bulk.lanes; len(got) != 2 || got[0] != 1 || got[1] != 3 {
		t.Errorf("lanes %v are read in bulk, want 1 and 3", got)
	}
}

// TestP3_2_AClaimFitsIntoItsBlock: a lane whose block has fewer numbers left than a claim may need begins the next one.
func TestP3_2_AClaimFitsIntoItsBlock(t *testing.T) {
	t.Parallel()
	cfg, err := Config{ClaimEvents: 60}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{cfg: cfg, lanes: newLaneTable()}
	k := r.claiming(&session{}, []grant{
		{lane: 1, fence: 1, next: 1, end: 20}, {lane: 2, fence: 1, next: 2, end: 20}, {lane: 3, fence: 1, next: 21, end: 20},
	})
	if got := k.reserve.lanes; len(got) != 2 || got[0] != 2 || got[1] != 3 {
		t.Errorf("lanes %v begin another block for 20 numbers, want 2 and 3", got)
	}
}
