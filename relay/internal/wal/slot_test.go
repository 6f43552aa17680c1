package wal

import (
	"strings"
	"testing"
)

// TestWAL6SlotAfterFailover: after a failover the relay continues with the slot that the standby has synchronized,
// unless the slot may have passed events that the table does not record as published. Any other slot on a new timeline
// is recreated.
func TestWAL6SlotAfterFailover(t *testing.T) {
	t.Parallel()
	s := &slot{Feed: &Feed{Span: Span}}
	for says, change := range map[string]func(st *state){
		"":                          func(*state) {},
		"it is ahead of what was":   func(st *state) { st.slotConfirmed = st.Confirmed + 1 },
		"on another server or time": func(st *state) { st.promoted = false },
		"it is missing":             func(st *state) { st.exists = false },
		"it is lost":                func(st *state) { st.walStatus = "lost" },
		"made by somebody else":     func(st *state) { st.slot = "" },
	} {
		st := &state{slot: "s", exists: true, promoted: true, Base: 10, slotConfirmed: 90, Confirmed: 100, Now: 200}
		change(st)
		if why := s.Wrong(st); why != says && (says == "" || !strings.Contains(why, says)) {
			t.Errorf("the slot is %q, want %q", why, says)
		}
	}
}
