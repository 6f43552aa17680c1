package signal_test

import (
	"testing"

	"github.com/effectonce/effectonce/relay/internal/signal"
)

// TestSignals: a signal that is given twice is heard once, by the one that it is for.
func TestSignals(t *testing.T) {
	t.Parallel()
	s := signal.New(2)
	for range 2 {
		s.Probe()
		s.Beat()
		s.Kick()
	}
	for name, heard := range map[string]int{
		"Probes": len(s.Probes), "Beats": len(s.Beats), "Kicks[0]": len(s.Kicks[0]), "Kicks[1]": len(s.Kicks[1]),
	} {
		if heard != 1 {
			t.Errorf("%s: heard %d times, want once", name, heard)
		}
	}
	if len(s.Wakes) > 0 {
		t.Error("what the relay tells itself ends its sleep")
	}
	if s.Wake(); len(s.Wakes) != 1 || len(s.Probes) != 1 {
		t.Error("Wake is not heard as one")
	}
}
