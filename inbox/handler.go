package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// Handler is the interface between a consumer and the code that handles its events. [Inbox.Each] and [Inbox.Batch]
// return one. A wrapper should embed the Handler, so that it keeps the methods that it does not change:
//
//	type logged struct{ inbox.Handler }
//
//	func (l logged) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
//		outcomes, err := l.Handler.Handle(ctx, events)
//		slog.InfoContext(ctx, "handled", "events", len(events), "error", err)
//		return outcomes, err
//	}
//
// A handler without an inbox is a [HandlerFunc].
type Handler interface {
	// Handle takes the next events of one partition in log order and returns an Outcome for each. It returns when all
	// events are decided, or with an error when it cannot continue. After an error, the outcomes before the first
	// Undecided are durable and their offsets may be committed; no offset from the first Undecided on may be committed.
	// Handle retries retryable errors itself until ctx ends. A [*HaltError] means that the partition stops at an event
	// until an operator acts. Handle may run concurrently for different partitions.
	Handle(ctx context.Context, events []event.Event) ([]Outcome, error)
	// Consumer returns the default Kafka group. Empty: there is no default.
	Consumer() string
	// Prepare is called before the first event is consumed, repeatedly until it succeeds. group is the Kafka group that
	// consumes; empty: none.
	Prepare(ctx context.Context, group string) error
	// Window returns how long ids are remembered. A consumer compares it with the topics' retention. Zero: there is
	// nothing to compare.
	Window() time.Duration
	// Assigned is called when the partition is assigned to this process, before the first Handle and Progress for it.
	Assigned(topic string, partition int32)
	// Revoked is called after the last Handle of a partition that this process gives up, also at shutdown.
	Revoked(ctx context.Context, topic string, partition int32)
	// Progress returns what the database of the effects knows of a partition. A handler that keeps no progress returns
	// a zero Progress.
	Progress(ctx context.Context, topic string, partition int32) (Progress, error)
	// Begin records where a consumer begins a partition, before the first Handle for it, and again when the log is
	// another one. The partition's progress becomes next; if that is negative, the progress stays. If b.Decided is not
	// zero, nothing changes, and events below the progress come again.
	Begin(ctx context.Context, topic string, partition int32, next int64, b Beginning) error
	// Absent tells that the log has no record for a consumer at the offsets from from to below to: markers of
	// transactions, or what was aborted or compacted. Every event before them is decided.
	Absent(topic string, partition int32, from, to int64)
	// Resumed reports whether an operator resumed a halted partition. A consumer polls it, also for partitions that are
	// not halted: a [*DatabaseChangedError] tells that one without events has lost its progress.
	Resumed(ctx context.Context, topic string, partition int32) (bool, error)
}

// HandlerFunc is a Handler without an inbox. Events may reach it more than once, the restore of a database is not
// noticed, and a halted partition waits for its next assignment. Do not convert another Handler's Handle method to a
// HandlerFunc: embed that Handler.
type HandlerFunc func(ctx context.Context, events []event.Event) ([]Outcome, error)

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, events []event.Event) ([]Outcome, error) {
	return f(ctx, events)
}

// Consumer returns "".
func (HandlerFunc) Consumer() string { return "" }

// Prepare does nothing.
func (HandlerFunc) Prepare(context.Context, string) error { return nil }

// Window returns zero.
func (HandlerFunc) Window() time.Duration { return 0 }

// Assigned does nothing.
func (HandlerFunc) Assigned(string, int32) {}

// Revoked does nothing.
func (HandlerFunc) Revoked(context.Context, string, int32) {}

// Progress returns that nothing is kept.
func (HandlerFunc) Progress(context.Context, string, int32) (Progress, error) { return Progress{}, nil }

// Begin does nothing.
func (HandlerFunc) Begin(context.Context, string, int32, int64, Beginning) error { return nil }

// Absent does nothing.
func (HandlerFunc) Absent(string, int32, int64, int64) {}

// Progress is what the database of the effects knows of a partition.
type Progress struct {
	// Kept is false if the handler keeps no progress: its partitions begin at the group's offsets.
	Kept bool
	// Next is the offset up to which all events are decided. It may lag by some seconds. It is -1 if nothing of the
	// partition is known.
	Next int64
	// Beside is another consumer that the same program runs, or has run, that began the topic before this one first
	// started, and that has decided events of it, if this one has read nothing of it. Empty: there is none.
	Beside string
	// Beginning is where the consumer began the partition. If nothing of the partition is known, it has what other
	// partitions of the topic tell: a Log and the number of Partitions.
	Beginning
}

// Beginning is where a consumer begins a partition.
type Beginning struct {
	// Log is the id that Kafka gave to the topic when it was created: the offsets are of this log. It is zero if it is
	// not known.
	Log uuid.UUID
	// Offset is the first offset that the consumer reads, or has read.
	Offset int64
	// Partitions is how many partitions the topic had when the consumer first saw it. Those that were added later begin
	// at their first record.
	Partitions int32
	// Reason says why the consumer began there, for people.
	Reason string
	// Lost says why the log lacks records that the consumer had not read, for people. Empty: it lacks none.
	Lost string
	// Cut says that the log was cut at the next offset: what it has from there on was never decided.
	Cut bool
	// Decided is the handler's progress, if it is certainly of this log and the group's offset is below it: what is in
	// between is read again. Zero: nothing is, or that is not certain.
	Decided int64
}

// Resumed returns false: a HandlerFunc has no place to record it.
func (HandlerFunc) Resumed(context.Context, string, int32) (bool, error) { return false, nil }

// Outcome is the result of handling an event.
type Outcome int

const (
	// Undecided: nothing durable happened; the event must be handled again.
	Undecided Outcome = iota
	// Applied: the effect and the event's inbox row are committed together.
	Applied
	// Duplicate: the inbox already had the event's id, or an operator has skipped its offset; its effect did not run.
	Duplicate
	// Skipped: the effect returned [Skip]; only the id was recorded.
	Skipped
	// Parked: the event waits for an operator in the list of its key, or alone.
	Parked
	// Quarantined: the inbox cannot tell whether the event was applied; the event waits for an operator, alone.
	Quarantined
)

// String returns the outcome as a lower-case word, as used in metrics and logs.
func (o Outcome) String() string {
	names := [...]string{"undecided", "applied", "duplicate", "skipped", "parked", "quarantined"}
	if o < 0 || int(o) >= len(names) {
		return fmt.Sprintf("outcome(%d)", int(o))
	}
	return names[o]
}

// HaltError is returned when an event cannot be decided and its partition stops before it.
type HaltError struct {
	// Event is the event without its payload, key and headers.
	Event event.Event
	// Attempts is how often the effect ran.
	Attempts int
	// Err is the cause: the last error of the effect or of the inbox.
	Err error
}

// bare returns the event without the fields that must not be logged.
func bare(e event.Event) event.Event {
	e.Payload, e.Key, e.Headers, e.Raw = nil, "", nil, nil
	return e
}

// Error returns a message with the event, the attempts and the last error.
func (e *HaltError) Error() string {
	return fmt.Sprintf("inbox: event %s (%s) at %s/%d offset %d halts its partition after %d attempts: %v",
		e.Event.ID, e.Event.Type, e.Event.Topic, e.Event.Position.Partition, e.Event.Position.Offset, e.Attempts, e.Err)
}

// Unwrap returns the last error.
func (e *HaltError) Unwrap() error { return e.Err }
