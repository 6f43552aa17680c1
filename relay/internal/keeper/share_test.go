package keeper

import (
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/relay/internal/lanes"
)

// TestFairShare: all lanes have an owner, and no relay is to own two more than another.
func TestFairShare(t *testing.T) {
	t.Parallel()
	for n := 1; n <= lanes.Count+2; n++ {
		var members []uuid.UUID
		for i := range n {
			members = append(members, uuid.UUID{15: byte(n - i)})
		}
		all, least := 0, lanes.Count/n
		for i := range n {
			share := fairShare(members, uuid.UUID{15: byte(i + 1)})
			if share != least && share != least+1 {
				t.Errorf("one of %d relays is to own %d lanes", n, share)
			}
			all += share
		}
		if all != lanes.Count {
			t.Errorf("%d relays are to own %d lanes", n, all)
		}
	}
	if share := fairShare([]uuid.UUID{{15: 1}}, uuid.UUID{15: 2}); share != 0 {
		t.Errorf("a relay that is no member is to own %d lanes", share)
	}
}
