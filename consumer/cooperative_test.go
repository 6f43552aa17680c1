package consumer_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// partitionRecorder is a handler that records its calls of Assigned and Revoked.
type partitionRecorder struct {
	*handler
	mu             sync.Mutex
	given, revoked []int32
}

func newPartitionRecorder() *partitionRecorder { return &partitionRecorder{handler: newHandler()} }

func (o *partitionRecorder) Assigned(_ string, p int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.given = append(o.given, p)
}

func (o *partitionRecorder) Revoked(_ context.Context, _ string, p int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revoked = append(o.revoked, p)
}

func (o *partitionRecorder) calls() (given, revoked []int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.given), slices.Clone(o.revoked)
}

func owns(m *member, n int) func() bool {
	return func() bool { return len(m.Status().Partitions) == n }
}

// When members join and leave, the members that stay lose only the partitions that the new one gets.
func TestP9_2_KeptPartitionsNeverStop(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 6)
	a, b := newPartitionRecorder(), newPartitionRecorder()
	ma := start(t, a, topic, config(topic))
	await(t, "all partitions", owns(ma, 6))
	mb := start(t, b, topic, config(topic))
	await(t, "shares", func() bool { return owns(ma, 3)() && owns(mb, 3)() })
	kafkatest.Produce(t, topic, records(10, 0, 1, 2, 3, 4, 5)...)
	a.await(t, 30)
	b.await(t, 30)
	mb.stop(t)
	await(t, "the partitions of the member that left", owns(ma, 6))
	kafkatest.Produce(t, topic, records(10, 0, 1, 2, 3, 4, 5)...)
	for _, events := range a.await(t, 90) {
		offsetsOf(t, events[max(0, len(events)-10):], 10, 20)
	}
	if given, revoked := a.calls(); len(given) != 9 || len(revoked) != 3 {
		t.Errorf("given %v, revoked %v", given, revoked)
	}
	if given, _ := b.calls(); len(given) != 3 {
		t.Errorf("the new member was given %v", given)
	}
}

// A static member that is back within SessionTimeout keeps its partitions, killed or not, without a rebalance of the
// others.
func TestStaticMemberKeepsPartitions(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 4)
	named := func(instance string, w *conns) consumer.Config {
		cfg := config(topic)
		cfg.InstanceID, cfg.SessionTimeout = instance, 5*time.Minute
		if w != nil {
			cfg.Dial = w.dial
		}
		return cfg
	}
	stays := newPartitionRecorder()
	ms := start(t, stays, topic, named("stays", nil))
	conns := &conns{}
	m := start(t, newHandler(), topic, named("comes-back", conns))
	// Assigned is called a moment after the member has the partition, and a member may have given up its partitions in
	// one generation while the other has them in the next.
	await(t, "shares", func() bool {
		g, r := stays.calls()
		return owns(ms, 2)() && owns(m, 2)() && len(g)-len(r) == 2 && ms.Status().Generation == m.Status().Generation
	})
	generation := ms.Status().Generation
	given, revoked := stays.calls()
	for _, killed := range []bool{false, true} {
		had := m.Status().Partitions
		if killed {
			conns.cut()
		}
		m.stop(t)
		if killed {
			conns.restore()
		}
		h := newHandler()
		m = start(t, h, topic, named("comes-back", conns))
		await(t, "its partitions", owns(m, 2))
		for i, p := range m.Status().Partitions {
			if p.Partition != had[i].Partition {
				t.Errorf("killed %t: it had %v, and has %v", killed, had[i].Partition, p.Partition)
			}
		}
		kafkatest.Produce(t, topic, records(5, 0, 1, 2, 3)...)
		h.await(t, 10)
	}
	stays.await(t, 20)
	g, r := stays.calls()
	if len(g) != len(given) || len(r) != len(revoked) || ms.Status().Generation != generation {
		t.Errorf("the other member rebalanced: given %v, revoked %v, generation %d, was %d", g, r,
			ms.Status().Generation, generation)
	}
}

