package consumer

import (
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/inbox"
)

// Observer has callbacks for metrics and alarms. A nil callback is skipped. The goroutines of several partitions call
// them concurrently, so they must not block. The panic of a callback is logged, and ends nothing.
type Observer struct {
	// Assigned is called when a generation begins, with the member's partitions. A member without partitions is a
	// standby.
	Assigned func(generation int32, partitions []Partition)
	// Handled is called after each Handle, with the number of events, the outcomes of the decided ones, and the
	// duration.
	Handled func(p Partition, events int, outcomes []inbox.Outcome, took time.Duration)
	// Committed is called after a partition's offset was committed: the offset of the next event to handle.
	Committed func(p Partition, offset int64)
	// Halted is called when a partition stops and needs an operator.
	Halted func(Halt)
	// Resumed is called when a halted partition continues because an operator resumed it.
	Resumed func(p Partition)
	// Forgotten is called when events before the group's committed offset were applied. The handler's database was
	// restored from a backup, or an operator moved the group's offset forward.
	Forgotten func(ForgottenRange)
	// Repeated is called after a Handle of events that the handler's database had decided before the partition was
	// assigned, because the group's offset was behind it. dropped counts the duplicates; applied counts the events that
	// were applied because their ids were not in the database.
	Repeated func(p Partition, dropped, applied int)
	// Lost is called when Kafka no longer has unread records, and when the log ends before the known offset because the
	// topic was recreated or truncated.
	Lost func(LostRange)
	// Outage is called when Kafka becomes unusable (up is false, err is the first error) and when it is usable again.
	Outage func(up bool, err error)
}

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
