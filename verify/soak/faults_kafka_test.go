package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/roles"
)

func kafkaKinds() []kind {
	const track = "kafka"
	broker := func(s settings) (all []string) {
		for i := range s.brokers {
			all = append(all, strconv.Itoa(i))
		}
		return all
	}
	return []kind{
		{
			name: "broker-kill", track: track, shortest: time.Second, longest: 6 * time.Second, targets: broker,
			begin: brokerFault((*kafkatest.Cluster).Kill),
		},
		{
			name: "broker-stop", track: track, shortest: time.Second, longest: 5 * time.Second, targets: broker,
			begin: brokerFault((*kafkatest.Cluster).Stop),
		},
		{
			name: "broker-pause", track: track, shortest: 3 * time.Second, longest: 10 * time.Second, targets: broker,
			begin: brokerPause,
		},
		{
			name: "elections", track: track, shortest: 2 * time.Second, longest: 4 * time.Second, brokers: 3,
			targets: one("all topics"), begin: func(s *testbed, f fault) (func() error, error) {
				return s.shuffleLeaders(f)
			},
		},
		{
			name: "partitions-added", track: track, shortest: 3 * time.Second, longest: 8 * time.Second,
			targets: one(topicGrowing), begin: grow,
		},
		{
			name: "topic-recreated", track: track, checksEffect: true,
			shortest: 3 * time.Second, longest: 9 * time.Second,
			targets: one(topicDoomed), begin: recreate,
		},
		{
			name: "refused-topics", track: track, checksEffect: true,
			shortest: 15 * time.Second, longest: 25 * time.Second,
			targets: one("a thousand topics"), begin: refuse,
		},
		{
			name: "write-denied", track: track, alone: true, shortest: 2 * time.Second, longest: 8 * time.Second,
			targets: func(settings) []string {
				return []string{topicMain, topicSecond, topicLimited}
			}, begin: func(s *testbed, f fault) (func() error, error) {
				allow := kafkatest.Deny(s.t, s.kafka.Brokers(), f.target)
				return func() error { allow(); return nil }, nil
			},
		},
	}
}

// brokerFault ends a broker; its undo restarts it and restores the preferred leaders.
func brokerFault(end func(c *kafkatest.Cluster, i int)) func(s *testbed, f fault) (func() error, error) {
	return func(s *testbed, f fault) (func() error, error) {
		i, err := strconv.Atoi(f.target)
		if err != nil {
			return nil, err
		}
		s.kafkaMu.Lock()
		end(s.kafka, i)
		return func() error {
			defer s.kafkaMu.Unlock()
			if err := retry(func() error { return s.kafka.TryStart(i) }); err != nil {
				return err
			}
			return s.elect()
		}, nil
	}
}

func brokerPause(s *testbed, f fault) (func() error, error) {
	i, err := strconv.Atoi(f.target)
	if err != nil {
		return nil, err
	}
	s.kafkaMu.Lock()
	s.kafka.Pause(s.t, i)
	return func() error {
		defer s.kafkaMu.Unlock()
		s.kafka.Resume(s.t, i)
		return nil
	}, nil
}

// ask sends a request to the cluster without proxies.
func (x *testbed) ask(do func(ctx context.Context, c *kgo.Client) error) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(x.kafka.Brokers()...))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return do(ctx, client)
}

// elect restores the preferred leaders of all partitions.
func (x *testbed) elect() error {
	if x.brokers == 1 {
		return nil
	}
	return x.ask(func(ctx context.Context, c *kgo.Client) error {
		req := kmsg.NewPtrElectLeadersRequest()
		req.TimeoutMillis = 10_000
		_, err := req.RequestWith(ctx, c)
		return err
	})
}