// A static member is killed after it gave up a partition and before it joined again. It returns to the same generation,
// in which no member owns that partition, so the group's leader starts another rebalance.
func TestPartitionOfKilledMemberIsAssigned(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 4)
	named := func(instance string) consumer.Config {
		cfg := config(topic)
		cfg.InstanceID, cfg.SessionTimeout = instance, 5*time.Minute
		return cfg
	}
	leader := start(t, newHandler(), topic, named("leader"))
	await(t, "all partitions", owns(leader, 4))
	conns := &conns{}
	cfg := named("killed")
	cfg.Dial = conns.dial
	h := &revoking{handler: newHandler(), revoked: make(chan struct{})}
	h.first = sync.OnceFunc(func() {
		conns.cut()
		close(h.revoked)
	})
	killed := start(t, h, topic, cfg)
	await(t, "shares", func() bool { return owns(leader, 2)() && owns(killed, 2)() })
	third := start(t, newHandler(), topic, named("third"))
	recv(t, "the partition that it gives up", h.revoked)
	killed.stop(t)
	conns.restore()
	again := start(t, newHandler(), topic, cfg)
	await(t, "all three shares", func() bool { return owns(leader, 2)() && owns(again, 1)() && owns(third, 1)() })
}

// revoking calls first when a partition is revoked, before its member joins again.
type revoking struct {
	*handler
	first   func()
	revoked chan struct{}
}

func (r *revoking) Revoked(context.Context, string, int32) { r.first() }

// Of two processes with one InstanceID the newer one consumes. The other commits nothing more and logs why.
func TestTwoProcessesWithOneInstanceID(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 1)
	logBuf := &logs{}
	cfg := config(topic)
	cfg.InstanceID = "one"
	cfg.Logger = logBuf.logger()
	old := start(t, newHandler(), topic, cfg)
	await(t, "the partition", owns(old, 1))
	cfg.Logger = (&logs{}).logger()
	cfg.SessionTimeout += time.Second
	h := newHandler()
	start(t, h, topic, cfg)
	await(t, "the log line", func() bool { return logBuf.count("another process has joined the group") == 1 })
	kafkatest.Produce(t, topic, records(5, 0)...)
	h.await(t, 5)
}

// While a member knows only eager protocols, as older versions of this package do, the whole group is eager. Once it
// leaves, the group is cooperative again without a restart, so one rolling update is enough in either direction.
func TestEagerMembersAreTolerated(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 4)
	brokers := kafkatest.Brokers(t)
	a := newHandler()
	m := start(t, a, topic, config(topic))
	await(t, "all partitions", owns(m, 4))
	protocol := func(want string) func() bool {
		return func() bool {
			g := describeGroup(t, topic)
			return g.State == "Stable" && g.Protocol == want
		}
	}
	await(t, "the cooperative protocol", protocol("cooperative-sticky"))
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: brokers, GroupID: topic, Topic: topic, HeartbeatInterval: 100 * time.Millisecond,
		MaxWait: 100 * time.Millisecond, StartOffset: kafka.FirstOffset, CommitInterval: 20 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var read sync.WaitGroup
	read.Go(func() {
		for ctx.Err() == nil {
			_, _ = r.ReadMessage(ctx)
		}
	})
	await(t, "a share", owns(m, 2))
	await(t, "an eager protocol", protocol("range"))
	kafkatest.Produce(t, topic, records(10, 0, 1, 2, 3)...)
	a.await(t, 20)
	cancel()
	read.Wait()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	await(t, "all partitions again", owns(m, 4))
	await(t, "the cooperative protocol again", protocol("cooperative-sticky"))
	kafkatest.Produce(t, topic, records(10, 0, 1, 2, 3)...)
	a.await(t, 60)
}

// Members of franz-go and of this package share partitions, whichever leads the group.
func TestFranzGoIsTolerated(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 4)
	for _, first := range []bool{true, false} {
		group := topic + map[bool]string{true: "first", false: "second"}[first]
		cfg := config(group)
		h := newPartitionRecorder()
		var m *member
		if first {
			m = start(t, h, topic, cfg)
			await(t, "all partitions", owns(m, 4))
		}
		other, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Brokers(t)...), kgo.ConsumerGroup(group),
			kgo.ConsumeTopics(topic), kgo.Balancers(kgo.CooperativeStickyBalancer()),
			kgo.HeartbeatInterval(100*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var polls sync.WaitGroup
		polls.Go(func() {
			for ctx.Err() == nil {
				other.PollFetches(ctx)
			}
		})
		if !first {
			await(t, "franz-go's group", func() bool { return describeGroup(t, group).State == "Stable" })
			m = start(t, h, topic, cfg)
		}
		await(t, "a share", owns(m, 2))
		if _, revoked := h.calls(); first && len(revoked) != 2 {
			t.Errorf("revoked: %v", revoked)
		}
		cancel()
		polls.Wait()
		other.Close()
		await(t, "the partitions that it left", owns(m, 4))
		m.stop(t)
	}
}
