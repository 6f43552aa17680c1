package publisher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// The scopes of a refusal.
const (
	ScopeRecord = "record" // this event, and no other for the same reason
	ScopeTopic  = "topic"  // whatever is sent to the topic
)

// ErrNotSent is matched by the verdict of an event that this call did not send, because an earlier event of its
// partition was not acknowledged or because the call was told to stop. Whether an earlier call wrote it is not known.
var ErrNotSent = errors.New("not sent")

// ErrClosed is matched by verdicts of a Kafka that was closed.
var ErrClosed = errors.New("publisher: closed")

// Rejection is a certain refusal: the event will not be written until something changes. Nor was it, but see
// MaybeWritten.
type Rejection struct {
	Topic     string
	Partition int         // -1 when the topic as a whole refuses
	Code      kafka.Error // the broker's error code
	Err       error       // the broker's error with its own words
	scope     string
	maybe     bool
}

// Rejected is true: a refusal is certain.
func (r *Rejection) Rejected() bool { return true }

// MaybeWritten reports whether the answer to an earlier request of the same call was lost: the event was refused when
// it was sent again, and the first one may have written it.
func (r *Rejection) MaybeWritten() bool { return r.maybe }

// Scope is ScopeRecord or ScopeTopic.
func (r *Rejection) Scope() string { return r.scope }

// RefusalCode is the broker's error by Kafka's own name, as operators search for it, such as "MESSAGE_TOO_LARGE".
func (r *Rejection) RefusalCode() string {
	switch r.Code {
	case 0:
		return "REFUSED"
	case kafka.MessageSizeTooLarge: // kafka-go has another name for it
		return "MESSAGE_TOO_LARGE"
	}
	return strings.ToUpper(strings.ReplaceAll(r.Code.Title(), " ", "_"))
}

// Unwrap returns the broker's error.
func (r *Rejection) Unwrap() error { return r.Err }

// Error says what was refused and why.
func (r *Rejection) Error() string {
	return fmt.Sprintf("publisher: topic %s refuses this %s: %v", r.Topic, r.scope, r.Err)
}

// PartitionsChangedError refuses a topic whose partition count is no longer the pinned one: with another count keys
// move to other partitions, and their order is lost on the way.
type PartitionsChangedError struct {
	Topic         string
	Pinned, Found int
}

// Rejected is true: nothing was sent.
func (e *PartitionsChangedError) Rejected() bool { return true }

// Scope is ScopeTopic.
func (e *PartitionsChangedError) Scope() string { return ScopeTopic }

// Error names both counts and what an operator does about them.
func (e *PartitionsChangedError) Error() string {
	return fmt.Sprintf("publisher: topic %s has %d partitions and is pinned to %d: a changed count moves keys to "+
		"other partitions; "+
		"let everything published so far be consumed, then run `relay topics accept`", e.Topic, e.Found, e.Pinned)
}

// notSentError gives the reason of an ErrNotSent.
type notSentError struct {
	what  string
	cause error
}

func (e *notSentError) Error() string {
	return "publisher: not sent: " + e.what + ": " + e.cause.Error()
}

// NotSent is true: this call did not send the event.
func (e *notSentError) NotSent() bool { return true }

func (e *notSentError) Unwrap() []error { return []error{ErrNotSent, e.cause} }

// behind is the verdict of what stands behind an event that was not acknowledged. It is not a rejection even when its
// cause is: only the text of the cause is kept.
func behind(cause error) error {
	return &notSentError{"an earlier event of its partition was not acked", errors.New(cause.Error())}
}

func stopped(cause error) error { return &notSentError{"told to stop", cause} }

// class is what to do about a request that was not acknowledged.
type class int

const (
	unknown     class = iota // the relay sends it again
	misrouted                // certainly or probably not written; ask for the leader and repeat at once
	tooLarge                 // split; one record alone is refused
	badRecord                // some record of the batch is refused, nothing was written
	topicRefuse              // nothing can be written to the topic
	noTopic                  // the broker does not know the topic: refused after a grace
)

// classify sorts what Kafka answered and what the way to it answered.
func classify(err error) class {
	var code kafka.Error
	if errors.As(err, &code) {
		return classifyCode(code)
	}
	switch {
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition),
		errors.Is(err, protocol.ErrNoLeader):
		// The transport's cached metadata says so. It says the same when it could reach no broker at all.
		return misrouted
	case errors.Is(err, context.DeadlineExceeded):
		return unknown
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		// Most often a pooled connection that the broker closed while it was idle. The same batch again keeps the
		// order.
		return misrouted
	}
	return unknown
}

// answerLost reports whether a request that failed so may have been written: no broker has answered, and it was not the
// transport that found nobody to send it to.
func answerLost(err error) bool {
	var code kafka.Error
	if errors.As(err, &code) {
		return classifyCode(code) == unknown || code == kafka.KafkaStorageError
	}
	return !errors.Is(err, protocol.ErrNoTopic) && !errors.Is(err, protocol.ErrNoPartition) &&
		!errors.Is(err, protocol.ErrNoLeader)
}

func classifyCode(code kafka.Error) class {
	switch code {
	case kafka.NotLeaderForPartition, kafka.LeaderNotAvailable, kafka.BrokerNotAvailable, kafka.ReplicaNotAvailable,
		kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch, kafka.KafkaStorageError, kafka.UnknownTopicID,
		kafka.InconsistentTopicID:
		return misrouted
	case kafka.UnknownTopicOrPartition:
		return noTopic
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge:
		return tooLarge
	case kafka.InvalidRecord:
		return badRecord
	case kafka.TopicAuthorizationFailed, kafka.InvalidTopic, kafka.PolicyViolation, kafka.UnsupportedForMessageFormat,
		kafka.UnsupportedCompressionType,
		// Timestamps are ours, of the moment of publishing: a clock that is wrong must not park every key it touches.
		kafka.InvalidTimestamp:
		return topicRefuse
	}
	// Among these: failed authentication and ClusterAuthorizationFailed, which are no refusal of records.
	return unknown
}

func rejection(scope, topic string, partition int, err error) *Rejection {
	r := &Rejection{Topic: topic, Partition: partition, Err: err, scope: scope}
	_ = errors.As(err, &r.Code) // stays 0 when no broker said it
	return r
}

// isRejection reports whether err is a certain refusal, of whatever type.
func isRejection(err error) bool {
	var r interface{ Rejected() bool }
	return errors.As(err, &r) && r.Rejected()
}
