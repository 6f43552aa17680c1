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
	// leaveTimeout bounds the request to leave the group. If it fails, the broker notices after SessionTimeout.
	leaveTimeout = 5 * time.Second
	// handOver is how long a handler may continue with a partition that another member waits for.
	handOver = time.Second
)

// session is this process's membership of the group, over all its generations. One goroutine joins, starts partitions
// and ends them. mu guards the fields that other goroutines read.
type session struct {
	c        *Consumer
	topics   []string // the subscribed topics
	member   string   // the id from the broker; empty: none
	protocol string   // the protocol that the group chose
	next     identity // in the generation that was joined last
	contact  time.Time
	assigned sizes // the topics that this member assigned as leader; nil: another member is the leader
	withheld bool  // as leader, it withheld partitions that their owners must give up first
	commits  *committer
	budget   *budget
	zombies  map[Partition]*running // given up, but their handlers still run

	mu      sync.Mutex
	id      identity // in the adopted generation
	joined  bool
	joining bool // the group may be in a newer generation than id's
	running map[Partition]*running
	lost    error         // why all partitions must be given up; nil: they need not
	isLost  chan struct{} // closed when lost is set
}

// session is a member of the group until ctx ends or no topic is left.
func (c *Consumer) session(ctx context.Context, topics []string) {
	s := &session{
		c: c, topics: topics, budget: newBudget(c.cfg.BufferBytes), zombies: map[Partition]*running{},
		id: identity{generation: -1}, running: map[Partition]*running{}, isLost: make(chan struct{}),
	}
	s.commits = &committer{
		every: c.cfg.CommitEvery, observer: &c.cfg.Observer, fenced: s.over,
		send: func(next offsets) error { return s.commit(context.WithoutCancel(ctx), next) },
	}
	c.setSession(s)
	beside, stop := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	others.Go(func() { s.commits.run(beside) })
	others.Go(func() { s.watchEnds(beside) })
	others.Go(func() { s.watchHandler(beside) })
	s.follow(ctx)
	stop()
	others.Wait()
	s.leave(ctx)
	c.setSession(nil)
	c.outage.forget(commitPart)
}

// follow joins one generation after another, until ctx ends or no topic is left. When it returns, no handler runs.
func (s *session) follow(ctx context.Context) {
	wait, failures := newBackOff(), 0
	stop := func() {}
	for ctx.Err() == nil && len(s.topics) > 0 {
		s.setJoining()
		given, err := s.join(ctx)
		if err != nil {
			failures++
			s.failed(ctx, err, failures, wait.NextBackOff())
			continue
		}
		wait.Reset()
		failures = 0
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
			break // heartbeats continue while the handlers finish
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

// failed handles a failed join, the number-th in a row: it gives up the partitions if the membership is over, and waits
// for pause.
func (s *session) failed(ctx context.Context, err error, number int, pause time.Duration) {
	late := time.Since(s.contact) >= s.c.cfg.SessionTimeout
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, kafka.RebalanceInProgress) && !late: // a member joined or left meanwhile
		if number > 1 {
			_ = sleep.For(ctx, pause)
		}
		return
	case isFenced(err), late:
		if errors.Is(err, kafka.RebalanceInProgress) {
			err = fmt.Errorf("the group waits for members that left it without a word, such as killed ones: %w", err)
		}
		s.over(err) // other members may own the partitions now
	}
	s.c.outage.fail(groupPart, err)
	if s.lostWhy() != nil {
		s.beginAnew(ctx)
	}
	_ = sleep.For(ctx, pause)
}

// beginAnew gives up all partitions before this member rejoins.
func (s *session) beginAnew(ctx context.Context) {
	why := s.lostWhy()
	s.giveUpAll()
	switch {
	case errors.Is(why, kafka.UnknownMemberId):
		s.member = ""
	case errors.Is(why, kafka.FencedInstanceID):
		// Without a pause, two processes with one InstanceID would replace each other all the time.
		s.member = ""
		s.c.cfg.Logger.Error("another process has joined the group with this InstanceID: give each worker its own",
			"instance", s.c.cfg.InstanceID, "stays_out_for", s.c.cfg.SessionTimeout)
		_ = sleep.For(ctx, s.c.cfg.SessionTimeout)
	}
}

// over stops all partitions at once: other members own them now, or the member must begin anew.
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

// adopt makes the joined generation the one of heartbeats and commits.
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

// leave removes the member from the group, so that the group does not wait for it. A static member stays in the group.
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
	if c.member = s; s == nil {
		c.outSince = time.Now()
	}
}
