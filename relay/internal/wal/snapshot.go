package wal

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// snapshot is a pg_snapshot: the transactions that had ended when it was taken.
type snapshot struct {
	xmin, xmax uint64
	running    []uint64 // between the two, ascending
}

// parseSnapshot parses a pg_snapshot's text: xmin:xmax:running,...
func parseSnapshot(text string) (*snapshot, error) {
	low, rest, ok := strings.Cut(text, ":")
	high, list, ok2 := strings.Cut(rest, ":")
	s := &snapshot{}
	var err, err2 error
	s.xmin, err = strconv.ParseUint(low, 10, 64)
	s.xmax, err2 = strconv.ParseUint(high, 10, 64)
	if !ok || !ok2 || err != nil || err2 != nil {
		return nil, fmt.Errorf("relay: %q is no snapshot", text)
	}
	for x := range strings.SplitSeq(list, ",") {
		if x == "" {
			continue
		}
		n, err := strconv.ParseUint(x, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("relay: %q is no snapshot", text)
		}
		s.running = append(s.running, n)
	}
	slices.Sort(s.running)
	return s, nil
}

// Shows reports whether a committed transaction is in the snapshot. The stream has only the lower half of its id; the
// upper half is that of the id nearest to the snapshot.
func (s *snapshot) Shows(xid uint32) bool {
	x := s.xmax&^0xffffffff | uint64(xid)
	switch {
	case x > s.xmax && x-s.xmax > 1<<31:
		x -= 1 << 32
	case x < s.xmax && s.xmax-x > 1<<31:
		x += 1 << 32
	}
	if x < s.xmin {
		return true
	}
	if x >= s.xmax {
		return false
	}
	_, running := slices.BinarySearch(s.running, x)
	return !running
}
