package publisher

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

// keys returns a key for each of the partitions 0 to n-1, in that order.
func keys(n int) []string {
	out := make([]string, n)
	for i, left := 0, n; left > 0; i++ {
		key := "k" + string(rune('a'+i%26)) + strings.Repeat("x", i/26)
		if p := partitionOf(key, n); out[p] == "" {
			out[p], left = key, left-1
		}
	}
	return out
}

func code(c kafka.Error) *produce.ResponsePartition {
	return &produce.ResponsePartition{ErrorCode: int16(c)}
}

// fakeKafka returns a Kafka over f with batches of about ten events.
func fakeKafka(t *testing.T, f *fake) *Kafka {
	t.Helper()
	return newKafka(t, []string{"nowhere:1"}, Config{Transport: f, BatchBytes: 1024})
}

func TestOnePartitionFailsAndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	wrote := map[int][]string{}
	f := &fake{partitions: 3, produce: func(_ context.Context, r request) *produce.ResponsePartition {
		mu.Lock()
		defer mu.Unlock()
		if values := r.values(); r.partition != 1 || !slices.Contains(values, "100") {
			wrote[r.partition] = append(wrote[r.partition], values...)
			return &produce.ResponsePartition{}
		}
		return code(kafka.NotEnoughReplicas)
	}}
	k := fakeKafka(t, f)
	var events []event.Event
	for i := range 300 {
		events = append(events, newEvent("t", keys(3)[i%3], string(rune('0'+i/100))+string(rune('0'+i/10%10))+
			string(rune('0'+i%10))))
	}
	verdicts := k.Publish(t.Context(), events)
	failed := 0
	for i, err := range verdicts {
		acked := slices.Contains(wrote[i%3], string(events[i].Payload))
		switch {
		case acked != (err == nil):
			t.Fatalf("event %d: acked %t, verdict %v", i, acked, err)
		case isRefusal(err):
			t.Fatalf("event %d: %v is no refusal", i, err)
		case err != nil && i%3 != 1:
			t.Fatalf("event %d of a healthy partition: %v", i, err)
		case i%3 == 1 && i > 100 && err != nil && !isUnsent(err):
			failed++ // in the batch of event 100
		}
	}
	if !errors.Is(verdicts[100], kafka.NotEnoughReplicas) || isUnsent(verdicts[100]) {
		t.Errorf("the failed batch: %v", verdicts[100])
	}
	if !isUnsent(verdicts[298]) || failed > 10 {
		t.Errorf("the last of the partition: %v; %d shared the failed batch", verdicts[298], failed)
	}
}

func TestRequestsToOnePartitionNeverOverlap(t *testing.T) {
	t.Parallel()
	var flying [4]atomic.Int32
	var requests atomic.Int32
	f := &fake{partitions: 4, produce: func(_ context.Context, r request) *produce.ResponsePartition {
		if n := flying[r.partition].Add(1); n != 1 {
			t.Errorf("%d requests in flight to partition %d", n, r.partition)
		}
		defer flying[r.partition].Add(-1)
		if requests.Add(1)%5 == 0 {
			return code(kafka.NotLeaderForPartition) // Publish repeats the request
		}
		_ = r.values() // takes a while
		return &produce.ResponsePartition{}
	}}
	k := fakeKafka(t, f)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var events []event.Event
			for i := range 400 {
				events = append(events, newEvent("t", keys(4)[i%4], "v"))
			}
			_ = k.Publish(context.Background(), events)
		})
	}
	wg.Wait()
}

func TestClassesOfAnswers(t *testing.T) {
	t.Parallel()
	for c, want := range map[kafka.Error]string{
		kafka.TopicAuthorizationFailed: "topic", kafka.InvalidTopic: "topic", kafka.PolicyViolation: "topic",
		kafka.InvalidTimestamp: "topic", kafka.UnsupportedCompressionType: "topic",
		kafka.MessageSizeTooLarge: "record", kafka.RecordListTooLarge: "record", kafka.InvalidRecord: "record",
		kafka.ClusterAuthorizationFailed: "", kafka.SASLAuthenticationFailed: "",
		kafka.NotEnoughReplicasAfterAppend: "", kafka.RequestTimedOut: "", kafka.Unknown: "", kafka.InvalidMessage: "",
		kafka.InvalidRequiredAcks: "",
	} {
		f := &fake{partitions: 1, produce: func(context.Context, request) *produce.ResponsePartition { return code(c) }}
		err := fakeKafka(t, f).Publish(t.Context(), []event.Event{newEvent("t", "k", "v")})[0]
		scope := ""
		var r *outcome.Refusal
		if errors.As(err, &r) {
			scope = map[bool]string{true: "topic", false: "record"}[r.Topic]
		}
		if scope != want || !errors.Is(err, c) {
			t.Errorf("%v: scope %q, want %q; verdict %v", c, scope, want, err)
		}
	}
}