// shuffleLeaders reorders the replicas of every partition, so that leaders change without a crash.
func (x *testbed) shuffleLeaders(f fault) (func() error, error) {
	draw := f.draw()
	err := x.ask(func(ctx context.Context, c *kgo.Client) error {
		req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		req.TimeoutMillis = 20_000
		for name, n := range topics {
			if name == topicDoomed {
				continue // it may not exist at the moment
			}
			t := kmsg.NewAlterPartitionAssignmentsRequestTopic()
			t.Topic = name
			for p := range n {
				part := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
				part.Partition = int32(p)
				for _, i := range draw.Perm(x.brokers) {
					part.Replicas = append(part.Replicas, int32(i+1))
				}
				t.Partitions = append(t.Partitions, part)
			}
			req.Topics = append(req.Topics, t)
		}
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
	if err != nil {
		return nil, err
	}
	return x.elect, nil
}

// grow adds partitions to a topic. The relays refuse it until the operator accepts, once every consumer has read the
// topic to its end.
func grow(s *testbed, _ fault) (func() error, error) {
	const most = 8
	if s.grown >= most {
		return nil, fmt.Errorf("%s has %d partitions by now", topicGrowing, s.grown)
	}
	next := s.grown + 1
	err := s.ask(func(ctx context.Context, c *kgo.Client) error {
		topic := kmsg.NewCreatePartitionsRequestTopic()
		topic.Topic, topic.Count = topicGrowing, int32(next)
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.Topics, req.TimeoutMillis = append(req.Topics, topic), 20_000
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	})
	if err != nil {
		return nil, err
	}
	s.grown = next
	return func() error { return s.accept(next) }, nil
}

// answerTimeout bounds the wait for unknown outcomes before the harness accepts anyway: the relays send nothing to the
// topic meanwhile, so some outcomes stay unknown.
const answerTimeout = 3 * time.Second

// catchUp bounds the wait until the topic is read to its end. Among crashes workers count each run of an event, and are
// slow; an acceptance without this wait loses the order of keys that move, which the checker excuses for this topic.
const catchUp = 20 * time.Second

// accept pins the new number of partitions, as `relay topics accept` does.
func (x *testbed) accept(partitions int) error {
	o, err := operator.New(x.admin, "", "harness")
	if err != nil {
		return err
	}
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for deadline := began.Add(2 * healLimit); ; <-tick.C {
		lag, err := x.lag(roles.Consumer, topicGrowing)
		if (err == nil && lag == 0) || time.Since(began) > catchUp {
			ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
			op := x.note(history.Entry{
				Kind: history.KindOperate, Verb: "accept", Topic: topicGrowing,
				Count: partitions,
			})
			err = o.AcceptPartitions(ctx, topicGrowing, partitions, time.Since(began) > answerTimeout,
				"the soak goes on")
			cancel()
			if err == nil {
				x.note(history.Entry{Kind: history.KindOperated, Op: op, Outcome: history.OK})
				return nil
			}
			x.note(history.Entry{Kind: history.KindOperated, Op: op, Outcome: history.Unknown, Err: err.Error()})
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s cannot be accepted with %d partitions: lag %d, %v", topicGrowing, partitions, lag,
				err)
		}
	}
}

// recreate deletes a topic and its records, and creates it again. The other topics have the same relays and the same
// consumer, and must go on.
func recreate(s *testbed, f fault) (func() error, error) {
	err := s.ask(func(ctx context.Context, c *kgo.Client) error {
		req, name := kmsg.NewPtrDeleteTopicsRequest(), topicDoomed
		req.TopicNames, req.TimeoutMillis = []string{name}, 20_000
		topic := kmsg.NewDeleteTopicsRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	})
	if err != nil {
		return nil, err
	}
	since := s.mark()
	return func() error {
		if _, err := s.lag(roles.Consumer, topicDoomed); errors.Is(err, kerr.UnknownTopicOrPartition) {
			s.tookEffect(f.kind)
			s.noteProgress(f, since)
		}
		return s.makeDoomed()
	}, nil
}

func (x *testbed) makeDoomed() error {
	return retry(func() error {
		err := x.ask(func(ctx context.Context, c *kgo.Client) error {
			topic := kmsg.NewCreateTopicsRequestTopic()
			topic.Topic, topic.NumPartitions, topic.ReplicationFactor = topicDoomed, int32(topics[topicDoomed]), -1
			req := kmsg.NewPtrCreateTopicsRequest()
			req.Topics, req.TimeoutMillis = append(req.Topics, topic), 20_000
			resp, err := req.RequestWith(ctx, c)
			if err != nil {
				return err
			}
			return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
		})
		if errors.Is(err, kerr.TopicAlreadyExists) {
			return nil
		}
		return err
	})
}

// lag returns how many records of a topic the group has not committed.
func (x *testbed) lag(group, topic string) (lag int64, err error) {
	err = x.ask(func(ctx context.Context, c *kgo.Client) error {
		ends, err := endOffsets(ctx, c, topic)
		if err != nil {
			return err
		}
		committed, err := groupOffsets(ctx, c, group, topic, len(ends))
		if err != nil {
			return err
		}
		for p, end := range ends {
			lag += end - max(0, committed[p])
		}
		return nil
	})
	return lag, err
}

func endOffsets(ctx context.Context, c *kgo.Client, topic string) (map[int32]int64, error) {
	meta := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	meta.Topics = append(meta.Topics, t)
	known, err := meta.RequestWith(ctx, c)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for _, p := range known.Topics[0].Partitions {
		part := kmsg.NewListOffsetsRequestTopicPartition()
		part.Partition, part.Timestamp, part.CurrentLeaderEpoch = p.Partition, -1, -1
		rt.Partitions = append(rt.Partitions, part)
	}
	req.Topics = append(req.Topics, rt)
	ends := map[int32]int64{}
	for _, shard := range c.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, shard.Err
		}
		for _, rt := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range rt.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, err
				}
				ends[p.Partition] = p.Offset
			}
		}
	}
	return ends, kerr.ErrorForCode(known.Topics[0].ErrorCode)
}

