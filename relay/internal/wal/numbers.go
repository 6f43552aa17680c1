package wal

const (
	ordinalBits = 20
	// step is less than the distance of two commits' records, as a power of two.
	step = 5
	// MostNumbers is how many events of a transaction get a number; the others are left to the table.
	MostNumbers = 1 << ordinalBits
	// Span is how much WAL the numbers of one base last for: 256 TiB. From half of it on, a slot that is made begins at
	// another base, and from three quarters on another slot is made. A new incarnation begins with a base.
	Span = int64(1) << (63 - ordinalBits + step)
)

// numbers gives events their numbers.
type numbers struct {
	Base uint64 // the place that they count from
	Span int64  // for how many bytes of WAL they last: [Span]
	Most int32  // per transaction: [MostNumbers]
}

// Of is an event's number: the place of its transaction's commit in the WAL, and its own in the transaction. The same
// event has the same number whenever it is read.
func (n *numbers) Of(it *item) int64 {
	return int64((it.Commit-n.Base)>>step<<ordinalBits) + int64(it.Nth) + 1
}

// Ended reports whether the numbers of the base have come to their end before an event's transaction.
func (n *numbers) Ended(it *item) bool { return it.Commit-n.Base >= uint64(n.Span) }

// Have reports whether there is a number for an event. One without is published from the table.
func (n *numbers) Have(it *item) bool { return it.Nth < n.Most && !n.Ended(it) }
