package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/sleep"
)

// running is an assigned partition with its goroutine.
type running struct {
	*partition
	stop   context.CancelFunc      // no new batch begins after it
	cancel context.CancelCauseFunc // ends the handler's ctx, too
	done   chan struct{}
}

// take starts the assigned partitions that do not run yet, and gives up the running ones that are no longer assigned.
// It returns false if it gave up a partition: the member must then rejoin, so that another can get it.
func (s *session) take(ctx context.Context, again <-chan struct{}, given []Partition) bool {
	now := map[Partition]bool{}
	var added []Partition
	for _, p := range given {
		now[p] = true
		if s.running[p] == nil && !slices.Contains(added, p) {
			added = append(added, p)
		}
	}
	var revoked []*running
	for _, r := range s.all() {
		if !now[r.Partition] {
			revoked = append(revoked, r)
		}
	}
	if offsets, ok := s.committed(ctx, again, added); ok {
		for _, p := range added {
			s.start(ctx, p, offsets[p])
		}
	}
	s.announce(added, revoked)
	if len(revoked) == 0 {
		return true
	}
	late := s.end(revoked, min(handOver, s.c.cfg.DrainTimeout), errors.New("another member is given the partition"))
	s.giveUp(revoked)
	for _, r := range late {
		s.zombies[r.Partition] = r
	}
	return false
}

// announce logs and reports the partitions of the generation, without the revoked ones.
func (s *session) announce(added []Partition, revoked []*running) {
	c := s.c
	var names, gone []Partition
	for _, r := range revoked {
		gone = append(gone, r.Partition)
	}
	for _, r := range s.all() {
		if !slices.Contains(gone, r.Partition) {
			names = append(names, r.Partition)
		}
	}
	c.standstill.assigned(names, added)
	c.cfg.Logger.Info("partitions assigned", "generation", s.generation(), "partitions", fmt.Sprint(names), "new",
		len(added), "given_up", fmt.Sprint(gone))
	if c.cfg.Observer.Assigned != nil {
		c.cfg.Observer.Assigned(AssignedInfo{Generation: s.generation(), Partitions: names})
	}
}

// start runs a partition. If this member gave it up before and its handler still runs, the partition waits for that
// handler.
func (s *session) start(ctx context.Context, name Partition, at groupOffset) {
	r := &running{done: make(chan struct{}), partition: &partition{
		Partition: name, c: s.c, budget: s.budget, commits: s.commits, group: at,
		chunks: make(chan chunk), next: -1, high: -1,
	}}
	r.reading.group = at
	work, stop := context.WithCancel(ctx)
	handle, cancel := context.WithCancelCause(sleep.WithStop(context.WithoutCancel(ctx), work.Done()))
	r.stop, r.cancel = stop, cancel
	before := s.zombies[name]
	delete(s.zombies, name)
	s.mu.Lock()
	s.running[name] = r
	s.budget.partitions.Store(int64(len(s.running)))
	lost := s.lost
	s.mu.Unlock()
	if lost != nil {
		r.stop()
		r.cancel(lost)
	}
	go func() {
		defer close(r.done)
		defer cancel(nil)
		if before != nil {
			<-before.done
		}
		r.run(work, handle)
	}()
}

// end stops partitions. Their handlers may continue for drain; then their ctx ends. It returns the partitions whose
// handlers have not returned after two thirds of the time after which other members take over.
func (s *session) end(rs []*running, drain time.Duration, why error) (late []*running) {
	for _, r := range rs {
		r.stop()
	}
	if len(undone(rs, drain)) == 0 {
		return nil
	}
	for _, r := range rs {
		r.cancel(why)
	}
	limit := min(s.c.cfg.RebalanceTimeout, s.c.cfg.SessionTimeout) * 2 / 3
	if late = undone(rs, limit); len(late) > 0 {
		s.c.cfg.Logger.Error("a handler ignores the end of its ctx: its partition goes to others, and this member "+
			"takes no other partition for that one until it returns",
			"generation", s.generation(), "partitions", len(late), "waited", limit)
	}
	return late
}

// undone waits for partitions to end, and returns those that have not ended in time.
func undone(rs []*running, timeout time.Duration) (late []*running) {
	timer := time.NewTimer(max(0, timeout))
	defer timer.Stop()
	for i, r := range rs {
		select {
		case <-r.done:
			continue
		default:
		}
		select {
		case <-r.done:
		case <-timer.C:
			return slices.DeleteFunc(slices.Clone(rs[i:]), func(r *running) bool { return isClosed(r.done) })
		}
	}
	return nil
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// giveUpAll ends all partitions at once and waits for their handlers. The member stays out of the group until then.
func (s *session) giveUpAll() {
	why := s.lostWhy()
	if why == nil {
		why = kafka.RebalanceInProgress
	}
	all := s.all()
	for _, r := range s.end(all, 0, fmt.Errorf("the generation is over: %w", why)) {
		<-r.done
	}
	s.giveUp(all)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joined = false
	if s.lost != nil {
		s.lost, s.isLost = nil, make(chan struct{})
	}
}

// giveUp commits the decided offsets of partitions if the broker accepts them, and then drops the partitions.
func (s *session) giveUp(rs []*running) {
	if err := s.commits.flushLast(); err != nil {
		s.c.cfg.Logger.Warn("the last offsets were not committed: their events will be delivered again", "generation",
			s.generation(), "error", err)
	}
	s.forget(rs)
}

func (s *session) forget(rs []*running) {
	s.commits.release(rs)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rs {
		delete(s.running, r.Partition)
	}
	s.budget.partitions.Store(int64(len(s.running)))
}

// dropUnowned ends partitions that this member kept while the group changed to an eager protocol. Another member may
// read them already, so their last decided offsets are not committed.
func (s *session) dropUnowned(given []Partition) {
	if s.protocol == cooperative {
		return
	}
	rs := slices.DeleteFunc(s.all(), func(r *running) bool { return slices.Contains(given, r.Partition) })
	for _, r := range s.end(rs, 0, errors.New("the group has members that know eager protocols only")) {
		<-r.done
	}
	s.forget(rs)
}

// all returns the running partitions, sorted.
func (s *session) all() []*running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.running), func(a, b *running) int {
		return a.Partition.compareTo(b.Partition)
	})
}

// owned returns the names of the running partitions.
func (s *session) owned() (ps []Partition) {
	for _, r := range s.all() {
		ps = append(ps, r.Partition)
	}
	return ps
}
