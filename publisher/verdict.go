package publisher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/effectonce/effectonce/outcome"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// ErrClosed is matched by verdicts of a Kafka that was closed.
var ErrClosed = errors.New("publisher: closed")

// PartitionsChangedError is why a topic is refused whose partition count is no longer the pinned one: with another
// count keys move to other partitions and lose their order.
type PartitionsChangedError struct {
	Topic         string
	Pinned, Found int
}

// Error names both counts and what an operator can do.
func (e *PartitionsChangedError) Error() string {
	return fmt.Sprintf("publisher: topic %s has %d partitions and is pinned to %d: a changed count moves keys to "+
		"other partitions; "+
		"let everything published so far be consumed, then run `relay topics accept`", e.Topic, e.Found, e.Pinned)
}

// behind returns the verdict of the events after one that was not acknowledged. It keeps only the text of its cause, so
// it is not a refusal even if the cause is.
func behind(cause error) error {
	return outcome.Retryable(fmt.Errorf("publisher: not sent: an earlier event of its partition was not acked: %s",
		cause.Error()))
}

func stopped(cause error) error {
	return outcome.Retryable(fmt.Errorf("publisher: not sent: told to stop: %w", cause))
}

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

// refusal returns the verdict of a topic that is refused.
func refusal(topic string, err error) *outcome.Refusal {
	return &outcome.Refusal{
		Topic: true, Code: codeOf(err), Err: fmt.Errorf("publisher: topic %s refuses its events: %w", topic, err),
	}
}

// codeOf returns Kafka's name of a broker's error, such as "MESSAGE_TOO_LARGE", or "" for any other error.
func codeOf(err error) string {
	code, _ := errors.AsType[kafka.Error](err) // 0 has no title
	if code == kafka.MessageSizeTooLarge {     // kafka-go names it differently
		return "MESSAGE_TOO_LARGE"
	}
	return strings.ToUpper(strings.ReplaceAll(code.Title(), " ", "_"))
}

// isRefusal reports whether err is a certain refusal.
func isRefusal(err error) bool {
	_, ok := errors.AsType[*outcome.Refusal](err)
	return ok
}
