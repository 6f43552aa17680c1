package keys

import (
	"errors"
	"fmt"
	"slices"
)

// ErrTooFarAhead is Watermark.Add's: the number would leave more missing below it than the watermark may remember.
var ErrTooFarAhead = errors.New("number too far ahead of the watermark")

// Watermark remembers which numbers of one source were done, in the room of those that were done out of turn.
//
// When to choose it: a source numbers its requests without holes, and one row for the source is better than one for
// each request: an importer, a device, a queue's partition. Cost: the row is written, and locked, with each effect, in
// its transaction, so that one source's requests go one by one. Trap: the highest number alone is not enough. A takes
// 100 and B takes 101, B is done first: who remembers only 101 drops 100 as done. So Low moves only over numbers that
// are all done, and Above holds the rest; and a number that never comes holds Low back for ever, which Add's bound
// turns into an error.
//
// The numbers of our own relay's lanes have none of these holes: the inbox's deduplication by watermark uses them. A
// position in the WAL (the relay's WAL source: commit LSN and place in the transaction) and a partition's offset
// (event.RecordID) are such numbers only together with the timeline, or with the topic's incarnation: a promotion, a
// restore or a topic made again starts them over.
type Watermark struct {
	// Low: this number and all below it are done. A source that begins with 0 starts with a Low of -1.
	Low int64 `json:"low"`
	// Above are the numbers beyond Low that are done, ascending; Low+1 is never among them.
	Above []int64 `json:"above,omitempty"`
}

// Has says whether a number is done.
func (w Watermark) Has(n int64) bool {
	_, found := slices.BinarySearch(w.Above, n)
	return n <= w.Low || found
}

// Add notes that a number is done, and returns false when it was already. It returns ErrTooFarAhead, and notes nothing,
// when n is more than ahead beyond Low. Above is a new slice after it: a copy of the watermark made before stays as it
// was.
func (w *Watermark) Add(n int64, ahead int64) (bool, error) {
	at, found := slices.BinarySearch(w.Above, n)
	if n <= w.Low || found {
		return false, nil
	}
	// Both may be far from zero, and their difference beyond an int64: as a uint64 it is exact, for n is the greater.
	if uint64(n)-uint64(w.Low) > uint64(max(ahead, 0)) {
		return false, fmt.Errorf("%w: %d of %d", ErrTooFarAhead, n, w.Low)
	}
	above := slices.Insert(slices.Clone(w.Above), at, n)
	for len(above) > 0 && above[0] == w.Low+1 {
		w.Low++
		above = above[1:]
	}
	w.Above = above
	return true, nil
}