func TestRefusedRecordIsFoundInOrder(t *testing.T) {
	t.Parallel()
	for name, hints := range map[string][]produce.ResponseError{
		"named by the broker": {{BatchIndex: -1}},
		"not named":           nil,
	} {
		var wrote []string
		f := &fake{partitions: 1, produce: func(_ context.Context, r request) *produce.ResponsePartition {
			values := r.values()
			if at := slices.Index(values, "bad"); at >= 0 {
				p := code(kafka.InvalidRecord)
				for range hints {
					p.RecordErrors = append(p.RecordErrors, produce.ResponseError{
						BatchIndex:             int32(at),
						BatchIndexErrorMessage: "no",
					})
				}
				return p
			}
			wrote = append(wrote, values...)
			return &produce.ResponsePartition{}
		}}
		var events []event.Event
		for _, v := range strings.Split("a b c d e bad f g bad h", " ") {
			events = append(events, newEvent("t", "k", v))
		}
		verdicts := newKafka(t, []string{"nowhere:1"}, Config{Transport: f}).Publish(t.Context(), events)
		var r *outcome.Refusal
		if got := strings.Join(wrote, " "); got != "a b c d e" || !errors.As(verdicts[5], &r) ||
			!isUnsent(verdicts[6]) {
			t.Errorf("%s: wrote %q, verdicts %v", name, got, verdicts)
		}
	}
}

// TestP4_RefusalAfterLostAnswerMayBeWritten: the answer to the first request is lost, and the repeated request is
// refused. The refused event may be in the log, and so may the events after it in that request.
func TestP4_RefusalAfterLostAnswerMayBeWritten(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"lost": true, "no leader": false, "disk": true} {
		requests := 0
		f := &fake{partitions: 1, err: protocol.ErrNoLeader}
		if name == "lost" {
			f.err = io.EOF
		}
		f.produce = func(_ context.Context, r request) *produce.ResponsePartition {
			switch requests++; {
			case requests == 1 && name == "disk": // failed while writing
				return code(kafka.KafkaStorageError)
			case requests == 1:
				return nil
			}
			if slices.Contains(r.values(), "bad") {
				return code(kafka.InvalidRecord)
			}
			return &produce.ResponsePartition{}
		}
		verdicts := fakeKafka(t, f).Publish(t.Context(), []event.Event{
			newEvent("t", "k", "a"), newEvent("t", "k", "bad"),
			newEvent("t", "k", "b"),
		})
		var r *outcome.Refusal
		if verdicts[0] != nil || !errors.As(verdicts[1], &r) || r.MaybePublished != lost ||
			r.Code != "INVALID_RECORD" ||
			verdicts[2] == nil || isUnsent(verdicts[2]) == lost {
			t.Errorf("%s: %v", name, verdicts)
		}
	}
}

func TestMovedLeaderIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]struct {
		code kafka.Error
		err  error
	}{"not leader": {kafka.NotLeaderForPartition, nil}, "stale connection": {0, io.EOF}} {
		var requests [][]string
		f := &fake{partitions: 1, err: answer.err}
		f.produce = func(_ context.Context, r request) *produce.ResponsePartition {
			if requests = append(requests, r.values()); len(requests) > 1 {
				return &produce.ResponsePartition{}
			}
			if answer.err != nil {
				return nil
			}
			return code(answer.code)
		}
		events := []event.Event{newEvent("t", "k", "a"), newEvent("t", "k", "b")}
		allAcked(t, fakeKafka(t, f).Publish(t.Context(), events))
		if len(requests) != 2 || !slices.Equal(requests[0], requests[1]) || f.refreshes != 1 {
			t.Errorf("%s: requests %v, metadata refreshed %d times", name, requests, f.refreshes)
		}
	}
}

