package inbox

import (
	"context"
	"fmt"

	"github.com/effectonce/effectonce/event"
)

// Handler decides events: it is what a consumer feeds.
//
// Handle takes the next events of one partition in log order and returns an Outcome for each. It returns when every
// event is decided, or with an error when it cannot go on; then the outcomes before the first Undecided are durable and
// their offsets may be committed, and nothing from the first Undecided on may be. It retries what is worth retrying by
// itself, for as long as ctx lives. An error that is a [*HaltError] says that the partition stops at an event until
// somebody acts. Handlers of different partitions run at the same time.
type Handler interface {
	Handle(ctx context.Context, events []event.Event) ([]Outcome, error)
}

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
	switch o {
	case Undecided:
		return "undecided"
	case Applied:
		return "applied"
	case Duplicate:
		return "duplicate"
	case Skipped:
		return "skipped"
	case Parked:
		return "parked"
	case Quarantined:
		return "quarantined"
	}
	return fmt.Sprintf("outcome(%d)", int(o))
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
