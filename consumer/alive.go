package consumer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"

	"github.com/effectonce/effectonce/internal/sleep"
)

// Heartbeats and commits go through kafka-go's transport. It looks up the coordinator each time and replaces a broken
// connection. A failed request does not end the membership, because the broker waits for SessionTimeout.

// keep sends heartbeats and watches the topics until stop is called. The channel again is closed when the member has to
// rejoin.
func (s *session) keep(ctx context.Context) (again <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	joins := make(chan struct{})
	var once sync.Once
	join := func() { once.Do(func() { close(joins) }) }
	var both sync.WaitGroup
	both.Go(func() { s.heartbeats(ctx, join) })
	both.Go(func() { s.watchTopics(ctx, join) })
	return joins, func() {
		cancel()
		both.Wait()
	}
}

// heartbeats sends heartbeats until ctx ends, or until the generation is over: the broker says so, or SessionTimeout
// has passed without an answer. Heartbeats are more frequent at the start of a generation, because the next rebalance
// follows at once if a member gives up a partition.
func (s *session) heartbeats(ctx context.Context, join func()) {
	const part = "heartbeats"
	cfg := &s.c.cfg
	defer s.c.outage.forget(part)
	for began := time.Now(); ; {
		every := cfg.HeartbeatInterval
		if time.Since(began) < 3*every {
			every /= 5
		}
		_ = sleep.For(ctx, every)
		if ctx.Err() != nil {
			return
		}
		asked := time.Now()
		err := s.c.client.heartbeat(ctx, cfg, s.id)
		switch {
		case err == nil, errors.Is(err, kafka.RebalanceInProgress):
			s.contact = asked
			s.c.outage.works(part)
			if err != nil {
				join()
			}
		case ctx.Err() != nil:
			return
		case isFenced(err):
			s.over(err)
			return
		default:
			s.c.outage.fail(part, err)
			if time.Since(s.contact) >= cfg.SessionTimeout {
				s.over(err) // other members may own the partitions now
				return
			}
		}
	}
}

// watchTopics makes the member rejoin when topics appear or disappear, or when a topic's number of partitions differs
// from that of the last assignment. The leader also rejoins if a partition that it withheld may still have no owner: a
// static member that stops before it rejoins comes back without a rebalance.
func (s *session) watchTopics(ctx context.Context, join func()) {
	assigned := s.assigned // nil: another member is the leader, and watches its own assignment
	for began := time.Now(); ; {
		_ = sleep.For(ctx, 3*s.c.cfg.HeartbeatInterval)
		if ctx.Err() != nil {
			return
		}
		if s.withheld && time.Since(began) > 3*handOver {
			join()
			return
		}
		now, missing, err := s.c.client.sizes(ctx, s.c.topics)
		if err != nil {
			continue // fetches report the outage
		}
		s.c.logMissing(missing)
		if topics := slices.Sorted(maps.Keys(now)); !slices.Equal(topics, s.topics) {
			s.topics = topics
			join()
			return
		}
		if assigned == nil {
			assigned = now
		}
		for topic, n := range now {
			if assigned[topic] != n {
				join()
				return
			}
		}
	}
}

// committed queries the group's offsets of partitions until two answers are alike. It returns false if the member has
// to rejoin first, or if ctx ended.
func (s *session) committed(ctx context.Context, again <-chan struct{}, ps []Partition) (
	map[Partition]groupOffset, bool,
) {
	if len(ps) == 0 {
		return nil, true
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lost := s.isLost
	go func() {
		select {
		case <-again:
		case <-lost:
		case <-ctx.Done():
		}
		cancel()
	}()
	var at map[Partition]groupOffset
	ok := retry(ctx, func() bool {
		once, err := s.c.client.committed(ctx, s.c.cfg.Group, ps)
		if err == nil {
			at, err = s.c.client.committed(ctx, s.c.cfg.Group, ps)
		}
		if err == nil && !maps.EqualFunc(once, at, groupOffset.is) { // one answer may be false
			err = errors.New("offset fetch: two answers differ")
		}
		switch {
		case err == nil:
			s.c.outage.works(groupPart)
		case ctx.Err() == nil:
			s.c.outage.fail(groupPart, err)
		}
		return err == nil
	})
	return at, ok
}

// committed returns what the group has of the partitions. It asks for all partitions of their topics: the others tell
// how many there were when the group first saw the topic.
func (c *client) committed(ctx context.Context, group string, ps []Partition) (map[Partition]groupOffset, error) {
	topics := map[string]bool{}
	for _, p := range ps {
		topics[p.Topic] = true
	}
	now, _, err := c.sizes(ctx, slices.Collect(maps.Keys(topics)))
	if err != nil {
		return nil, err
	}
	ask := map[string][]int{}
	for _, p := range ps {
		now[p.Topic] = max(now[p.Topic], int(p.ID)+1)
	}
	for _, p := range now.partitions() {
		ask[p.Topic] = append(ask[p.Topic], int(p.ID))
	}
	ctx, cancel := context.WithTimeout(ctx, netTimeout)
	defer cancel()
	res, err := c.kafka().OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: ask})
	if err != nil {
		return nil, fmt.Errorf("offset fetch: %w", err)
	}
	if res.Error != nil {
		return nil, fmt.Errorf("offset fetch: %w", res.Error)
	}
	at := map[Partition]groupOffset{}
	for topic, answers := range res.Topics {
		for _, p := range answers {
			if p.Error != nil {
				return nil, fmt.Errorf("offset fetch of %s-%d: %w", topic, p.Partition, p.Error)
			}
			at[Partition{topic, int32(p.Partition)}] = newGroupOffset(p.CommittedOffset, p.Metadata)
		}
	}
	known := map[string]groupOffset{} // what all partitions of a topic tell
	for p, o := range at {
		of := known[p.Topic]
		of.learn(o)
		known[p.Topic] = of
	}
	for _, p := range ps {
		o, ok := at[p]
		if !ok {
			return nil, fmt.Errorf("offset fetch: the answer lacks %s", p)
		}
		of := known[p.Topic]
		o.topic, o.seen, o.logs = now[p.Topic], of.seen, of.logs
		at[p] = o
	}
	return at, nil
}

