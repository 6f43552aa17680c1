//go:build failpoints

package proof

import (
	"testing"

	"github.com/effectonce/effectonce/internal/failpoint"
)

// TestFewKills is one cell with a handful of deaths, where they hurt most: beside the effect, and between the ack and
// the settle. It is short enough to be run with one bug after the other, of which it has to find some by the same check
// that [TestKills] ends with; see internal/verify/mutations.
func TestFewKills(t *testing.T) {
	t.Parallel()
	newCell(t).fewKills(t)
}

// TestFewKillsByWatermark is the same with a worker that goes by numbers.
func TestFewKillsByWatermark(t *testing.T) {
	t.Parallel()
	c := cellByWatermark(t)
	c.startAll(t)
	c.fewKills(t)
}

func (c *cell) fewKills(t *testing.T) {
	t.Helper()
	for _, d := range []struct {
		role role
		name failpoint.Name
	}{
		{worker, failpoint.InboxEffect},
		{relaying, failpoint.RelayPublished},
		{worker, failpoint.InboxCommitted},
		{worker, failpoint.InboxEffected},
		{relaying, failpoint.RelaySettled},
	} {
		var w way
		if !c.kill(t, d.role, &w, d.name, 1) {
			t.Errorf("%s is not reached", d.name)
		}
		c.start(t, d.role)
	}
	c.finish(t)
}
