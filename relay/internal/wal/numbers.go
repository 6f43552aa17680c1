package wal

const (
	ordinalBits = 20
	// step is a power of two below the distance between two commit records.
	step = 5
	// MostNumbers is how many events of a transaction get a number; the others are left to the table.
	MostNumbers = 1 << ordinalBits
	// Span is the length of the WAL that the numbers of one base cover: 256 TiB. From half of it on, a new slot begins
	// with another base; from three quarters on, another slot is made. A new incarnation begins with a base.
	Span = int64(1) << (63 - ordinalBits + step)
)

// numbers gives events their numbers.
type numbers struct {
	Base uint64 // the position that they count from
	Span int64  // the bytes of WAL that they cover: [Span]
	Most int32  // per transaction: [MostNumbers]
}

// Of returns an event's number: the position of its transaction's commit in the WAL, and the event's ordinal in the
// transaction. The same event always gets the same number.
func (n *numbers) Of(it *item) int64 {
	return int64((it.Commit-n.Base)>>step<<ordinalBits) + int64(it.Nth) + 1
}

// Ended reports whether the base has no numbers left for an event's transaction.
func (n *numbers) Ended(it *item) bool { return it.Commit-n.Base >= uint64(n.Span) }

// Have reports whether an event has a number. One without a number is published from the table.
func (n *numbers) Have(it *item) bool { return it.Nth < n.Most && !n.Ended(it) }
