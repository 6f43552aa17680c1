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
	ScopeRecord = "record" // only this event is refused
	ScopeTopic  = "topic"  // every event of the topic is refused
)

// ErrNotSent is matched by the verdict of an event that this call did not send, because an earlier event of its
// partition was not acknowledged or because the call was told to stop. An earlier call may have written it.
var ErrNotSent = errors.New("not sent")

// ErrClosed is matched by verdicts of a Kafka that was closed.
var ErrClosed = errors.New("publisher: closed")

// Rejection is a certain refusal: the event cannot be written until the topic, the broker or the event changes. It was
// not written, unless MaybeWritten says otherwise.
type Rejection struct {
	Topic     string
	Partition int         // -1 when the topic as a whole refuses
	Code      kafka.Error // the broker's error code
	Err       error       // the broker's error with its message
	scope     string
	maybe     bool
}

// Rejected returns true: the refusal is certain.
func (r *Rejection) Rejected() bool { return true }

// MaybeWritten reports whether the answer to an earlier request of the same call was lost. That request may have
// written the event, which was refused when it was sent again.
func (r *Rejection) MaybeWritten() bool { return r.maybe }

// Scope returns ScopeRecord or ScopeTopic.
func (r *Rejection) Scope() string { return r.scope }

// RefusalCode returns Kafka's name of the error, such as "MESSAGE_TOO_LARGE".
func (r *Rejection) RefusalCode() string {
	switch r.Code {
	case 0:
		return "REFUSED"
	case kafka.MessageSizeTooLarge: // kafka-go names it differently
		return "MESSAGE_TOO_LARGE"
	}
	return strings.ToUpper(strings.ReplaceAll(r.Code.Title(), " ", "_"))
}

// Unwrap returns the broker's error.
func (r *Rejection) Unwrap() error { return r.Err }

// Error names the refused record or topic and the reason.
func (r *Rejection) Error() string {
	return fmt.Sprintf("publisher: topic %s refuses this %s: %v", r.Topic, r.scope, r.Err)
}

// PartitionsChangedError refuses a topic whose partition count is no longer the pinned one: with another count keys
// move to other partitions and lose their order.
type PartitionsChangedError struct {
	Topic         string
	Pinned, Found int
}

// Rejected is true: nothing was sent.
func (e *PartitionsChangedError) Rejected() bool { return true }

// Scope is ScopeTopic.
func (e *PartitionsChangedError) Scope() string { return ScopeTopic }

// Error names both counts and what an operator can do.
func (e *PartitionsChangedError) Error() string {
	return fmt.Sprintf("publisher: topic %s has %d partitions and is pinned to %d: a changed count moves keys to "+
		"other partitions; "+
		"let everything published so far be consumed, then run `relay topics accept`", e.Topic, e.Found, e.Pinned)
}

// notSentError is an ErrNotSent with its reason.
type notSentError struct {
	what  string
	cause error
}

func (e *notSentError) Error() string {
	return "publisher: not sent: " + e.what + ": " + e.cause.Error()
}

// NotSent returns true: this call did not send the event.
func (e *notSentError) NotSent() bool { return true }

func (e *notSentError) Unwrap() []error { return []error{ErrNotSent, e.cause} }

// behind returns the verdict of the events after one that was not acknowledged. It keeps only the text of its cause, so
// it is not a rejection even if the cause is.
func behind(cause error) error {
	return &notSentError{"an earlier event of its partition was not acked", errors.New(cause.Error())}
}

func stopped(cause error) error { return &notSentError{"told to stop", cause} }

// class says how to go on after a request that was not acknowledged.
type class int

const (
	unknown     class = iota // outcome unknown; the relay sends it again
	misrouted                // certainly or probably not written; find the leader and repeat at once
	tooLarge                 // split; a single record is refused
	badRecord                // a record of the batch is refused; nothing was written
	topicRefuse              // nothing can be written to the topic
	noTopic                  // the broker does not know the topic: refused after a grace
)

// classify returns the class of an error of Kafka or of the transport.
func classify(err error) class {
	var code kafka.Error
	if errors.As(err, &code) {
		return classifyCode(code)
	}
	switch {
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition),
		errors.Is(err, protocol.ErrNoLeader):
		// From the transport's cached metadata, which is also empty if it could reach no broker.
		return misrouted
	case errors.Is(err, context.DeadlineExceeded):
		return unknown
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		// Usually the broker closed an idle pooled connection. Repeating the same batch keeps the order.
		return misrouted
	}
	return unknown
}

// answerLost reports whether a request with this error may have been written: no broker answered, and the transport had
// a broker to send it to.
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
		// The publisher sets the timestamps: a wrong clock must not park keys.
		kafka.InvalidTimestamp:
		return topicRefuse
	}
	// These include failed authentication and ClusterAuthorizationFailed, which refuse no particular record.
	return unknown
}

// unsaid hides the code of an error that is no answer to the request. A broker may refuse the connection with any code,
// which says nothing of a record or a topic.
func unsaid(err error) error {
	if c := classify(err); c == unknown || c == misrouted {
		return err
	}
	return errors.New(err.Error())
}

func rejection(scope, topic string, partition int, err error) *Rejection {
	r := &Rejection{Topic: topic, Partition: partition, Err: err, scope: scope}
	_ = errors.As(err, &r.Code) // stays 0 if the error is not the broker's
	return r
}

// isRejection reports whether err is a certain refusal, of whatever type.
func isRejection(err error) bool {
	var r interface{ Rejected() bool }
	return errors.As(err, &r) && r.Rejected()
}