func groupOffsets(ctx context.Context, c *kgo.Client, name, topic string, partitions int) (map[int32]int64, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = name
	t := kmsg.NewOffsetFetchRequestTopic()
	t.Topic = topic
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = name
	gt := kmsg.NewOffsetFetchRequestGroupTopic()
	gt.Topic = topic
	for p := range partitions {
		t.Partitions, gt.Partitions = append(t.Partitions, int32(p)), append(gt.Partitions, int32(p))
	}
	req.Topics, group.Topics = append(req.Topics, t), append(group.Topics, gt)
	req.Groups = append(req.Groups, group)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return nil, err
	}
	committed := map[int32]int64{}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return nil, err
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				committed[p.Partition] = p.Offset
			}
		}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			committed[p.Partition] = p.Offset
		}
	}
	return committed, kerr.ErrorForCode(resp.ErrorCode)
}

// joining is the state of a group that waits for its members.
const joining = "PreparingRebalance"

// group describes the workers' group.
func (x *testbed) group() (g kmsg.DescribeGroupsResponseGroup, err error) {
	err = x.ask(func(ctx context.Context, c *kgo.Client) error {
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups = []string{roles.Consumer}
		for _, shard := range c.RequestSharded(ctx, req) {
			if shard.Err != nil {
				return shard.Err
			}
			for _, one := range shard.Resp.(*kmsg.DescribeGroupsResponse).Groups {
				g = one
			}
		}
		return kerr.ErrorForCode(g.ErrorCode)
	})
	return g, err
}

// groupState is empty if the broker does not answer.
func (x *testbed) groupState() string {
	g, err := x.group()
	if err != nil {
		return ""
	}
	return g.State
}

// members are the names of the group's members.
func (x *testbed) members() (names []string, err error) {
	g, err := x.group()
	for i := range g.Members {
		names = append(names, g.Members[i].ClientID)
	}
	slices.Sort(names)
	return names, err
}
