package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/sleep"
)

const (
	// leaveTimeout is how long leaving the group may take. The broker then notices by itself, after SessionTimeout.
	leaveTimeout = 5 * time.Second
	// handOver is how long a handler may go on with a partition that another member waits for.
	handOver = time.Second
)

// session is this process as a member of the group, over generations. One goroutine joins, starts partitions and ends
// them; mu guards what others look at.
type session struct {
	c        *Consumer
	topics   []string // those that it subscribes to
	member   string   // id that the broker gave this member; empty: none
	protocol string   // that the group has chosen
	next     identity // of the generation that was joined last
	contact  time.Time
	assigned sizes // what this member assigned in this generation; nil: another member did
	withheld bool  // it left out partitions that their owners are to give up first
	commits  *committer
	budget   *budget
	zombies  map[Partition]*running // given up, and their handlers go on

	mu      sync.Mutex
	id      identity // of the generation that is adopted
	joined  bool
	joining bool // the group may be in a newer generation than id's
	running map[Partition]*running
	lost    error         // why all partitions are to be given up
	isLost  chan struct{} // closed when lost is set
}

// session is a member of the group until ctx ends, or until there is no topic any more.
func (c *Consumer) session(ctx context.Context, topics []string) {
	s := &session{
		c: c, topics: topics, budget: newBudget(c.cfg.BufferBytes), zombies: map[Partition]*running{},
		id: identity{generation: -1}, running: map[Partition]*running{}, isLost: make(chan struct{}),
	}
	s.commits = &committer{
		every: c.cfg.CommitEvery, observer: &c.cfg.Observer, fenced: s.over,
		send: func(next map[string]map[int]int64) error { return s.commit(context.WithoutCancel(ctx), next) },
	}
	c.setSession(s)
	beside, stop := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	others.Go(func() { s.commits.run(beside) })
	others.Go(func() { s.watchEnds(beside) })
	s.follow(ctx)
	stop()
	others.Wait()
	s.leave(ctx)
	c.setSession(nil)
	c.outage.forget(commitPart)
}

// follow goes from generation to generation. When it returns, no handler runs.
func (s *session) follow(ctx context.Context) {
	wait := newBackOff()
	stop := func() {}
	for ctx.Err() == nil && len(s.topics) > 0 {
		s.setJoining()
		given, err := s.join(ctx)
		if err != nil {
			s.failed(ctx, err, wait.NextBackOff())
			continue
		}
		wait.Reset()
		s.c.outage.works(groupPart)
		if s.lostWhy() != nil {
			s.beginAnew(ctx)
			continue
		}
		s.dropUnowned(given)
		s.adopt()
		var again <-chan struct{}
		again, stop = s.keep(ctx)
		if s.take(ctx, again, given) {
			select {
			case <-again:
			case <-s.isLost:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			break // the heartbeats go on while the handlers finish
		}
		stop()
		if s.lostWhy() != nil || s.protocol != cooperative {
			s.beginAnew(ctx)
		}
	}
	why := errors.New("the consumer was told to stop, and DrainTimeout is over")
	for _, r := range append(s.end(s.all(), s.c.cfg.DrainTimeout, why), slices.Collect(maps.Values(s.zombies))...) {
		<-r.done
	}
	s.giveUpAll()
	stop()
}

const groupPart = "group"

// failed decides what becomes of the member when it could not join.
func (s *session) failed(ctx context.Context, err error, pause time.Duration) {
	switch {
	case ctx.Err() != nil, errors.Is(err, kafka.RebalanceInProgress): // another member came or went meanwhile
		return
	case isFenced(err), time.Since(s.contact) >= s.c.cfg.SessionTimeout:
		s.over(err) // the partitions are others' by now
	}
	s.c.outage.fail(groupPart, err)
	if s.lostWhy() != nil {
		s.beginAnew(ctx)
	}
	_ = sleep.For(ctx, pause)
}

// beginAnew gives everything up, before this member joins again.
func (s *session) beginAnew(ctx context.Context) {
	why := s.lostWhy()
	s.giveUpAll()
	switch {
	case errors.Is(why, kafka.UnknownMemberId):
		s.member = ""
	case errors.Is(why, kafka.FencedInstanceID):
		// Two processes that take one InstanceID from each other all the time would get nothing done.
		s.member = ""
		s.c.cfg.Logger.Error("another process has joined the group with this InstanceID: give each worker its own",
			"instance", s.c.cfg.InstanceID, "stays_out_for", s.c.cfg.SessionTimeout)
		_ = sleep.For(ctx, s.c.cfg.SessionTimeout)
	}
}

// over has all partitions given up at once: they are others' now, or are to be begun anew.
func (s *session) over(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return
	}
	s.lost = err
	for _, r := range s.running {
		r.stop()
		r.cancel(fmt.Errorf("the generation is over: %w", err))
	}
	close(s.isLost)
}

func (s *session) lostWhy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

func (s *session) setJoining() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joining = true
}

// adopt makes the generation that was joined the one that heartbeats and commits are of.
func (s *session) adopt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id, s.joined, s.joining = s.next, true, false
}

func (s *session) isJoined() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joined
}

func (s *session) generation() int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id.generation
}

// leave takes a member out of the group, so that nobody waits for it. A static one stays, to come back.
func (s *session) leave(ctx context.Context) {
	if s.member == "" || s.c.cfg.InstanceID != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	_, _ = s.c.client.kafka().LeaveGroup(ctx, &kafka.LeaveGroupRequest{
		GroupID: s.c.cfg.Group, Members: []kafka.LeaveGroupRequestMember{{ID: s.member}},
	})
}

func (c *Consumer) setSession(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.member = s
}
