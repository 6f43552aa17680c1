package consumer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/joingroup"
	"github.com/segmentio/kafka-go/protocol/syncgroup"
)

// This file does not use kafka.ConsumerGroup, because it supports neither static members nor cooperative assignment. It
// does not use JoinGroup and SyncGroup of kafka.Client either: they write version 1 of a subscription, which has no
// generation, and cannot read other versions. The messages are kafka-go's; the subscriptions and assignments inside
// them are encoded and decoded here.

// cooperative is the protocol in which members keep their partitions while they join.
const cooperative = "cooperative-sticky"

// eager has the protocols in which members give up all partitions before they join. The broker chooses one of them if a
// member of the group supports no other.
var eager = []kafka.GroupBalancer{kafka.RangeGroupBalancer{}, kafka.RoundRobinGroupBalancer{}}

// identity identifies a member to the coordinator.
type identity struct {
	member, instance string
	generation       int32
}

// join joins the group's next generation, and returns the partitions that are assigned to this member.
func (s *session) join(ctx context.Context) (given []Partition, err error) {
	cfg := &s.c.cfg
	timeout := cfg.RebalanceTimeout + cfg.SessionTimeout + 30*time.Second // the broker waits for the other members
	res, err := s.askToJoin(ctx, timeout)
	if err != nil {
		return nil, err
	}
	s.member, s.contact, s.assigned, s.withheld = res.MemberID, time.Now(), nil, false
	next := identity{s.member, cfg.InstanceID, res.GenerationID}
	sync := &syncgroup.Request{
		GroupID: cfg.Group, GenerationID: next.generation, MemberID: next.member, GroupInstanceID: next.instance,
		ProtocolType: "consumer", ProtocolName: res.ProtocolName,
	}
	if res.LeaderID == res.MemberID {
		if sync.Assignments, err = s.assign(ctx, res); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := s.c.client.transport.RoundTrip(ctx, s.c.client.addr, sync)
	if err != nil {
		return nil, fmt.Errorf("sync group: %w", err)
	}
	synced := answer.(*syncgroup.Response)
	if synced.ErrorCode != 0 {
		return nil, fmt.Errorf("sync group: %w", kafka.Error(synced.ErrorCode))
	}
	if given, err = s.assignedBy(synced.Assignments, sync.Assignments); err != nil {
		return nil, fmt.Errorf("sync group: %w", err)
	}
	s.contact, s.protocol, s.next = time.Now(), res.ProtocolName, next
	return given, nil
}

// assignedBy returns what an answer assigns to this member. sent is what it has assigned as leader.
func (s *session) assignedBy(answer []byte, sent []syncgroup.RequestAssignment) ([]Partition, error) {
	for _, a := range sent {
		if a.MemberID == s.member && !bytes.Equal(a.Assignment, answer) {
			return nil, errors.New("the answer is not what this leader has assigned to itself")
		}
	}
	given, err := decodeAssignment(answer)
	for _, p := range given {
		if !slices.Contains(s.topics, p.Topic) || p.ID < 0 {
			return nil, fmt.Errorf("%v is no partition of a subscribed topic", p)
		}
	}
	return given, err
}

// askToJoin returns when all members of the group have joined. The broker first gives a new member its id, which the
// member needs to leave the group. ctx cannot cancel that first request.
func (s *session) askToJoin(ctx context.Context, timeout time.Duration) (*joingroup.Response, error) {
	cfg := &s.c.cfg
	for {
		req := &joingroup.Request{
			GroupID: cfg.Group, SessionTimeoutMS: int32(cfg.SessionTimeout.Milliseconds()),
			RebalanceTimeoutMS: int32(cfg.RebalanceTimeout.Milliseconds()), MemberID: s.member,
			GroupInstanceID: cfg.InstanceID, ProtocolType: "consumer",
			Protocols: []joingroup.RequestProtocol{{Name: cooperative, Metadata: encodeSubscription(s.topics, s.owned(),
				s.generation())}},
		}
		for _, b := range eager {
			req.Protocols = append(req.Protocols, joingroup.RequestProtocol{
				Name: b.ProtocolName(), Metadata: encodeEager(s.topics),
			})
		}
		asking := ctx
		if s.member == "" && cfg.InstanceID == "" {
			asking = context.WithoutCancel(ctx)
		}
		asking, cancel := context.WithTimeout(asking, timeout)
		res, err := s.c.client.transport.RoundTrip(asking, s.c.client.addr, req)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("join group: %w", err)
		}
		answer := res.(*joingroup.Response)
		switch code := kafka.Error(answer.ErrorCode); {
		case code == 0:
			return answer, checkJoined(answer)
		case code == kafka.MemberIDRequired && s.member == "" && answer.MemberID != "":
			s.member = answer.MemberID
		default:
			return nil, fmt.Errorf("join group: %w", code)
		}
	}
}