// commit commits offsets in the adopted generation, and reports an outage if that fails. While the member rejoins, the
// group may be in a newer generation already. The broker then refuses the commit; the member keeps its partitions.
func (s *session) commit(ctx context.Context, next offsets) error {
	s.mu.Lock()
	id := s.id
	s.mu.Unlock()
	err := s.c.client.commit(ctx, &s.c.cfg, id, next)
	s.mu.Lock()
	passing := s.joining || s.id != id
	s.mu.Unlock()
	switch {
	case err == nil:
		s.c.outage.works(commitPart)
	case passing && isFenced(err) && !errors.Is(err, kafka.FencedInstanceID):
		return kafka.RebalanceInProgress
	case !isFenced(err) && !errors.Is(err, kafka.RebalanceInProgress):
		s.c.outage.fail(commitPart, err)
	}
	return err
}

const commitPart = "offset commits"

func (c *client) heartbeat(ctx context.Context, cfg *Config, id identity) error {
	ctx, cancel := context.WithTimeout(ctx, min(netTimeout, cfg.SessionTimeout/3))
	defer cancel()
	res, err := c.transport.RoundTrip(ctx, c.addr, &heartbeatRequest{cfg.ClientID, cfg.Group, id})
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	if code := res.(*heartbeatResponse).errorCode; code != 0 {
		return fmt.Errorf("heartbeat: %w", kafka.Error(code))
	}
	return nil
}

// commit does not use kafka.Client's method, which sets leader epoch 0 for every offset.
func (c *client) commit(ctx context.Context, cfg *Config, id identity, next offsets) error {
	ctx, cancel := context.WithTimeout(ctx, min(netTimeout, cfg.SessionTimeout/3))
	defer cancel()
	req := &offsetcommit.Request{
		GroupID: cfg.Group, GenerationID: id.generation, MemberID: id.member, GroupInstanceID: id.instance,
		RetentionTimeMs: -1,
	}
	topics := map[string][]offsetcommit.RequestPartition{}
	for p, m := range next {
		topics[p.Topic] = append(topics[p.Topic], offsetcommit.RequestPartition{
			PartitionIndex: p.ID, CommittedOffset: m.next, CommitTimestamp: -1, CommittedLeaderEpoch: -1,
			CommittedMetadata: m.metadata,
		})
	}
	for topic, partitions := range topics {
		req.Topics = append(req.Topics, offsetcommit.RequestTopic{Name: topic, Partitions: partitions})
	}
	res, err := c.transport.RoundTrip(ctx, c.addr, req)
	if err != nil {
		return fmt.Errorf("offset commit: %w", err)
	}
	for _, t := range res.(*offsetcommit.Response).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				return fmt.Errorf("offset commit of %s-%d: %w", t.Name, p.PartitionIndex, kafka.Error(p.ErrorCode))
			}
		}
	}
	return nil
}

// heartbeatRequest is version 3 of Heartbeat, the first with static members (Kafka 2.3). kafka-go's own message is not
// routed to the coordinator, and encodes fields of version 4 incorrectly.
type heartbeatRequest struct {
	clientID, group string
	identity
}

type heartbeatResponse struct{ errorCode int16 }

var (
	_ protocol.GroupMessage = (*heartbeatRequest)(nil)
	_ protocol.RawExchanger = (*heartbeatRequest)(nil)
)

// ApiKey implements protocol.Message.
func (r *heartbeatRequest) ApiKey() protocol.ApiKey { return protocol.Heartbeat }

// ApiKey implements protocol.Message.
func (r *heartbeatResponse) ApiKey() protocol.ApiKey { return protocol.Heartbeat }

// Group routes the request to the group's coordinator.
func (r *heartbeatRequest) Group() string { return r.group }

// Required selects the raw exchange.
func (r *heartbeatRequest) Required(map[protocol.ApiKey]int16) bool { return true }

// RawExchange sends the request and reads the response.
func (r *heartbeatRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	be := binary.BigEndian
	b := str(requestHead(protocol.Heartbeat, 3, r.clientID), r.group)
	b = str(be.AppendUint32(b, uint32(r.generation)), r.member)
	if r.instance == "" {
		b = be.AppendUint16(b, ^uint16(0)) // none
	} else {
		b = str(b, r.instance)
	}
	answer, err := exchange(rw, b, 64)
	if err != nil {
		return nil, err
	}
	a := reader{b: answer}
	a.skip(4) // throttle time
	res := &heartbeatResponse{errorCode: a.int16()}
	if a.short {
		return nil, errors.New("an answer to a heartbeat that ends too early")
	}
	return res, nil
}
