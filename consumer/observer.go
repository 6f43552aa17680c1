package consumer

import (
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/inbox"
)

// Observer has callbacks for metrics and alarms. A nil callback is skipped. The goroutines of several partitions call
// them concurrently, so they must not block. The panic of a callback is logged, and ends nothing.
type Observer struct {
	// Assigned is called when a generation of the group begins.
	Assigned func(AssignedInfo)
	// Handled is called after each Handle.
	Handled func(HandledInfo)
	// Committed is called after a partition's offset was committed.
	Committed func(CommittedInfo)
	// Halted is called when a partition stops and needs an operator.
	Halted func(Halt)
	// Resumed is called when a halted partition continues because an operator resumed it.
	Resumed func(Partition)
	// Forgotten is called when events before the group's committed offset were applied. The handler's database was
	// restored from a backup, or an operator set the group's offset forward.
	Forgotten func(ForgottenRange)
	// Repeated is called after a Handle of events that the handler's database had decided before the partition was
	// assigned, because the group's offset was below it.
	Repeated func(RepeatedInfo)
	// Lost is called when Kafka no longer has unread records, and when the log ends before the known offset because the
	// topic was recreated or truncated.
	Lost func(LostRange)
	// Outage is called when Kafka becomes unusable, and when it is usable again.
	Outage func(OutageInfo)
}

// AssignedInfo describes a generation of the group for this member.
type AssignedInfo struct {
	Generation int32
	Partitions []Partition // none: the member is a standby
}

// HandledInfo describes one Handle.
type HandledInfo struct {
	Partition
	Events   int             // that were passed to the handler
	Outcomes []inbox.Outcome // of the decided ones, in their order
	Took     time.Duration
}

// CommittedInfo describes the commit of a partition's offset.
type CommittedInfo struct {
	Partition
	Offset int64 // of the next event to handle
}

// RepeatedInfo counts the events of one Handle that the handler's database had decided before.
type RepeatedInfo struct {
	Partition
	Dropped int // duplicates
	Applied int // applied again, because their ids were not in the database
}

// OutageInfo says that Kafka became unusable (Err is the first error), or usable again (Err is nil).
type OutageInfo struct{ Err error }

// Partition identifies a partition of a topic.
type Partition struct {
	Topic string `json:"topic"`
	ID    int32  `json:"partition"`
}

// Halt describes where and why a partition stopped.
type Halt struct {
	Partition
	// Offset is the first undecided offset. No later offset is committed.
	Offset int64 `json:"offset"`
	// EventID is the id of the event at Offset. It is zero if the halt is not about one event.
	EventID uuid.UUID `json:"event_id"`
	// Err is the cause. This package puts no payload into it; the text of the handler's own errors is kept.
	Err error `json:"-"`
	// Since is when the partition stopped.
	Since time.Time `json:"since"`
}

// ForgottenRange is a range of offsets that the group had committed and the handler's database had not fully decided.
// To is exclusive.
type ForgottenRange struct {
	Partition
	From, To int64
	Applied  int // events of the range that were applied
}

// LostRange is a range of offsets that Kafka removed before they were read. To is exclusive. An empty range means that
// the log ends before From, the offset up to which events were decided. The topic was recreated or truncated, and the
// number of unread records is unknown.
type LostRange struct {
	Partition
	From, To int64
}
