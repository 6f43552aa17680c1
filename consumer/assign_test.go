package consumer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// group is a random group. Its members own the partitions of the last assignment that they adopted.
type group struct {
	claims []claim
	topics sizes
}

func drawGroup(r *rand.Rand, same bool) group {
	g := group{topics: sizes{}}
	var names []string
	for i := range 1 + r.IntN(4) {
		name := fmt.Sprintf("t%d", i)
		names = append(names, name)
		g.topics[name] = r.IntN(20)
	}
	for range 1 + r.IntN(8) {
		g.join(r, names, same)
	}
	return g
}

func (g *group) join(r *rand.Rand, names []string, same bool) {
	c := claim{member: fmt.Sprintf("m%d-%d", r.IntN(1000), len(g.claims)), generation: -1, topics: names}
	if !same {
		c.topics = slices.Clone(names)
		r.Shuffle(len(c.topics), func(i, j int) { c.topics[i], c.topics[j] = c.topics[j], c.topics[i] })
		c.topics = c.topics[:1+r.IntN(len(names))]
	}
	g.claims = append(g.claims, c)
}

// settle assigns until no member has to give up a partition, as a group does, and returns the number of rounds. check
// is called for each assignment.
func (g *group) settle(t *testing.T, check func(before []claim, after assignment)) (rounds int) {
	t.Helper()
	for again := true; again; rounds++ {
		if rounds > 3 {
			t.Fatalf("after %d rounds members still give up partitions: %+v", rounds, g)
		}
		again = false
		after := assignCooperative(g.claims, g.topics)
		check(g.claims, after)
		next := slices.Clone(g.claims)
		for i := range next {
			for _, p := range next[i].owned {
				again = again || !slices.Contains(after[next[i].member], p)
			}
			next[i].owned, next[i].generation = after[next[i].member], next[i].generation+1
		}
		g.claims = next
	}
	return rounds
}

func (g *group) owners() map[Partition]string {
	owners := map[Partition]string{}
	for _, c := range g.claims {
		for _, p := range c.owned {
			owners[p] = c.member
		}
	}
	return owners
}

// Members join and leave, and topics grow. No partition ever has two owners, no member is given a partition that
// another still owns, and within three rounds every partition that has a subscriber has an owner.
func TestNoPartitionHasTwoOwners(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		g := drawGroup(r, seed%2 == 0)
		for range 4 {
			g.settle(t, func(before []claim, after assignment) { checkRound(t, g.topics, before, after) })
			subscribed := map[string]bool{}
			for _, c := range g.claims {
				for _, topic := range c.topics {
					subscribed[topic] = true
				}
			}
			owners := g.owners()
			for _, p := range g.topics.partitions() {
				if _, ok := owners[p]; ok != subscribed[p.Topic] {
					t.Fatalf("seed %d: %v has an owner: %t", seed, p, ok)
				}
			}
			switch names := slices.Sorted(maps.Keys(g.topics)); r.IntN(3) {
			case 0:
				g.join(r, names, seed%2 == 0)
			case 1:
				if len(g.claims) > 1 {
					g.claims = slices.Delete(g.claims, 0, 1)
				}
			case 2:
				g.topics[names[0]] += r.IntN(4)
			}
		}
	}
}

func checkRound(t *testing.T, topics sizes, before []claim, after assignment) {
	t.Helper()
	given := map[Partition]string{}
	for member, ps := range after {
		for _, p := range ps {
			if other, ok := given[p]; ok {
				t.Fatalf("%v is given to %s and %s", p, other, member)
			}
			given[p] = member
			if int(p.ID) >= topics[p.Topic] {
				t.Fatalf("%v is assigned and does not exist", p)
			}
		}
	}
	for _, c := range before {
		for _, p := range c.owned {
			if to, ok := given[p]; ok && to != c.member {
				t.Fatalf("%v is given to %s while %s has it", p, to, c.member)
			}
		}
		for _, p := range after[c.member] {
			if !slices.Contains(c.topics, p.Topic) {
				t.Fatalf("%v is given to %s, which does not subscribe to it", p, c.member)
			}
		}
	}
}