// checkJoined refuses a contradiction: only the leader is told who the members are, and it is one of them. A leader
// that takes another for it would have nobody assign the partitions.
func checkJoined(res *joingroup.Response) error {
	listed := slices.ContainsFunc(res.Members, func(m joingroup.ResponseMember) bool {
		return m.MemberID == res.MemberID
	})
	if leads := res.LeaderID == res.MemberID; res.MemberID == "" || leads != listed {
		return fmt.Errorf("join group: the answer contradicts itself: to member %q, with the leader %q and %d members",
			res.MemberID, res.LeaderID, len(res.Members))
	}
	return nil
}

// assign assigns the partitions to all members. Only the group's leader calls it.
func (s *session) assign(ctx context.Context, joined *joingroup.Response) ([]syncgroup.RequestAssignment, error) {
	claims, subscribed := make([]claim, 0, len(joined.Members)), map[string]bool{}
	for _, m := range joined.Members {
		c, err := decodeSubscription(m.Metadata)
		if err != nil {
			return nil, fmt.Errorf("what member %s subscribes to: %w", m.MemberID, err)
		}
		c.member = m.MemberID
		claims = append(claims, c)
		for _, topic := range c.topics {
			subscribed[topic] = true
		}
	}
	topics, client := slices.Collect(maps.Keys(subscribed)), s.c.client
	if slices.ContainsFunc(topics, func(t string) bool { return !slices.Contains(s.c.topics, t) }) {
		client = newClient(&s.c.cfg, s.c.brokers, topics) // s.c.client has metadata of this member's topics only
		defer client.close()
	}
	found, _, err := client.sizes(ctx, topics)
	if err != nil {
		return nil, err
	}
	s.assigned = found
	var all assignment
	if joined.ProtocolName == cooperative {
		all = assignCooperative(claims, found)
	}
	for _, b := range eager {
		if b.ProtocolName() == joined.ProtocolName {
			all = assignEager(b, claims, found)
		}
	}
	out, given := make([]syncgroup.RequestAssignment, 0, len(claims)), 0
	for _, c := range claims {
		out = append(out, syncgroup.RequestAssignment{MemberID: c.member, Assignment: encodeAssignment(all[c.member])})
		given += len(all[c.member])
	}
	s.withheld = given < len(found.partitions())
	return out, nil
}

// encodeSubscription writes version 2, the first with a generation. Members that read only older versions take the
// generation from the user data.
func encodeSubscription(topics []string, owned []Partition, generation int32) []byte {
	be := binary.BigEndian
	b := subscribe(2, topics)
	b = be.AppendUint32(be.AppendUint32(b, 4), uint32(generation))
	return be.AppendUint32(appendPartitions(b, owned), uint32(generation))
}

// encodeEager writes version 0, the only one that older versions of this package read.
func encodeEager(topics []string) []byte {
	const none = ^uint32(0)
	return binary.BigEndian.AppendUint32(subscribe(0, topics), none)
}

func subscribe(version uint16, topics []string) []byte {
	b := binary.BigEndian.AppendUint16(nil, version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(topics)))
	for _, topic := range topics {
		b = str(b, topic)
	}
	return b
}

// decodeSubscription reads any version. kafka-go's groups write version 1 without the owned partitions.
func decodeSubscription(b []byte) (claim, error) {
	r := reader{b: b}
	c := claim{generation: -1}
	version := r.int16()
	for n := r.int32(); n > 0 && !r.short; n-- {
		c.topics = append(c.topics, r.str())
	}
	r.skip(int(max(0, r.int32()))) // user data
	if version >= 1 && len(r.b) > 0 {
		c.owned = r.partitions()
	}
	if version >= 2 {
		c.generation = r.int32()
	}
	if r.short {
		return claim{}, errors.New("it ends too early")
	}
	return c, nil
}

func encodeAssignment(ps []Partition) []byte {
	b := binary.BigEndian.AppendUint16(nil, 0)
	return binary.BigEndian.AppendUint32(appendPartitions(b, ps), 0) // no user data
}

// decodeAssignment reads any version. Empty bytes are an empty assignment.
func decodeAssignment(b []byte) ([]Partition, error) {
	if len(b) == 0 {
		return nil, nil
	}
	r := reader{b: b}
	r.skip(2) // version
	ps := r.partitions()
	if r.short {
		return nil, errors.New("an assignment that ends too early")
	}
	return ps, nil
}

func appendPartitions(b []byte, ps []Partition) []byte {
	be := binary.BigEndian
	by := map[string][]int32{}
	for _, p := range ps {
		by[p.Topic] = append(by[p.Topic], p.ID)
	}
	b = be.AppendUint32(b, uint32(len(by)))
	for _, topic := range slices.Sorted(maps.Keys(by)) {
		b = be.AppendUint32(str(b, topic), uint32(len(by[topic])))
		for _, id := range by[topic] {
			b = be.AppendUint32(b, uint32(id))
		}
	}
	return b
}

func (r *reader) str() string { return string(r.take(int(r.int16()))) }

func (r *reader) partitions() (ps []Partition) {
	for n := r.int32(); n > 0 && !r.short; n-- {
		topic := r.str()
		for n := r.int32(); n > 0 && !r.short; n-- {
			ps = append(ps, Partition{topic, r.int32()})
		}
	}
	return ps
}
