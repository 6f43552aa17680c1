package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/sleep"
)

// leaveTimeout is how long leaving the group may take before its connections are cut: the broker then notices by
// itself, after SessionTimeout.
const leaveTimeout = 5 * time.Second

// session is one life of kafka-go's ConsumerGroup.
type session struct {
	c        *Consumer
	topics   []string              // those that it subscribes to
	assigned atomic.Pointer[sizes] // of when this member assigned partitions, until watchTopics takes it
	changed  atomic.Bool           // there are other topics than these
	member   string                // id that the broker gave this member; empty: not known
}

// session goes through generations until ctx ends, topics come or go, or the group seems to hang.
func (c *Consumer) session(ctx context.Context, topics []string) {
	const part = "group"
	cs := newConns(c.cfg.Dial)
	s := &session{c: c, topics: topics}
	group, err := kafka.NewConsumerGroup(c.groupConfig(cs, topics, s.balancers()))
	if err != nil { // New has validated the same config
		c.outage.fail(part, err)
		_ = sleep.For(ctx, time.Second)
		return
	}
	patience := leaveTimeout
	defer func() { closeGroup(group, cs, patience) }()
	// kafka-go bounds each step of a join by these; without an answer for longer than all of them, it hangs.
	silence := c.cfg.RebalanceTimeout + c.cfg.SessionTimeout + 30*time.Second
	for {
		waiting, cancel := context.WithTimeout(ctx, silence)
		gen, err := group.Next(waiting)
		cancel()
		switch {
		case ctx.Err() != nil && err != nil:
			if !s.leave(ctx) {
				patience = s.joinTimeout()
			}
			return
		case errors.Is(err, context.DeadlineExceeded):
			c.outage.fail(part, fmt.Errorf("no answer from the group for %v: starting anew", silence))
			return
		case errors.Is(err, kafka.RebalanceInProgress):
			continue // ordinary: another member came or went while this one joined
		case err != nil:
			s.member = ""
			c.outage.fail(part, fmt.Errorf("join group: %w", err))
			if errors.Is(err, kafka.UnknownTopicOrPartition) {
				return // look for the topics first
			}
			continue // kafka-go has its own pause between joins
		}
		c.outage.works(part)
		s.member = gen.MemberID
		if drained := s.generation(ctx, gen); drained || s.changed.Load() {
			return
		}
	}
}

// leave takes this member out of the group while it joins again, which kafka-go cannot do: the member would be given
// partitions that nobody reads until SessionTimeout. False: its id is not known yet, or the broker cannot be reached.
func (s *session) leave(ctx context.Context) bool {
	if s.member == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	_, err := s.c.client.kafka().LeaveGroup(ctx, &kafka.LeaveGroupRequest{
		GroupID: s.c.cfg.Group, Members: []kafka.LeaveGroupRequestMember{{ID: s.member}},
	})
	return err == nil
}

// joinTimeout is how long the first join may take. At its end kafka-go knows the id with which it can leave.
func (s *session) joinTimeout() time.Duration {
	if down, _, _ := s.c.outage.state(); down {
		return leaveTimeout
	}
	return s.c.cfg.RebalanceTimeout + leaveTimeout
}

// closeGroup leaves the group. kafka-go cannot be interrupted, so its connections are cut when it takes too long.
func closeGroup(group *kafka.ConsumerGroup, cs *conns, patience time.Duration) {
	cut := time.AfterFunc(patience, cs.shutdown)
	defer cut.Stop()
	_ = group.Close()
	cs.shutdown()
}

// generation is what runs between two rebalances.
type generation struct {
	c          *Consumer
	gen        *kafka.Generation
	commits    *committer
	partitions []*partition

	stopWork     context.CancelFunc      // no new batch shall begin
	cancelHandle context.CancelCauseFunc // handlers shall end too: the generation is over, or draining took too long
}