// If all members subscribe to the same topics, their shares differ by at most one, and no more partitions move than
// that takes.
func TestSharesAreEvenAndFewMove(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		g := drawGroup(r, true)
		g.settle(t, func([]claim, assignment) {})
		if r.IntN(2) == 0 || len(g.claims) == 1 {
			g.join(r, slices.Sorted(maps.Keys(g.topics)), true)
		} else {
			g.claims = slices.Delete(g.claims, 0, 1)
		}
		owners, before := g.owners(), slices.Clone(g.claims)
		g.settle(t, func([]claim, assignment) {})
		all, least, maxAlloc := len(g.topics.partitions()), 1<<30, 0
		for _, c := range g.claims {
			least, maxAlloc = min(least, len(c.owned)), max(maxAlloc, len(c.owned))
		}
		if maxAlloc-least > 1 {
			t.Fatalf("seed %d: shares of %d to %d", seed, least, maxAlloc)
		}
		low, moved := all/len(g.claims), 0
		for p, member := range g.owners() {
			if was, ok := owners[p]; ok && was != member {
				moved++
			}
		}
		lacked := 0
		for _, c := range before {
			lacked += max(0, low-len(c.owned))
		}
		if moved > lacked {
			t.Fatalf("seed %d: %d partitions moved, want at most the %d that members lacked", seed, moved, lacked)
		}
	}
}

// A member that was away claims a partition that another owns since. The newer claim holds.
func TestTheNewerClaimHolds(t *testing.T) {
	t.Parallel()
	p := Partition{"t", 0}
	old := claim{member: "a", topics: []string{"t"}, owned: []Partition{p}, generation: 3}
	newer := claim{member: "b", topics: []string{"t"}, owned: []Partition{p}, generation: 4}
	if got := assignCooperative([]claim{old, newer}, sizes{"t": 1}); len(got) != 0 {
		t.Errorf("assigned while two members claim it: %v", got)
	}
	old.owned = nil
	if got := assignCooperative([]claim{old, newer}, sizes{"t": 1}); !slices.Equal(got["b"], []Partition{p}) {
		t.Errorf("the owner lost it: %v", got)
	}
}

// Subscriptions and assignments survive encoding and decoding. Those of other clients are read: older versions, newer
// ones, and malformed bytes.
func TestSubscriptions(t *testing.T) {
	t.Parallel()
	owned := []Partition{{"a", 1}, {"a", 2}, {"b", 0}}
	ours := encodeSubscription([]string{"a", "b"}, owned, 7)
	c, err := decodeSubscription(ours)
	if err != nil || c.generation != 7 || !slices.Equal(c.owned, owned) || !slices.Equal(c.topics, []string{"a", "b"}) {
		t.Errorf("%+v, %v", c, err)
	}
	short := append([]byte{0, 1}, encodeEager([]string{"a"})[2:]...) // kafka-go writes version 1 without partitions
	newer := append(append([]byte{0, 3}, ours[2:]...), 0xff, 0xff)   // version 3 has a rack
	for _, b := range [][]byte{encodeEager([]string{"a"}), short, newer} {
		if c, err := decodeSubscription(b); err != nil || c.topics[0] != "a" {
			t.Errorf("%x: %+v, %v", b, c, err)
		}
	}
	if ps, err := decodeAssignment(encodeAssignment(owned)); err != nil || !slices.Equal(ps, owned) {
		t.Errorf("%v, %v", ps, err)
	}
	if ps, err := decodeAssignment(nil); err != nil || len(ps) != 0 {
		t.Errorf("%v, %v", ps, err)
	}
	for n := range len(ours) {
		if _, err := decodeSubscription(ours[:n]); err == nil && n != len(ours)-4-len(appendPartitions(nil, owned)) {
			t.Errorf("no error for the first %d bytes", n)
		}
	}
	if _, err := decodeSubscription([]byte{0, 2, 0x7f, 0xff, 0xff, 0xff}); err == nil {
		t.Error("no error for a count of topics without the topics")
	}
}
