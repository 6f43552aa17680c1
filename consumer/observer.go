package consumer

import (
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/inbox"
)

// Observer has callbacks for metrics and alarms. A nil one is skipped. They are called by the
// goroutines that do the work, of several partitions at the same time, and must not block.
type Observer struct {
	// Assigned is called when a generation begins, with its partitions; an empty list is a standby.
	Assigned func(generation int32, partitions []Partition)
	// Handled is called after each Handle: how many events it got, their outcomes (the rest is undecided), and how long
	// it took.
	Handled func(p Partition, events int, outcomes []inbox.Outcome, took time.Duration)
	// Committed is called when the group's offset of a partition was committed: the offset of the next event to handle.
	Committed func(p Partition, offset int64)
	// Halted is called when a partition stops until somebody acts.
	Halted func(Halt)
	// Resumed is called when an operator let a halted partition go on.
	Resumed func(p Partition)
	// Forgotten is called when events were applied that the group had committed already: the handler's database was
	// restored from a backup, or somebody moved the group's offset forward.
	Forgotten func(ForgottenRange)
	// Repeated is called after a Handle of events that the handler's database had decided already when the partition
	// was assigned, for the group was behind it: how many were dropped as duplicates, and how many were applied,
	// because their ids are not there.
	Repeated func(p Partition, dropped, applied int)
	// Lost is called when records are gone that were never read, and when the log is another one than it was.
	Lost func(LostRange)
	// Outage is called when Kafka cannot be used (up false, with the first error) and when it can be used again.
	Outage func(up bool, err error)
}

// Partition names a partition of a topic.
type Partition struct {
	Topic string `json:"topic"`
	ID    int32  `json:"partition"`
}

// Halt says where and why a partition stopped.
type Halt struct {
	Partition
	// Offset is the first one that is not decided; nothing from it on is committed.
	Offset int64 `json:"offset"`
	// EventID is the event at Offset. Zero when it is not about one event.
	EventID uuid.UUID `json:"event_id"`
	// Err is why. It never contains a payload of ours; the handler's own errors are as they are.
	Err error `json:"-"`
	// Since is when it stopped.
	Since time.Time `json:"since"`
}

// ForgottenRange is a range of offsets that the group had committed and of which the handler's database did not know
// everything. To is exclusive.
type ForgottenRange struct {
	Partition
	From, To int64
	Applied  int // events of it that were not there
}

// LostRange is a range of offsets that Kafka removed before it was read. To is exclusive. An empty one says that the
// log ends before From, up to where it was decided: the topic was made again or was cut off, and nobody can tell how
// much of it was never read.
type LostRange struct {
	Partition
	From, To int64
}
