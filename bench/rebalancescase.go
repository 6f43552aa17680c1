package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	proc "github.com/effectonce/effectonce/internal/testenv/child"
)

const (
	// The topic of the rebalances case, and its events per second, evenly distributed.
	rebalancePartitions = 50
	rebalanceRate       = 2000
	// minStandstill is the shortest pause of all partitions that counts: a busy machine causes shorter ones.
	minStandstill = 250 * time.Millisecond
)

// rebalancesCase measures how long partitions stand still while the workers of a group are replaced one by one
// (SIGTERM, start) and killed one by one (SIGKILL, start). Each worker is a process; its handler only notes the time.
func rebalancesCase(ctx context.Context, s *stack, o options, rep *report) error {
	kind := "workers"
	if o.live.static {
		kind = "static members"
	}
	rep.note("rebalances", fmt.Sprintf("%d %s with the defaults of consumer.Config, %d partitions, %d events/s; %v "+
		"between two replacements. The seconds are those without progress", o.live.workers, kind, rebalancePartitions,
		rebalanceRate, o.live.rebalancePause))
	topic := fmt.Sprintf("bench-rebalances-%d", time.Now().UnixNano())
	if err := s.createTopic(ctx, kafka.TopicConfig{
		Topic: topic, NumPartitions: rebalancePartitions, ReplicationFactor: 1,
	}); err != nil {
		return err
	}
	defer func() {
		_, _ = s.kafka.DeleteTopics(context.WithoutCancel(ctx), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	}()
	producing, stop := context.WithCancel(ctx)
	produced := make(chan error, 1)
	go func() { produced <- produceEvenly(producing, s.brokers, topic) }()
	f := &fleet{dir: s.dir, static: o.live.static, job: job{Kind: "member", Brokers: s.brokers, Topic: topic}}
	err := f.measure(ctx, o.live, rep)
	stop()
	return errors.Join(err, f.end(), <-produced)
}

// fleet is the current and past workers of the rebalances case.
type fleet struct {
	dir    string
	static bool
	job    job
	now    []*member
	gone   []*member
}

// member is one process of a worker.
type member struct {
	worker  int
	process *proc.Process
	file    string
	away    span // from the signal until its replacement is ready
}

type span struct{ from, to time.Time }

func (f *fleet) measure(ctx context.Context, l live, rep *report) error {
	for w := range l.workers {
		m, err := f.start(w)
		if err != nil {
			return err
		}
		f.now = append(f.now, m)
	}
	for _, m := range f.now {
		if err := m.await(ctx, "ready"); err != nil {
			return err
		}
	}
	if err := pause(ctx, 3*l.rebalancePause); err != nil { // the group has found its shares
		return err
	}
	for turn, how := range []struct {
		name   string
		signal syscall.Signal
	}{{"replaced", syscall.SIGTERM}, {"killed", syscall.SIGKILL}} {
		during := span{from: time.Now()}
		for w := range f.now {
			if err := errors.Join(f.replace(ctx, w, how.signal), pause(ctx, l.rebalancePause)); err != nil {
				return err
			}
		}
		during.to = time.Now()
		all, err := f.decisions()
		if err != nil {
			return err
		}
		st := standstills(all, append(slices.Clone(f.gone), f.now...), during)
		rep.add(figure{
			Case: "rebalances", Name: how.name, Turn: turn + 1, Events: st.events,
			Seconds: during.to.Sub(during.from).Seconds(),
			Rate:    float64(st.events) / during.to.Sub(during.from).Seconds(),
		})
		rep.printf("    a partition: %.2f s at most, %.2f s beyond its own worker's restart; of a worker that was not "+
			"replaced and keeps it: %.2f s; all of them together: %.2f s in all, %.2f s at most", st.longest.Seconds(),
			st.beyond.Seconds(), st.kept.Seconds(), st.none.Seconds(), st.longestNone.Seconds())
		rep.atMost("rebalances", how.name+": standstill of a partition beyond its own worker's restart, s", 1,
			[]float64{st.beyond.Seconds()})
		rep.atMost("rebalances", how.name+": standstill of all partitions, s", 0, []float64{st.none.Seconds()})
	}
	return nil
}

func (f *fleet) start(worker int) (*member, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	j := f.job
	if f.static {
		j.Instance = fmt.Sprintf("worker-%d", worker)
	}
	in, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, childArg)
	cmd.Stdin = bytes.NewReader(in)
	m := &member{worker: worker, file: filepath.Join(f.dir, fmt.Sprintf("member-%d-%d", worker, time.Now().UnixNano()))}
	m.process, err = proc.Start(cmd, m.file, syscall.SIGKILL)
	return m, err
}

// replace ends a worker, and restarts it as soon as it has exited.
func (f *fleet) replace(ctx context.Context, w int, sig syscall.Signal) error {
	old := f.now[w]
	old.away.from = time.Now()
	old.process.Stop(sig, time.Minute)
	m, err := f.start(w)
	if err != nil {
		return err
	}
	f.now[w], f.gone = m, append(f.gone, old)
	err = m.await(ctx, "ready")
	old.away.to = time.Now()
	return err
}