func TestTheEndOfContextLetsTheRequestInFlightFinish(t *testing.T) {
	t.Parallel()
	for _, closing := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		arrived, answer := make(chan struct{}), make(chan struct{})
		f := &fake{partitions: 1, produce: func(ctx context.Context, _ request) *produce.ResponsePartition {
			close(arrived) // a second request would panic
			select {
			case <-answer:
				return &produce.ResponsePartition{}
			case <-ctx.Done():
				return nil
			}
		}}
		k := fakeKafka(t, f)
		var events []event.Event
		for range 100 {
			events = append(events, newEvent("t", "k", "v"))
		}
		result, closed := make(chan []error), make(chan struct{})
		go func() { result <- k.Publish(ctx, events) }()
		<-arrived
		if closing {
			go func() { _ = k.Close(); close(closed) }()
			<-k.done
		} else {
			cancel()
		}
		close(answer)
		verdicts := <-result
		if verdicts[0] != nil {
			t.Errorf("the request in flight: %v", verdicts[0])
		}
		want := context.Canceled
		if closing {
			want = ErrClosed
			<-closed
			if err := k.Publish(ctx, events)[0]; !errors.Is(err, ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
		if last := verdicts[99]; !isUnsent(last) || !errors.Is(last, want) {
			t.Errorf("the last event: %v", last)
		}
		cancel()
	}
}

// TestTopicVanishesAndComesBack: a topic that was used is missing in the metadata. For a while requests go on to its
// partitions, for a broker that has just started may not know it. Then it is refused, until it is there again.
func TestTopicVanishesAndComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			partitions: 1, produce: func(context.Context, request) *produce.ResponsePartition {
				return &produce.ResponsePartition{}
			},
		}
		k, err := NewKafka([]string{"nowhere:1"}, Config{Transport: f, RecheckEvery: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		verdict := func() error { return k.Publish(t.Context(), []event.Event{newEvent("t", "k", "v")})[0] }
		for range 2 { // each absence has its own while
			if err := verdict(); err != nil {
				t.Fatal(err)
			}
			f.meta = kafka.UnknownTopicOrPartition
			for range 10 {
				<-time.After(time.Second) // the bubble's clock
				if err := verdict(); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(2 * time.Second)
			if err := verdict(); !isRefusal(err) {
				t.Fatal(err)
			}
			// An outage is no evidence about the topic.
			f.metaErr = io.ErrUnexpectedEOF
			if err := verdict(); err == nil || isRefusal(err) {
				t.Fatal(err)
			}
			f.metaErr, f.meta = nil, 0
		}
		if err := verdict(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestOtherClustersTopicError: brokers of another cluster know no topic of this outbox, or do not show it. The refusal
// is the cluster's, and no grace or topic is blamed.
func TestOtherClustersTopicError(t *testing.T) {
	t.Parallel()
	for _, meta := range []kafka.Error{kafka.UnknownTopicOrPartition, kafka.TopicAuthorizationFailed} {
		other := &outcome.Refusal{Topic: true, Err: errors.New("the cluster is another")}
		k := newKafka(t, []string{"nowhere:1"}, Config{
			Transport: &fake{cluster: "other", meta: meta},
			Pin: func(_ context.Context, cluster, topic string, partitions int) (int, error) {
				if cluster != "other" || topic != "t" || partitions != 0 {
					t.Errorf("Pin(%q, %q, %d)", cluster, topic, partitions)
				}
				return 0, other
			},
		})
		if err := k.Publish(t.Context(), []event.Event{newEvent("t", "k", "v")})[0]; !isRefusal(err) ||
			!errors.Is(err, other) {
			t.Errorf("%v: verdict %v", meta, err)
		}
	}
}

func TestThePinDecides(t *testing.T) {
	t.Parallel()
	pinned, pinErr := 8, error(nil)
	f := &fake{partitions: 8, produce: func(context.Context, request) *produce.ResponsePartition {
		return &produce.ResponsePartition{}
	}}
	k := newKafka(t, []string{"nowhere:1"}, Config{
		Transport: f, RecheckEvery: time.Nanosecond,
		Pin: func(_ context.Context, cluster, topic string, partitions int) (int, error) {
			if cluster != f.cluster || topic != "t" || partitions != f.partitions {
				t.Errorf("Pin(%q, %q, %d)", cluster, topic, partitions)
			}
			return pinned, pinErr
		},
	})
	verdict := func() error { return k.Publish(t.Context(), []event.Event{newEvent("t", "k", "v")})[0] }
	if err := verdict(); err != nil {
		t.Fatal(err)
	}
	f.partitions = 12
	var changed *PartitionsChangedError
	if err := verdict(); !errors.As(err, &changed) || changed.Pinned != 8 || changed.Found != 12 {
		t.Fatalf("a topic with 12 partitions, pinned to 8: %v, want a PartitionsChangedError", err)
	}
	pinned = 12 // an operator accepted the new count
	if err := verdict(); err != nil {
		t.Fatal(err)
	}
	pinErr = errors.New("database away")
	if err := verdict(); err != nil {
		t.Fatalf("Pin fails for an unchanged topic, and publishing stops: %v", err)
	}
	f.partitions = 13
	for range 2 {
		if err := verdict(); err == nil || isRefusal(err) {
			t.Fatalf("topic grown, Pin failed: %v, want an unknown outcome: other relays may use the new count", err)
		}
	}
	pinErr, pinned = nil, 13
	if err := verdict(); err != nil {
		t.Fatal(err)
	}
	pinErr, f.cluster = errors.New("database away"), "other"
	if err := verdict(); err == nil || isRefusal(err) {
		t.Fatalf("the cluster changed and Pin fails: %v, want an unknown outcome", err)
	}
	pinErr = nil
	if err := verdict(); err != nil {
		t.Fatal(err)
	}
}

// TestRetryStaysInCluster: the connection to the leader breaks, and the address then leads to another cluster.
func TestRetryStaysInCluster(t *testing.T) {
	t.Parallel()
	f, sent := &fake{partitions: 1, cluster: "one", err: io.EOF}, 0
	f.produce = func(context.Context, request) *produce.ResponsePartition {
		sent++
		f.cluster = "two"
		return nil
	}
	k := newKafka(t, []string{"nowhere:1"}, Config{Transport: f, Pin: func(_ context.Context, cluster, _ string,
		_ int,
	) (int, error) {
		if cluster != "one" {
			return 0, errors.New("not ours")
		}
		return 1, nil
	}})
	for range 2 {
		if err := k.Publish(t.Context(), []event.Event{newEvent("t", "k", "v")})[0]; err == nil || isRefusal(err) {
			t.Errorf("verdict %v, want an unknown outcome", err)
		}
	}
	if sent != 1 {
		t.Errorf("%d requests, want one, to the first cluster", sent)
	}
}

// TestP4_OldCountIsNotUsedWhileAsking: the known partition count is old. Every caller waits until one of them has asked
// for the new count: an operator may have accepted it long ago, and other relays already send by it.
func TestP4_OldCountIsNotUsedWhileAsking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sent []int
		f := &fake{partitions: 2, produce: func(_ context.Context, r request) *produce.ResponsePartition {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, r.partition)
			return &produce.ResponsePartition{}
		}}
		gate := make(chan struct{}, 1)
		gate <- struct{}{}
		k := newKafka(t, []string{"nowhere:1"},
			Config{Transport: f, Pin: func(_ context.Context, _, _ string, partitions int) (int, error) {
				<-gate
				return partitions, nil
			}})
		e := newEvent("t", "k", "v")
		if err := k.Publish(t.Context(), []event.Event{e})[0]; err != nil {
			t.Fatal(err)
		}
		f.partitions = 97
		<-time.After(2*30*time.Second + 1) // twice the default
		verdicts := make(chan error, 2)
		for range 2 {
			go func() { verdicts <- k.Publish(t.Context(), []event.Event{e})[0] }()
			synctest.Wait()
		}
		close(gate)
		for range 2 {
			if err := <-verdicts; err != nil {
				t.Error(err)
			}
		}
		for _, partition := range sent[1:] {
			if partition != choose(&e, 97) {
				t.Errorf("sent to partition %d of 97, want %d", partition, choose(&e, 97))
			}
		}
	})
}

