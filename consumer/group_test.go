package consumer_test

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// The group removed a member whose connections broke. When that member decides its old events, its commit is refused
// and the new owner's offset stays.
func TestStaleMemberCannotMoveTheOffset(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 2)
	kafkatest.Produce(t, topic, records(10, 0, 1)...)
	wake := make(chan struct{})
	var asleep atomic.Int32
	a := newHandler()
	a.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		if asleep.Add(1) <= 2 {
			<-wake // ignores its ctx, as a suspended process does
		}
		return applied(len(events)), nil
	}
	generations := make(chan int32, 10)
	conns := &conns{}
	cfg := config(topic)
	cfg.SessionTimeout, cfg.RebalanceTimeout = 2*time.Second, time.Second
	cfg.Batch, cfg.BatchWait = 1, -1
	cfg.Dial = conns.dial
	cfg.Observer.Assigned = func(a consumer.AssignedInfo) { generations <- a.Generation }
	logBuf := &logs{}
	cfg.Logger = slog.New(slog.NewTextHandler(logBuf, nil))
	start(t, a, topic, cfg)
	// On a slow machine the session may end before both handlers are called. Then one of them keeps A out of the group.
	await(t, "the handlers", func() bool { return asleep.Load() == 2 || logBuf.count("a handler ignores") > 0 })
	conns.cut()

	b := newHandler()
	start(t, b, topic, config(topic))
	seen := b.await(t, 20)
	offsetsOf(t, seen[0], 0, 10)
	offsetsOf(t, seen[1], 0, 10)
	brokers := kafkatest.Brokers(t)
	await(t, "B's commit", func() bool {
		got := committed(t, brokers, topic, topic, 2)
		return got[0] == 10 &&
			got[1] == 10
	})
	await(t, "the log line about the handlers", func() bool { return logBuf.count("a handler ignores") > 0 })
	for len(generations) > 0 {
		<-generations
	}
	conns.restore()
	close(wake)
	recv(t, "A's next generation", generations) // A has tried to commit offset 1 by now
	if got := committed(t, brokers, topic, topic, 2); got[0] != 10 || got[1] != 10 {
		t.Errorf("the stale member moved the offset: %v", got)
	}
	if logBuf.count("the last offsets were not committed") != 1 || logBuf.count("a handler ignores") != 1 {
		t.Errorf("log:\n%s", logBuf.b.String())
	}
}

// In a rebalance a member gives up only the partitions that move: their handler's ctx ends, the other handler goes on.
func TestHandlerContextEndsWithPartition(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 2)
	kafkatest.Produce(t, topic, records(1, 0, 1)...)
	started, causes, goOn := make(chan struct{}, 100), make(chan error, 2), make(chan struct{})
	a := newHandler()
	a.do = func(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
		started <- struct{}{}
		select {
		case <-goOn:
			return applied(len(events)), nil
		case <-ctx.Done():
			causes <- context.Cause(ctx)
			return make([]inbox.Outcome, len(events)), ctx.Err()
		}
	}
	m := start(t, a, topic, config(topic))
	recv(t, "a handler", started)
	recv(t, "the other", started)
	b := newHandler()
	start(t, b, topic, config(topic))
	if cause := recv(t, "the end of a handler's ctx", causes); cause == nil || cause == context.Canceled {
		t.Errorf("cause %v", cause)
	}
	b.await(t, 1)
	await(t, "a share", func() bool { return len(m.Status().Partitions) == 1 })
	if len(m.Status().Halted()) != 0 {
		t.Error("the end of a generation halted a partition")
	}
	close(goOn)
	a.await(t, 1)
	if len(causes) != 0 || len(started) != 0 {
		t.Error("the handler of the kept partition stopped too")
	}
	kafkatest.Produce(t, topic, records(20, 0, 1)...)
	a.await(t, 21)
	b.await(t, 21)
}

