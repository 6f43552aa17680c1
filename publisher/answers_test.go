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
		if err == nil || isRejection(err) || !strings.Contains(err.Error(), code.Error()) {
			t.Errorf("%v: the verdict is %v", code, err)
		}
		f.mu.Lock()
		f.metaErr = refused
		f.mu.Unlock()
		for i, err := range fakeKafka(t, f).Publish(t.Context(), events) {
			if err == nil || isRejection(err) {
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
		"REFUSED":                    errors.New("no"),
	} {
		r := rejection(ScopeTopic, "orders", 3, fmt.Errorf("with its own words: %w", err))
		if r.RefusalCode() != want || !r.Rejected() || !isRejection(r) || r.Scope() != ScopeTopic || r.MaybeWritten() ||
			!errors.Is(r, err) || r.Topic != "orders" || r.Partition != 3 {
			t.Errorf("%s: %+v, code %s", want, r, r.RefusalCode())
		}
		if text := r.Error(); !strings.Contains(text, "orders refuses this topic") ||
			!strings.Contains(text, "its own words") {
			t.Errorf("%s: %q", want, text)
		}
	}
	if r := rejection(ScopeRecord, "orders", 3, io.EOF); r.Scope() != ScopeRecord {
		t.Errorf("the scope is %q", r.Scope())
	}
	r := &Rejection{maybe: true}
	if !r.MaybeWritten() {
		t.Error("MaybeWritten is false although an answer was lost")
	}
	changed := &PartitionsChangedError{Topic: "orders", Pinned: 6, Found: 12}
	if !isRejection(fmt.Errorf("wrapped: %w", changed)) || changed.Scope() != ScopeTopic ||
		!strings.Contains(changed.Error(), "orders has 12 partitions and is pinned to 6") {
		t.Errorf("%v, of scope %q", changed, changed.Scope())
	}
	if isRejection(io.EOF) || isRejection(nil) {
		t.Error("an unknown outcome is a refusal")
	}
}

// TestVerdictNotSent checks that an event after a refused one is not refused itself.
func TestVerdictNotSent(t *testing.T) {
	t.Parallel()
	refused := rejection(ScopeRecord, "orders", 3, kafka.InvalidRecord)
	for want, err := range map[string]error{
		"an earlier event of its partition was not acked: " + refused.Error(): behind(refused),
		"told to stop: " + context.Canceled.Error():                           stopped(context.Canceled),
	} {
		n, ok := err.(interface{ NotSent() bool })
		if !ok || !n.NotSent() || !errors.Is(err, ErrNotSent) || isRejection(err) ||
			errors.Is(err, kafka.InvalidRecord) ||
			err.Error() != "publisher: not sent: "+want {
			t.Errorf("%v", err)
		}
	}
	if !errors.Is(stopped(context.Canceled), context.Canceled) {
		t.Error("the error does not wrap the cause of the stop")
	}
}
