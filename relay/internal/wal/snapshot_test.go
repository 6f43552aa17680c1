package wal

import "testing"

// TestWALSnapshot: which transactions a snapshot shows, also where 32-bit ids wrap around.
func TestWALSnapshot(t *testing.T) {
	s, err := parseSnapshot("4294967290:4294967305:4294967295,4294967300")
	if err != nil {
		t.Fatal(err)
	}
	for xid, want := range map[uint32]bool{
		4294967289: true, 4294967290: true, 4294967295: false, 0: true, 3: true, 4: false, 8: true, 9: false,
		100: false,
	} {
		if s.Shows(xid) != want {
			t.Errorf("Shows(%d) = %v", xid, !want)
		}
	}
	for _, text := range []string{"", "1", "1:2", "1:2:x", "a:2:"} {
		if _, err := parseSnapshot(text); err == nil {
			t.Errorf("%q was parsed", text)
		}
	}
}