// generation runs one generation and returns when its handlers have ended and its offsets are committed: true when ctx
// ended, with the generation still alive, so that the caller can leave the group in order.
func (s *session) generation(ctx context.Context, kg *kafka.Generation) (drained bool) {
	c := s.c
	g := &generation{c: c, gen: kg}
	work, stopWork := context.WithCancel(ctx)
	defer stopWork()
	handle, cancelHandle := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancelHandle(nil)
	g.stopWork, g.cancelHandle = stopWork, cancelHandle
	commit := func(next map[string]map[int]int64) error { return g.commit(context.WithoutCancel(ctx), next) }
	g.commits = &committer{send: commit, every: c.cfg.CommitEvery, observer: &c.cfg.Observer, fenced: g.over}
	defer c.outage.forget(commitPart)
	g.assign()
	kg.Start(s.watchTopics)
	kg.Start(g.heartbeat)
	kg.Start(g.watchEnds)

	finished := make(chan struct{})
	kg.Start(func(ended context.Context) {
		g.run(ended, work, handle)
		close(finished)
		if ctx.Err() != nil {
			// The generation lives until this function returns: it must not return before the group is closed, or
			// kafka-go would join again at once.
			<-ended.Done()
		}
	})
	<-finished
	c.setGeneration(nil)
	return ctx.Err() != nil
}

// assign makes the partitions of the generation, and logs them.
func (g *generation) assign() {
	c := g.c
	n := 0
	for _, ps := range g.gen.Assignments {
		n += len(ps)
	}
	limit := newBudget(c.cfg.BufferBytes)
	names := make([]Partition, 0, n)
	for _, topic := range c.topics {
		for _, a := range g.gen.Assignments[topic] {
			name := Partition{Topic: topic, ID: int32(a.ID)}
			names = append(names, name)
			g.partitions = append(g.partitions, &partition{
				Partition: name, c: c, budget: limit, commits: g.commits,
				fetchBytes: limit.share(n, c.cfg.FetchBytes), start: a.Offset, chunks: make(chan chunk),
				next: -1, high: -1,
			})
		}
	}
	c.standstill.assigned(names)
	c.setGeneration(g)
	c.cfg.Logger.Info("partitions assigned", "generation", g.gen.ID, "partitions", fmt.Sprint(names))
	if c.cfg.Observer.Assigned != nil {
		c.cfg.Observer.Assigned(g.gen.ID, names)
	}
}

// over ends the generation's work at once: it is no longer ours.
func (g *generation) over(err error) {
	g.stopWork()
	g.cancelHandle(fmt.Errorf("the generation is over: %w", err))
}

// run works until the generation ended or Run's ctx did, and the handlers have returned; then it commits what they
// decided.
func (g *generation) run(ended, work, handle context.Context) {
	defer context.AfterFunc(ended, func() { g.over(kafka.ErrGenerationEnded) })()

	var workers, commits sync.WaitGroup
	commitCtx, stopCommits := context.WithCancel(context.Background())
	commits.Go(func() { g.commits.run(commitCtx) })
	for _, p := range g.partitions {
		workers.Go(func() { p.run(work, handle) })
	}
	<-work.Done()
	g.await(handle, &workers)
	stopCommits()
	commits.Wait()
	if err := g.commits.flushLast(); err != nil {
		g.c.cfg.Logger.Warn("the last offsets were not committed: their events will be delivered again", "generation",
			g.gen.ID, "error", err)
	}
}

// await waits for the handlers, and logs when they take too long.
func (g *generation) await(handle context.Context, workers *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		workers.Wait()
		close(done)
	}()
	drain := time.NewTimer(max(0, g.c.cfg.DrainTimeout))
	defer drain.Stop()
	select {
	case <-done:
		return
	case <-handle.Done():
	case <-drain.C:
		g.cancelHandle(errors.New("the consumer was told to stop, and DrainTimeout is over"))
	}
	// Other members take over when this much has passed: a handler that still runs then is a zombie.
	limit := min(g.c.cfg.RebalanceTimeout, g.c.cfg.SessionTimeout) * 2 / 3
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-done:
		return
	case <-late.C:
		g.c.cfg.Logger.Error("a handler ignores the end of its ctx: until it returns, this member stays out of the "+
			"group and its partitions go to others",
			"generation", g.gen.ID, "waited", limit)
	}
	<-done
}

func (c *Consumer) setGeneration(g *generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gen = g
}
