package keys

import (
	"errors"
	"fmt"
	"slices"
)

// ErrTooFarAhead is the error of Watermark.Add for a number that is further beyond Low than its bound.
var ErrTooFarAhead = errors.New("number too far ahead of the watermark")

// Watermark is the set of finished numbers of one source. Its size is the number of those that finished out of order.
//
// When to choose it: a source numbers its requests without gaps, and one row for the source is better than one for each
// request: an importer, a device, a queue's partition. Cost: the row is written, and locked, in each effect's
// transaction, so one source's requests run one at a time. Trap: the highest number alone is not enough: if 101
// finishes before 100, it would drop 100 as finished. So Low moves only over finished numbers, and Above holds the
// rest. A number that never arrives holds Low back without end, which Add's bound turns into an error.
//
// The numbers of a relay's lanes have no gaps: the inbox's deduplication by watermark uses them. A position in the WAL
// and a partition's offset (event.RecordID) identify an event only together with the timeline, or the topic's
// incarnation: a promotion, a restore or a recreated topic begins them anew.
type Watermark struct {
	// Low and all numbers below it are finished. For a source that begins with 0, start with -1.
	Low int64 `json:"low"`
	// Above has the finished numbers beyond Low, ascending, never Low+1.
	Above []int64 `json:"above,omitempty"`
}

// Has reports whether a number is finished.
func (w Watermark) Has(n int64) bool {
	_, found := slices.BinarySearch(w.Above, n)
	return n <= w.Low || found
}

// Add adds a finished number, and returns false if it was finished already. It returns ErrTooFarAhead, and adds
// nothing, if n is more than bound beyond Low. It replaces the slice Above, so earlier copies of the watermark do not
// change.
func (w *Watermark) Add(n int64, bound int64) (bool, error) {
	at, found := slices.BinarySearch(w.Above, n)
	if n <= w.Low || found {
		return false, nil
	}
	// n is greater, so the difference is exact as a uint64, though it may exceed an int64.
	if uint64(n)-uint64(w.Low) > uint64(max(bound, 0)) {
		return false, fmt.Errorf("%w: %d, low is %d", ErrTooFarAhead, n, w.Low)
	}
	above := slices.Insert(slices.Clone(w.Above), at, n)
	for len(above) > 0 && above[0] == w.Low+1 {
		w.Low++
		above = above[1:]
	}
	w.Above = above
	return true, nil
}
