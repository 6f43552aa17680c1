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

// owning is a handler that notes which partitions were given to it and taken away.
type owning struct {
	*handler
	mu             sync.Mutex
	given, revoked []int32
}

func newOwning() *owning { return &owning{handler: newHandler()} }

func (o *owning) Assigned(_ string, p int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.given = append(o.given, p)
}

func (o *owning) Revoked(_ context.Context, _ string, p int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revoked = append(o.revoked, p)
}

func (o *owning) noted() (given, revoked []int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.given), slices.Clone(o.revoked)
}

func has(m *member, n int) func() bool { return func() bool { return len(m.Status().Partitions) == n } }

// Members that come and go take no partition from those that stay but what the newcomer gets.
func TestP9_2_KeptPartitionsNeverStop(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 6)
	a, b := newOwning(), newOwning()
	ma := start(t, a, topic, config(topic))
	await(t, "all partitions", has(ma, 6))
	mb := start(t, b, topic, config(topic))
	await(t, "shares", func() bool { return has(ma, 3)() && has(mb, 3)() })
	kafkatest.Produce(t, topic, records(10, 0, 1, 2, 3, 4, 5)...)
	a.await(t, 30)
	b.await(t, 30)
	mb.stop(t)
	await(t, "what the other left", has(ma, 6))
	kafkatest.Produce(t, topic, records(10, 0, 1, 2, 3, 4, 5)...)
	for _, events := range a.await(t, 90) {
		offsetsOf(t, events[max(0, len(events)-10):], 10, 20)
	}
	if given, revoked := a.noted(); len(given) != 9 || len(revoked) != 3 {
		t.Errorf("given %v, taken away %v", given, revoked)
	}
	if given, _ := b.noted(); len(given) != 3 {
		t.Errorf("the newcomer was given %v", given)
	}
}

// A static member that is back within SessionTimeout has what it had, killed or not, and the others notice nothing.
func TestStaticMemberKeepsPartitions(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 4)
	named := func(instance string, w *wires) consumer.Config {
		cfg := config(topic)
		cfg.InstanceID, cfg.SessionTimeout = instance, 5*time.Minute
		if w != nil {
			cfg.Dial = w.dial
		}
		return cfg
	}
	stays := newOwning()
	ms := start(t, stays, topic, named("stays", nil))
	wires := &wires{}
	m := start(t, newHandler(), topic, named("comes-back", wires))
	// The handler is told of a partition a moment after the member has it.
	await(t, "shares", func() bool {
		g, r := stays.noted()
		return has(ms, 2)() && has(m, 2)() && len(g)-len(r) == 2
	})
	generation := ms.Status().Generation
	given, revoked := stays.noted()
	for _, killed := range []bool{false, true} {
		had := m.Status().Partitions
		if killed {
			wires.cut()
		}
		m.stop(t)
		if killed {
			wires.mend()
		}
		h := newHandler()
		m = start(t, h, topic, named("comes-back", wires))
		await(t, "what it had", has(m, 2))
		for i, p := range m.Status().Partitions {
			if p.Partition != had[i].Partition {
				t.Errorf("killed %v: it had %v, and has %v", killed, had[i].Partition, p.Partition)
			}
		}
		kafkatest.Produce(t, topic, records(5, 0, 1, 2, 3)...)
		h.await(t, 10)
	}
	stays.await(t, 20)
	g, r := stays.noted()
	if len(g) != len(given) || len(r) != len(revoked) || ms.Status().Generation != generation {
		t.Errorf("the other noticed: given %v, taken away %v, generation %d, was %d", g, r, ms.Status().Generation,
			generation)
	}
}

// A static member is killed when it has given a partition up and has not joined again. It comes back into the same
// generation, in which nobody has that partition: the group's leader sees to it.
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
	await(t, "all partitions", has(leader, 4))
	wires := &wires{}
	cfg := named("killed")
	cfg.Dial = wires.dial
	h := &revoking{handler: newHandler(), revoked: make(chan struct{})}
	h.first = sync.OnceFunc(func() {
		wires.cut()
		close(h.revoked)
	})
	killed := start(t, h, topic, cfg)
	await(t, "shares", func() bool { return has(leader, 2)() && has(killed, 2)() })
	third := start(t, newHandler(), topic, named("third"))
	<-h.revoked
	killed.stop(t)
	wires.mend()
	again := start(t, newHandler(), topic, cfg)
	await(t, "everybody's share", func() bool { return has(leader, 2)() && has(again, 1)() && has(third, 1)() })
}

// revoking tells of the first partition that is taken away, before its member joins again.
type revoking struct {
	*handler
	first   func()
	revoked chan struct{}
}

func (r *revoking) Revoked(context.Context, string, int32) { r.first() }

// Of two processes with one InstanceID the newer one works. The other one commits nothing more, and says why.
func TestTwoProcessesWithOneInstanceID(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 1)
	said := &logs{}
	cfg := config(topic)
	cfg.InstanceID = "one"
	cfg.Logger = said.logger()
	old := start(t, newHandler(), topic, cfg)
	await(t, "the partition", has(old, 1))
	cfg.Logger = (&logs{}).logger()
	cfg.SessionTimeout = 7 * time.Second
	h := newHandler()
	start(t, h, topic, cfg)
	await(t, "the complaint", func() bool { return said.count("another process has joined the group") == 1 })
	kafkatest.Produce(t, topic, records(5, 0)...)
	h.await(t, 5)
}

// While a member is in the group that knows eager protocols only, as older versions of this package do, all are eager.
// When it is gone, nobody has to restart to be cooperative: one rolling update does it, and one takes it back.
func TestEagerMembersAreTolerated(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 4)
	brokers := kafkatest.Brokers(t)
	a := newHandler()
	m := start(t, a, topic, config(topic))
	await(t, "all partitions", has(m, 4))
	protocol := func(want string) func() bool {
		return func() bool {
			g := joined(t, topic)
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
	await(t, "a share", has(m, 2))
	await(t, "an eager protocol", protocol("range"))
	kafkatest.Produce(t, topic, records(10, 0, 1, 2, 3)...)
	a.await(t, 20)
	cancel()
	read.Wait()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	await(t, "all partitions again", has(m, 4))
	await(t, "the cooperative protocol again", protocol("cooperative-sticky"))
	kafkatest.Produce(t, topic, records(10, 0, 1, 2, 3)...)
	a.await(t, 60)
}

// franz-go's members and ours share out partitions, whoever of them leads.
func TestFranzGoIsTolerated(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 4)
	for _, first := range []bool{true, false} {
		group := topic + map[bool]string{true: "first", false: "second"}[first]
		cfg := config(group)
		h := newOwning()
		var m *member
		if first {
			m = start(t, h, topic, cfg)
			await(t, "all partitions", has(m, 4))
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
			await(t, "franz-go's group", func() bool { return joined(t, group).State == "Stable" })
			m = start(t, h, topic, cfg)
		}
		await(t, "a share", has(m, 2))
		if _, revoked := h.noted(); first && len(revoked) != 2 {
			t.Errorf("taken away: %v", revoked)
		}
		cancel()
		polls.Wait()
		other.Close()
		await(t, "what it left", has(m, 4))
		m.stop(t)
	}
}