func TestDrainFinishesAndCommits(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(10, 0)...)
	in, out := make(chan context.Context), make(chan struct{})
	h := newHandler()
	h.do = func(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
		in <- ctx
		<-out
		return applied(len(events)), ctx.Err()
	}
	cfg := config(topic)
	cfg.Batch, cfg.BatchWait, cfg.DrainTimeout = 4, -1, testTimeout
	m := start(t, h, topic, cfg)
	ctx := recv(t, "a batch", in)
	m.cancel()
	select {
	case err := <-m.done:
		t.Fatalf("Run returned %v before its handler", err)
	case <-ctx.Done():
		t.Fatal("the handler was cancelled before DrainTimeout")
	default:
	}
	close(out)
	m.stop(t)
	if got := committed(t, kafkatest.Brokers(t), topic, topic, 1); got[0] != 4 {
		t.Errorf("committed %v, want the offset after the last decided event", got)
	}
	// The member left the group: the next one begins there without waiting for a session to expire.
	h = newHandler()
	start(t, h, topic, config(topic))
	offsetsOf(t, h.await(t, 6)[0], 4, 10)
}

func TestDrainTimeoutCancelsTheHandler(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]time.Duration{"after a while": 50 * time.Millisecond, "at once": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1)
			kafkatest.Produce(t, topic, records(3, 0)...)
			in := make(chan struct{})
			h := newHandler()
			h.do = func(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
				close(in)
				<-ctx.Done()
				return []inbox.Outcome{inbox.Applied}, ctx.Err()
			}
			cfg := config(topic)
			cfg.DrainTimeout = d
			cfg.BatchWait = time.Second
			m := start(t, h, topic, cfg)
			recv(t, "a batch", in)
			m.stop(t)
			if got := committed(t, kafkatest.Brokers(t), topic, topic, 1); got[0] != 1 {
				t.Errorf("committed %v", got)
			}
		})
	}
}

func TestBrokerRestart(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.NewCluster(t, 1)
	topic := kafkatest.TopicAt(t, cluster.Brokers(), 2)
	logBuf := &logs{}
	var down atomic.Bool
	cfg := config(topic)
	cfg.Logger = slog.New(slog.NewTextHandler(logBuf, nil))
	cfg.Observer.Outage = func(o consumer.OutageInfo) { down.Store(o.Err != nil) }
	h := newHandler()
	m := startAt(t, h, cluster.Brokers(), topic, cfg)
	produceAt(t, cluster.Brokers(), topic, records(10, 0, 1))
	h.await(t, 20)
	cluster.Kill(0)
	await(t, "the outage", func() bool {
		s := m.Status()
		return down.Load() && s.Down && s.LastError != ""
	})
	cluster.Start(t, 0)
	kafkatest.AwaitLeaders(t, cluster.Brokers(), topic, 2)
	produceAt(t, cluster.Brokers(), topic, records(10, 0, 1))
	await(t, "the records after the restart", func() bool {
		seen := h.byPartition()
		return len(seen[0]) > 0 && len(seen[1]) > 0 && seen[0][len(seen[0])-1].Position.Offset == 19 &&
			seen[1][len(seen[1])-1].Position.Offset == 19
	})
	await(t, "the end of the outage", func() bool { return !m.Status().Down })
	await(t, "the commits after the restart", func() bool {
		got := committed(t, cluster.Brokers(), topic, topic, 2)
		return got[0] == 20 && got[1] == 20
	})
	m.stop(t)
	if got := committed(t, cluster.Brokers(), topic, topic, 2); got[0] != 20 || got[1] != 20 {
		t.Errorf("committed %v", got)
	}
	// Each change is logged once, however many goroutines see it. The broker may come and go several times while it
	// starts.
	for i, line := range regexp.MustCompile("cannot be used|can be used again").FindAllString(logBuf.b.String(), -1) {
		if want := []string{"cannot be used", "can be used again"}[i%2]; line != want {
			t.Errorf("line %d is %q", i+1, line)
		}
	}
}

