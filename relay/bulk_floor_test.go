package relay

import (
	"math"
	"testing"

	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
)

// TestP3BulkNeedsAFloor: until fallen floors are found again, lanes with a backlog are claimed one by one.
func TestP3BulkNeedsAFloor(t *testing.T) {
	t.Parallel()
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{cfg: cfg, lanes: lanes.New(lanes.Pumps)}
	much := lanes.Pace{Last: 1000, Size: 600, Gap: 2}
	k := r.claiming(&session{Session: &pg.Session{}}, []lanes.Grant{
		{Lane: 1, Fence: 1, Next: 1, End: blockSize, Top: math.MaxInt64, Bulk: true, Pace: much},
		{Lane: 2, Fence: 1, Next: 1, End: blockSize, Top: math.MaxInt64, Bulk: true, Pace: much, Falls: 1},
		{Lane: 3, Fence: 1, Next: 1, End: blockSize, Top: math.MaxInt64, Bulk: true, Pace: much, Falls: 1, Reach: 900},
	})
	if got := k.plain.lanes; len(got) != 1 || got[0] != 2 {
		t.Errorf("lanes %v are claimed one by one, want 2", got)
	}
	if got := k.bulk.lanes; len(got) != 2 || got[0] != 1 || got[1] != 3 {
		t.Errorf("lanes %v are read in bulk, want 1 and 3", got)
	}
}

// TestP3_2_ClaimFitsIntoBlock: a lane whose block has fewer numbers left than a claim may use reserves another block.
func TestP3_2_ClaimFitsIntoBlock(t *testing.T) {
	t.Parallel()
	cfg, err := Config{ClaimEvents: 60}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{cfg: cfg, lanes: lanes.New(lanes.Pumps)}
	k := r.claiming(&session{Session: &pg.Session{}}, []lanes.Grant{
		{Lane: 1, Fence: 1, Next: 1, End: 20},
		{Lane: 2, Fence: 1, Next: 2, End: 20},
		{Lane: 3, Fence: 1, Next: 21, End: 20},
	})
	if got := k.reserve.lanes; len(got) != 2 || got[0] != 2 || got[1] != 3 {
		t.Errorf("lanes %v begin another block of 20 numbers, want 2 and 3", got)
	}
}
