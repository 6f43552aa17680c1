package relay

import (
	"context"
	"errors"
	"strings"

	"github.com/effectonce/effectonce/event"
)

// Publisher sends events to where consumers read them. Package publisher has the one for Kafka.
//
// Publish returns one verdict per event, in a slice of the same length: nil means acked, durable where it was sent. An
// error with a method Rejected() bool that returns true means refused for certain: sending the same event again cannot
// succeed until somebody changes something. Its method Scope() string, if it has one, says what is refused: "record"
// (the event; the default) or "topic" (whatever goes there); its method RefusalCode() string gives operators a name to
// search by. Any other error means that the outcome is unknown: it may have been written, and it will be sent again; a
// method NotSent() bool that returns true says that this call, at least, did not send it. A refusal whose method
// MaybeWritten() bool returns true came after an attempt of the same call whose outcome is unknown.
//
// Events come in the order in which they must be written. A publisher must not send an event of a partition after one
// of the same partition, of this or an earlier call, that is neither acked nor known never to be written late in its
// place: first occurrences must be in order. It must be safe for concurrent calls. It should finish what is in flight
// when ctx ends, for a bounded time, and must send nothing new. It must not keep the slice: the next claim overwrites
// it.
//
// A publisher whose topics have partitions should be a [Router] too: a partition that does not answer is then held
// while the others go on. Without, every topic counts as one partition.
type Publisher interface {
	Publish(ctx context.Context, events []event.Event) []error
}

// Router is a [Publisher] that can tell where events go before it sends them.
type Router interface {
	// Route returns the function that gives the partition of a topic's events, as Publish would choose it now. An error
	// says that it cannot be known at the moment; it should come at once, or when ctx ends.
	Route(ctx context.Context, topic string) (partition func(e *event.Event) int32, err error)
}

// Reacher is a [Publisher] that can tell whether it reaches what it publishes to. A relay without lanes asks at each
// heartbeat: while it gets an error it takes no lanes from other relays, nor free ones that they may take.
type Reacher interface {
	// Reach returns nil when something answers. It ends when ctx does.
	Reach(ctx context.Context) error
}

// The scopes of a refusal.
const (
	scopeRecord = "record"
	scopeTopic  = "topic"
)

// rejected reports whether a verdict is a certain refusal, and of what.
func rejected(err error) (scope string, ok bool) {
	var r interface{ Rejected() bool }
	if !errors.As(err, &r) || !r.Rejected() {
		return "", false
	}
	var s interface{ Scope() string }
	if errors.As(err, &s) && s.Scope() == scopeTopic {
		return scopeTopic, true
	}
	return scopeRecord, true
}

// notSent reports whether a verdict says that the call did not send the event.
func notSent(err error) bool {
	var n interface{ NotSent() bool }
	return errors.As(err, &n) && n.NotSent()
}

// maybeWritten reports whether a refusal came after an attempt whose outcome is unknown.
func maybeWritten(err error) bool {
	var m interface{ MaybeWritten() bool }
	return errors.As(err, &m) && m.MaybeWritten()
}

// longestReason bounds what is stored of a refusal.
const longestReason = 1000

// reasonOf is a refusal as an operator reads it: a code to search by, and the broker's words, fit for a text column.
func reasonOf(err error) (code, reason string) {
	code = "REFUSED"
	var c interface{ RefusalCode() string }
	if errors.As(err, &c) {
		code = c.RefusalCode()
	}
	reason = strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "?"), "\x00", "?")
	if len(reason) > longestReason {
		reason = strings.ToValidUTF8(reason[:longestReason], "") + "..."
	}
	return strings.ReplaceAll(strings.ToValidUTF8(code, "?"), "\x00", "?"), reason
}