// After a crash only the events after the last commit are repeated.
func TestCrashRepeatsOnlyUncommittedEvents(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	brokers := kafkatest.Brokers(t)
	kafkatest.Produce(t, topic, records(10, 0)...)
	in, out := make(chan struct{}), make(chan struct{})
	h := newHandler()
	h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		if events[0].Position.Offset == 5 {
			in <- struct{}{}
			<-out
		}
		return applied(len(events)), nil
	}
	conns := &conns{}
	cfg := config(topic)
	cfg.Batch, cfg.BatchWait, cfg.CommitEvery = 5, -1, -1
	cfg.Dial = conns.dial
	m := start(t, h, topic, cfg)
	recv(t, "the second batch", in)
	conns.cut() // Kafka loses this member, which still decides offsets 5 to 9
	close(out)
	h.await(t, 10)
	m.stop(t)
	removeMembers(t, topic) // as the end of its session does
	if got := committed(t, brokers, topic, topic, 1); got[0] != 5 {
		t.Errorf("committed %v", got)
	}
	h = newHandler()
	start(t, h, topic, config(topic))
	offsetsOf(t, h.await(t, 5)[0], 5, 10)
}

// conns dials connections that a test can break.
type conns struct {
	mu   sync.Mutex
	open []net.Conn
	dead bool
}

func (w *conns) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if w.dead {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	w.open = append(w.open, c)
	return c, nil
}

// closeOpen closes the open connections.
func (w *conns) closeOpen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.open {
		_ = c.Close()
	}
	w.open = nil
}

// restore allows new connections after cut.
func (w *conns) restore() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = false
}

func (w *conns) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	for _, c := range w.open {
		_ = c.Close()
	}
}

// describeGroup returns the broker's description of a group.
func describeGroup(t *testing.T, group string) kmsg.DescribeGroupsResponseGroup {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Brokers(t)...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	res, err := req.RequestWith(t.Context(), client)
	if err != nil || len(res.Groups) != 1 {
		return kmsg.DescribeGroupsResponseGroup{}
	}
	return res.Groups[0]
}

// removeMembers removes all members of a group, as operators do with Kafka's tools.
func removeMembers(t *testing.T, group string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Brokers(t)...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	for _, m := range describeGroup(t, group).Members {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = m.MemberID
		req.Members = append(req.Members, member)
	}
	res, err := req.RequestWith(t.Context(), client)
	if err == nil {
		err = kerr.ErrorForCode(res.ErrorCode)
	}
	if err != nil || len(req.Members) == 0 {
		t.Fatalf("removed %d members of the group: %v", len(req.Members), err)
	}
}

// A consumer of whose topics there is none joins no group, and its state says since when, and why.
func TestNoTopicAtAll(t *testing.T) {
	t.Parallel()
	topic := strings.ToLower(t.Name()) + uuid.NewString()
	m := start(t, newHandler(), topic, config(topic))
	await(t, "the state to name the topic", func() bool { return len(m.Status().Missing) > 0 })
	if st := m.Status(); st.Joined || st.OutSince.IsZero() || st.Missing[0] != topic {
		t.Errorf("%+v", st)
	}
}

// A topic that is deleted or does not exist yet delays no other topic. It is consumed as soon as it exists.
func TestMissingTopicDelaysNoOther(t *testing.T) {
	t.Parallel()
	kept, comes := kafkatest.Topic(t, 2), strings.ToLower(t.Name())+uuid.NewString()
	brokers := kafkatest.Brokers(t)
	logBuf := &logs{}
	cfg := config(kept)
	cfg.Logger = slog.New(slog.NewTextHandler(logBuf, nil))
	h := newHandler()
	m := startTopics(t, h, brokers, []string{kept, comes}, cfg)
	kafkatest.Produce(t, kept, records(5, 0, 1)...)
	h.await(t, 10)
	if st := m.Status(); !slices.Equal(st.Missing, []string{comes}) || !st.Joined || !st.OutSince.IsZero() {
		t.Errorf("one topic is missing: %+v", st)
	}

	kafkatest.CreateTopic(t, brokers, comes, 1)
	kafkatest.Produce(t, comes, records(5, 0)...)
	h.await(t, 15)

	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}
	said := logBuf.count("create them")
	if res, err := client.DeleteTopics(t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{comes}}); err != nil ||
		res.Errors[comes] != nil {
		t.Fatal(err, res)
	}
	await(t, "the log line about the deleted topic", func() bool { return logBuf.count("create them") > said })
	before := m.Status().Generation
	kafkatest.Produce(t, kept, records(5, 0, 1)...)
	h.await(t, 25)
	if n := m.Status().Generation - before; n > 2 { // one that gives the topic up, and one without it
		t.Errorf("%d generations without the topic", n)
	}

	kafkatest.CreateTopic(t, brokers, comes, 1)
	kafkatest.Produce(t, comes, records(5, 0)...)
	h.await(t, 30)
}

