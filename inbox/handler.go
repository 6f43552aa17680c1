package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/event"
)

// Handler is all that a consumer asks of what it feeds. [Inbox.Each] and [Inbox.Batch] return one. Wrap it by
// embedding, so that what the wrapper does not change stays:
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
	// Handle takes the next events of one partition in log order and returns an Outcome for each. It returns when every
	// event is decided, or with an error when it cannot go on; then the outcomes before the first Undecided are durable
	// and their offsets may be committed, and nothing from the first Undecided on may be. It retries what is worth
	// retrying by itself, for as long as ctx lives. An error that is a [*HaltError] says that the partition stops at an
	// event until somebody acts. Handlers of different partitions run at the same time.
	Handle(ctx context.Context, events []event.Event) ([]Outcome, error)
	// Consumer is the default of the Kafka group. Empty: there is none.
	Consumer() string
	// Prepare is called before anything is consumed, again and again until it succeeds. group is the Kafka group that
	// consumes; empty: none.
	Prepare(ctx context.Context, group string) error
	// Window is how long ids are remembered, to compare with what the topics keep. Zero: there is nothing to compare.
	Window() time.Duration
	// Assigned is called before the first Handle of a partition that this process was given, and before its Progress.
	Assigned(topic string, partition int32)
	// Revoked is called behind the last Handle of a partition that this process gives away, also when it ends.
	Revoked(ctx context.Context, topic string, partition int32)
	// Progress is the offset up to which everything of a partition is decided in the database of the effects. It may be
	// some seconds behind. Not known: nothing of the partition was decided there, or no account is kept.
	Progress(ctx context.Context, topic string, partition int32) (next int64, known bool, err error)
	// Resumed reports whether an operator let a halted partition go on. It is asked now and then.
	Resumed(ctx context.Context, topic string, partition int32) (bool, error)
}

// HandlerFunc is a Handler that remembers nothing: events may come to it more than once, a database that was restored
// is not noticed, and a halted partition waits for the next assignment. Do not make one of another Handler's Handle:
// embed that Handler.
type HandlerFunc func(ctx context.Context, events []event.Event) ([]Outcome, error)

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, events []event.Event) ([]Outcome, error) {
	return f(ctx, events)
}

// Consumer has no name to give.
func (HandlerFunc) Consumer() string { return "" }

// Prepare has nothing to do.
func (HandlerFunc) Prepare(context.Context, string) error { return nil }

// Window is zero.
func (HandlerFunc) Window() time.Duration { return 0 }

// Assigned does nothing.
func (HandlerFunc) Assigned(string, int32) {}

// Revoked does nothing.
func (HandlerFunc) Revoked(context.Context, string, int32) {}

// Progress keeps no account.
func (HandlerFunc) Progress(context.Context, string, int32) (next int64, known bool, err error) {
	return 0, false, nil
}

// Resumed is false: there is nowhere to write that down.
func (HandlerFunc) Resumed(context.Context, string, int32) (bool, error) { return false, nil }

// Outcome is what became of an event.
type Outcome int

const (
	// Undecided: nothing durable was done, the event must be handled again.
	Undecided Outcome = iota
	// Applied: the effect and the event's inbox row are committed together.
	Applied
	// Duplicate: the event's id was in the inbox already; its effect was not run.
	Duplicate
	// Skipped: the effect returned [Skip]; the id is in the inbox and nothing else was kept.
	Skipped
	// Parked: the event waits in the list of its key for a person.
	Parked
	// Quarantined: the event's age makes it impossible to tell whether it was applied; it waits for a person, alone.
	Quarantined
)

// String returns the outcome as a lower-case word, as metrics and logs show it.
func (o Outcome) String() string {
	names := [...]string{"undecided", "applied", "duplicate", "skipped", "parked", "quarantined"}
	if o < 0 || int(o) >= len(names) {
		return fmt.Sprintf("outcome(%d)", int(o))
	}
	return names[o]
}

// HaltError says that an event cannot be decided and that its partition stops before it.
type HaltError struct {
	// Event is the event without its payload, key and headers.
	Event event.Event
	// Attempts is how often its effect ran.
	Attempts int
	// Err is why: the last error of the effect, or of the inbox itself.
	Err error
}

// bare is the event without what must not reach a log.
func bare(e event.Event) event.Event {
	e.Payload, e.Key, e.Headers, e.Raw = nil, "", nil, nil
	return e
}

// Error names the event, the attempts and the last error.
func (e *HaltError) Error() string {
	return fmt.Sprintf("inbox: event %s (%s) at %s/%d offset %d halts its partition after %d attempts: %v",
		e.Event.ID, e.Event.Type, e.Event.Topic, e.Event.Position.Partition, e.Event.Position.Offset, e.Attempts, e.Err)
}

// Unwrap returns the last error.
func (e *HaltError) Unwrap() error { return e.Err }
