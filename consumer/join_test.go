package consumer

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/joingroup"
	"github.com/segmentio/kafka-go/protocol/syncgroup"
)

// A leader that believes another to be it, or that is not among the members, would have nobody assign its partitions,
// and wait for ever.
func TestAnswerThatContradictsItselfIsNoGeneration(t *testing.T) {
	t.Parallel()
	members := func(ids ...string) (all []joingroup.ResponseMember) {
		for _, id := range ids {
			all = append(all, joingroup.ResponseMember{MemberID: id})
		}
		return all
	}
	for name, c := range map[string]struct {
		member, leader string
		members        []joingroup.ResponseMember
		ok             bool
	}{
		"a leader":                   {"a", "a", members("a", "b"), true},
		"a member":                   {"a", "b", nil, true},
		"a member without a leader":  {"a", "", nil, true}, // of a group that the broker assigns
		"a leader by another's name": {"a", "b", members("a"), false},
		"a leader without a name":    {"a", "", members("a"), false},
		"a leader without members":   {"a", "a", nil, false},
		"a leader of others":         {"a", "a", members("b"), false},
		"nobody":                     {"", "b", nil, false},
	} {
		err := checkJoined(&joingroup.Response{MemberID: c.member, LeaderID: c.leader, Members: c.members})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a leader is assigned is what it has sent, and nobody is assigned a topic that it does not read.
func TestAssignmentOfAnother(t *testing.T) {
	t.Parallel()
	of := func(ps ...Partition) []byte { return encodeAssignment(ps) }
	mine, topics := of(Partition{"t", 0}, Partition{"t", 1}), []string{"t", "u"}
	sent := []syncgroup.RequestAssignment{
		{MemberID: "b", Assignment: of(Partition{"t", 2})}, {MemberID: "a", Assignment: mine},
	}
	for name, c := range map[string]struct {
		sent   []syncgroup.RequestAssignment
		answer []byte
		given  int // -1: refused
	}{
		"the leader's":                 {sent, mine, 2},
		"another's, to the leader":     {sent, of(Partition{"t", 2}), -1},
		"less, to the leader":          {sent, of(Partition{"t", 0}), -1},
		"nothing, to the leader":       {sent, nil, -1},
		"a member's":                   {nil, of(Partition{"u", 4}), 1},
		"nothing, to a member":         {nil, nil, 0},
		"another topic, to a member":   {nil, of(Partition{"s", 0}), -1},
		"no partition, to a member":    {nil, of(Partition{"t", -1}), -1},
		"what ends early, to a member": {nil, mine[:len(mine)-5], -1},
	} {
		s := &session{member: "a", topics: topics}
		given, err := s.assignedBy(c.answer, c.sent)
		if (err != nil) != (c.given < 0) || err == nil && len(given) != c.given {
			t.Errorf("%s: %v, %v", name, given, err)
		}
	}
}

// A group that never stops to rebalance is asked again at once, and then with pauses. When the member is out of touch
// for the time of a session, that is an outage.
func TestRebalanceWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := false
		c := &Consumer{cfg: Config{SessionTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)}}
		c.cfg.Observer.Outage = func(o OutageInfo) { down = o.Err != nil }
		c.outage = &outage{log: c.cfg.Logger, observer: &c.cfg.Observer}
		s := &session{
			c: c, contact: time.Now(), running: map[Partition]*running{}, isLost: make(chan struct{}),
			budget: newBudget(0),
		}
		s.commits = &committer{observer: &c.cfg.Observer, fenced: s.over}
		for number, want := range []time.Duration{0, time.Second, time.Second} {
			began := time.Now()
			s.failed(context.Background(), kafka.RebalanceInProgress, number+1, time.Second)
			if took := time.Since(began); took != want || down {
				t.Errorf("failure %d: %v, want %v; an outage: %t", number+1, took, want, down)
			}
		}
		passes(time.Minute)
		if s.failed(context.Background(), kafka.RebalanceInProgress, 4, time.Second); !down {
			t.Error("no outage")
		}
	})
}
