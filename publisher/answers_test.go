package publisher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/effectonce/effectonce/outcome"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
)

// TestVerdictClasses checks the class of each error, and whether the records may have been written despite it.
func TestVerdictClasses(t *testing.T) {
	t.Parallel()
	for want, errs := range map[class][]error{
		misrouted: {
			kafka.NotLeaderForPartition, kafka.LeaderNotAvailable, kafka.BrokerNotAvailable, kafka.ReplicaNotAvailable,
			kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch, kafka.UnknownTopicID, kafka.InconsistentTopicID,
		},
		noTopic:   {kafka.UnknownTopicOrPartition},
		tooLarge:  {kafka.MessageSizeTooLarge, kafka.RecordListTooLarge},
		badRecord: {kafka.InvalidRecord},
		topicRefuse: {
			kafka.TopicAuthorizationFailed, kafka.InvalidTopic, kafka.PolicyViolation,
			kafka.UnsupportedForMessageFormat, kafka.UnsupportedCompressionType, kafka.InvalidTimestamp,
		},
	} {
		for _, err := range errs {
			err = fmt.Errorf("wrapped: %w", err)
			if got := classify(err); got != want || answerLost(err) {
				t.Errorf("%v: class %d, want %d; the answer is lost: %v", err, got, want, answerLost(err))
			}
		}
	}
	for want, errs := range map[class][]error{
		misrouted: {
			io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE, kafka.KafkaStorageError,
		},
		unknown: {
			context.DeadlineExceeded, errors.New("other"), kafka.RequestTimedOut, kafka.NotEnoughReplicasAfterAppend,
			kafka.ClusterAuthorizationFailed,
		},
	} {
		for _, err := range errs {
			if got := classify(err); got != want || !answerLost(err) {
				t.Errorf("%v: class %d, want %d; the answer is lost: %v", err, got, want, answerLost(err))
			}
		}
	}
	for _, err := range []error{protocol.ErrNoTopic, protocol.ErrNoPartition, protocol.ErrNoLeader} {
		// The transport returns these errors also after the deadline. Nothing was sent.
		err = errors.Join(context.DeadlineExceeded, err)
		if got := classify(err); got != misrouted || answerLost(err) {
			t.Errorf("%v: class %d; the answer is lost: %v", err, got, answerLost(err))
		}
	}
	if got := classify(errors.Join(context.DeadlineExceeded, io.EOF)); got != unknown {
		t.Errorf("a connection that was closed at the deadline: class %d", got)
	}
}

// TestVerdictUnsaid: of an error that is no answer, a code that would be a refusal is only text. Any other error keeps
// its cause, by which the next step is chosen.
func TestVerdictUnsaid(t *testing.T) {
	t.Parallel()
	for hidden, causes := range map[bool][]error{
		true: {
			kafka.UnknownTopicOrPartition, kafka.MessageSizeTooLarge, kafka.InvalidRecord,
			kafka.TopicAuthorizationFailed,
		},
		false: {
			kafka.NotLeaderForPartition, io.EOF, protocol.ErrNoLeader, context.DeadlineExceeded,
			kafka.SASLAuthenticationFailed,
		},
	} {
		for _, cause := range causes {
			err := fmt.Errorf("with its own words: %w", cause)
			got := unsaid(err)
			if got == nil || got.Error() != err.Error() || errors.Is(got, cause) == hidden {
				t.Errorf("%v: it becomes %#v, want a hidden code: %v", err, got, hidden)
			}
		}
	}
}

// TestP4_RefusedConnectionIsNoVerdict: a broker refuses connections, with codes that would be certain in an answer to
// the request. Nothing is refused.
func TestP4_RefusedConnectionIsNoVerdict(t *testing.T) {
	t.Parallel()
	for _, code := range []kafka.Error{
		kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidRecord, kafka.TopicAuthorizationFailed,
		kafka.InvalidTopic, kafka.UnknownTopicOrPartition,
	} {
		refused := fmt.Errorf("negotiating API versions: %w", code)
		f := &fake{partitions: 1, err: refused, produce: func(context.Context, request) *produce.ResponsePartition {
			return nil
		}}
		k := fakeKafka(t, f)
		events := eventsForEach("t", 1, 0, 3)
		err := k.Publish(t.Context(), events[:1])[0]
		if err == nil || isRefusal(err) || !strings.Contains(err.Error(), code.Error()) {
			t.Errorf("%v: the verdict is %v", code, err)
		}
		f.mu.Lock()
		f.metaErr = refused
		f.mu.Unlock()
		for i, err := range fakeKafka(t, f).Publish(t.Context(), events) {
			if err == nil || isRefusal(err) {
				t.Errorf("%v, at the metadata: the verdict of event %d is %v", code, i, err)
			}
		}
	}
}

// TestFalsePartitionsInMetadata: partitions of no possible number are none.
func TestFalsePartitionsInMetadata(t *testing.T) {
	t.Parallel()
	leader := kafka.Broker{ID: 7}
	got := leadersOf([]kafka.Partition{{ID: -1, Leader: leader}, {ID: 1, Leader: leader}, {ID: 3, Leader: leader}})
	if !slices.Equal(got, []int32{-1, 7, -1}) {
		t.Errorf("the leaders are %v", got)
	}
}

// TestVerdictRefusals checks the text and the code of refusals: operators read the one and search by the other.
func TestVerdictRefusals(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"MESSAGE_TOO_LARGE":          kafka.MessageSizeTooLarge,
		"TOPIC_AUTHORIZATION_FAILED": kafka.TopicAuthorizationFailed,
		"":                           errors.New("no"),
	} {
		r := refusal("orders", fmt.Errorf("with its own words: %w", err))
		if r.Code != want || !r.Topic || r.MaybePublished || !errors.Is(r, err) || !isRefusal(r) {
			t.Errorf("%s: %+v", want, r)
		}
		if text := r.Error(); !strings.Contains(text, "orders refuses its events") ||
			!strings.Contains(text, "its own words") {
			t.Errorf("%s: %q", want, text)
		}
	}
	changed := &PartitionsChangedError{Topic: "orders", Pinned: 6, Found: 12}
	if !strings.Contains(changed.Error(), "orders has 12 partitions and is pinned to 6") {
		t.Error(changed)
	}
	if isRefusal(io.EOF) || isRefusal(nil) {
		t.Error("an unknown outcome is a refusal")
	}
}

// TestVerdictNotSent checks that an event after a refused one is not refused itself.
func TestVerdictNotSent(t *testing.T) {
	t.Parallel()
	refused := refusal("orders", kafka.InvalidRecord)
	for want, err := range map[string]error{
		"an earlier event of its partition was not acked: " + refused.Error(): behind(refused),
		"told to stop: " + context.Canceled.Error():                           stopped(context.Canceled),
	} {
		if !isUnsent(err) || isRefusal(err) || errors.Is(err, kafka.InvalidRecord) ||
			err.Error() != "publisher: not sent: "+want {
			t.Errorf("%v", err)
		}
	}
	if !errors.Is(stopped(context.Canceled), context.Canceled) {
		t.Error("the error does not wrap the cause of the stop")
	}
}

// isUnsent reports whether a verdict says that the call did not send the event.
func isUnsent(err error) bool {
	class, _ := outcome.Of(err)
	return class == outcome.ClassRetryable
}