// TestTooLargeRequestIsRefused: Kafka closes the connection at a request above socket.request.max.bytes, so the
// publisher refuses the event itself.
func TestTooLargeRequestIsRefused(t *testing.T) {
	t.Parallel()
	sent := 0
	f := &fake{partitions: 1, err: io.EOF}
	f.produce = func(_ context.Context, r request) *produce.ResponsePartition {
		sent++
		if r.records.Reader.(*bytes.Reader).Len() > 2<<20 {
			return nil
		}
		return &produce.ResponsePartition{}
	}
	k := newKafka(t, []string{"nowhere:1"}, Config{Transport: f, RequestBytes: 2 << 20, Compression: CompressionNone})
	huge := newEvent("t", "k", "v")
	huge.Payload = make([]byte, 2<<20)
	verdicts := k.Publish(t.Context(), []event.Event{newEvent("t", "k", "v"), huge, newEvent("t", "k", "v")})
	var r *outcome.Refusal
	if verdicts[0] != nil || !errors.As(verdicts[1], &r) || r.Topic ||
		r.Code != "MESSAGE_TOO_LARGE" || r.MaybePublished ||
		!isUnsent(verdicts[2]) || isRefusal(verdicts[2]) {
		t.Errorf("verdicts %v", verdicts)
	}
	if sent != 1 {
		t.Errorf("%d requests, want one with the event before it", sent)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		brokers []string
		cfg     Config
	}{
		"at least one broker": {nil, Config{}},
		`broker "kafka" as`:   {[]string{"kafka"}, Config{}},
		"set Compression":     {[]string{"a:1"}, Config{Compression: "brotli"}},
		"set Timeout":         {[]string{"a:1"}, Config{Timeout: time.Millisecond}},
		"set BatchBytes":      {[]string{"a:1"}, Config{BatchBytes: -1}},
		"set RequestBytes":    {[]string{"a:1"}, Config{BatchBytes: 4 << 20, RequestBytes: 3 << 20}},
		"set RecheckEvery":    {[]string{"a:1"}, Config{RecheckEvery: -1}},
		"either Transport":    {[]string{"a:1"}, Config{Transport: &fake{}, ClientID: "x"}},
	} {
		if _, err := NewKafka(c.brokers, c.cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}