// A member that is stopped while it joins leaves the group: the others do not wait for it, and it is assigned no
// partition.
func TestStopDuringAJoin(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for name, again := range map[string]bool{"the first": false, "another": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 4)
			cfg := config(topic)
			cfg.SessionTimeout, cfg.RebalanceTimeout, cfg.HeartbeatInterval = 5*time.Minute, 2*testTimeout,
				100*time.Millisecond
			cfg.DrainTimeout = 2 * testTimeout
			// A join does not end until the disconnected member is back or RebalanceTimeout is over.
			conns := &conns{}
			away := cfg
			away.Dial = conns.dial
			a := start(t, newHandler(), topic, away)
			await(t, "the first generation", func() bool { return len(a.Status().Partitions) == 4 })
			var joins atomic.Int32
			var b *member
			if again {
				counted := cfg
				counted.Dial = countJoins(&joins)
				b = start(t, newHandler(), topic, counted)
				await(t, "the second generation", func() bool {
					return len(b.Status().Partitions) == 2 &&
						len(a.Status().Partitions) == 2
				})
			}
			before, joinedBefore := a.Status().Generation, joins.Load()
			conns.cut()
			c := start(t, newHandler(), topic, cfg)
			leaves := c
			if again {
				await(t, "the join of the second", func() bool { return joins.Load() > joinedBefore })
				leaves = b
			}
			await(t, "the rebalance", func() bool { return describeGroup(t, topic).State == "PreparingRebalance" })
			leaves.stop(t) // must not wait for another member
			conns.restore()
			await(t, "all partitions with the remaining members", func() bool {
				s := a.Status()
				n := len(s.Partitions)
				if s.Generation == before {
					return false
				}
				if again {
					n += len(c.Status().Partitions)
				}
				return n == 4
			})
		})
	}
}

// countJoins returns a dialer that counts JoinGroup requests.
func countJoins(n *atomic.Int32) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return joinConn{c, n}, err
	}
}

type joinConn struct {
	net.Conn
	n *atomic.Int32
}

func (c joinConn) Write(b []byte) (int, error) {
	if len(b) > 6 && protocol.ApiKey(binary.BigEndian.Uint16(b[4:])) == protocol.JoinGroup {
		c.n.Add(1)
	}
	return c.Conn.Write(b)
}

// A stopping member leaves without joining again; the others would have to wait for that join.
func TestStoppingMemberDoesNotRejoin(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(1, 0)...)
	for i := range int32(5) {
		var joins atomic.Int32
		cfg := config(topic + strconv.Itoa(int(i)))
		cfg.Dial = countJoins(&joins)
		h := newHandler()
		m := start(t, h, topic, cfg)
		h.await(t, 1)
		before := joins.Load() // one without a member id and one with it
		m.stop(t)
		if n := joins.Load(); n != before {
			t.Errorf("%d joins before the stop, %d after it", before, n)
		}
	}
}

// A broken connection does not end the generation: heartbeats and commits use a new connection.
func TestBrokenConnectionKeepsGeneration(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 2)
	conns := &conns{}
	var generations atomic.Int32
	cfg := config(topic)
	cfg.Dial = conns.dial
	cfg.Observer.Assigned = func(consumer.AssignedInfo) { generations.Add(1) }
	h := newHandler()
	start(t, h, topic, cfg)
	kafkatest.Produce(t, topic, records(5, 0, 1)...)
	h.await(t, 10)
	for i := range int64(3) {
		conns.closeOpen()
		kafkatest.Produce(t, topic, records(5, 0, 1)...)
		h.await(t, int(10*(i+2)))
		await(t, "the commit", func() bool {
			got := committed(t, kafkatest.Brokers(t), topic, topic, 2)
			return got[0] == 5*(i+2) && got[1] == 5*(i+2)
		})
	}
	if n := generations.Load(); n != 1 {
		t.Errorf("%d generations", n)
	}
}