// await waits until a member has written something.
func (m *member) await(ctx context.Context, what string) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if text, _ := os.ReadFile(m.file); bytes.Contains(text, []byte(what)) {
			return nil
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("a member does not get ready:\n%s", m.process.LogTail())
}

func (f *fleet) end() error {
	var wg sync.WaitGroup
	for _, m := range f.now {
		wg.Go(func() { m.process.Stop(syscall.SIGTERM, 30*time.Second) })
	}
	wg.Wait()
	for _, m := range f.now {
		if err := m.process.Wait(); err != nil {
			return fmt.Errorf("a member ended: %w\n%s", err, m.process.LogTail())
		}
	}
	return nil
}

// decision is the moment at which a member decided events of a partition.
type decision struct {
	at        time.Time
	partition int
	events    int
	by        *member
}

// decisions returns those of all members so far, ordered by time.
func (f *fleet) decisions() (all []decision, err error) {
	for _, m := range slices.Concat(f.gone, f.now) {
		text, err := os.ReadFile(m.file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			d := decision{by: m}
			var micros int64
			if n, _ := fmt.Sscanf(line, "decided %d %d %d\n", &d.partition, &d.events, &micros); n == 3 {
				d.at = time.UnixMicro(micros)
				all = append(all, d)
			}
		}
	}
	slices.SortFunc(all, func(a, b decision) int { return a.at.Compare(b.at) })
	return all, nil
}

// standstill is how long partitions stood still in some time.
type standstill struct {
	events            int
	longest, beyond   time.Duration // of a partition; less the time in which its worker was away
	kept              time.Duration // of a partition whose worker stays, and stays its worker
	none, longestNone time.Duration // all partitions, where that is longer than nobody
}

func standstills(all []decision, members []*member, during span) (st standstill) {
	ends := map[int]decision{}
	last := during.from
	idle := func(until time.Time) {
		if took := until.Sub(last); took > minStandstill {
			st.none, st.longestNone = st.none+took, max(st.longestNone, took)
		}
		last = until
	}
	gap := func(from, to decision) {
		took := to.at.Sub(from.at)
		st.longest = max(st.longest, took)
		if from.by == nil {
			st.beyond = max(st.beyond, took)
			return
		}
		st.beyond = max(st.beyond, took-overlap(from.by.away, span{from.at, to.at}))
		if to.by == from.by {
			st.kept = max(st.kept, took)
		}
	}
	for _, d := range all {
		if d.at.Before(during.from) || d.at.After(during.to) {
			continue
		}
		st.events += d.events
		idle(d.at)
		gap(cmp.Or(ends[d.partition], decision{at: during.from}), d)
		ends[d.partition] = d
	}
	idle(during.to)
	for p := range rebalancePartitions {
		gap(cmp.Or(ends[p], decision{at: during.from}), decision{at: during.to})
	}
	return st
}

// overlap returns the length of the intersection of two spans.
func overlap(a, b span) time.Duration {
	from, to := a.from, a.to
	if b.from.After(from) {
		from = b.from
	}
	if b.to.Before(to) {
		to = b.to
	}
	return max(0, to.Sub(from))
}

// produceEvenly sends one event to each partition in turn until ctx ends.
func produceEvenly(ctx context.Context, brokers []string, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0))
	if err != nil {
		return err
	}
	defer client.Close()
	var headers []kgo.RecordHeader
	tick := time.NewTicker(time.Second * rebalancePartitions / rebalanceRate)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return client.Flush(context.WithoutCancel(ctx))
		case <-tick.C:
		}
		for p := range int32(rebalancePartitions) {
			e := event.Event{ID: event.NewID(), Source: "bench", Type: "T"}
			headers = headers[:0:0]
			for _, h := range event.AppendHeaders(nil, &e) {
				headers = append(headers, kgo.RecordHeader(h))
			}
			client.Produce(context.WithoutCancel(ctx), &kgo.Record{Topic: topic, Partition: p, Headers: headers}, nil)
		}
	}
}

// memberChild consumes until SIGTERM, and writes its decisions.
func memberChild(ctx context.Context, j job) (a answer, err error) {
	var out sync.Mutex
	h := inbox.HandlerFunc(func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		out.Lock()
		defer out.Unlock()
		fmt.Printf("decided %d %d %d\n", events[0].Position.Partition, len(events), time.Now().UnixMicro())
		return slices.Repeat([]inbox.Outcome{inbox.Applied}, len(events)), nil
	})
	c, err := consumer.New(h, j.Brokers, []string{j.Topic}, consumer.Config{
		Group: j.Topic, InstanceID: j.Instance, Logger: quiet(),
	})
	if err != nil {
		return a, err
	}
	fmt.Println("ready")
	return a, c.Run(ctx)
}
