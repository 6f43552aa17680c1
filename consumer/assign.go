package consumer

import (
	"cmp"
	"maps"
	"slices"

	"github.com/segmentio/kafka-go"
)

// sizes maps each topic that can be read to its number of partitions.
type sizes map[string]int

// partitions returns the partitions of all topics, sorted.
func (s sizes) partitions() (all []Partition) {
	for _, topic := range slices.Sorted(maps.Keys(s)) {
		for id := range s[topic] {
			all = append(all, Partition{topic, int32(id)})
		}
	}
	return all
}

// claim is a member's subscription: its topics, and the partitions that it owns.
type claim struct {
	member     string
	topics     []string
	owned      []Partition
	generation int32 // the generation in which it owns them; -1: none
}

// assignment maps each member to its partitions.
type assignment map[string][]Partition

// assignCooperative is Kafka's cooperative-sticky assignment. Shares are as even as the subscriptions allow, and a
// partition stays with its owner unless that makes shares uneven. A partition that moves is assigned to nobody until
// its owner gives it up and rejoins, so no partition has two owners.
func assignCooperative(claims []claim, topics sizes) assignment {
	claims = slices.SortedFunc(slices.Values(claims), func(a, b claim) int { return cmp.Compare(a.member, b.member) })
	b := &balance{topics: map[string][]int{}, load: make([]int, len(claims)), at: map[Partition]int{}}
	for m, c := range claims {
		for _, topic := range c.topics {
			b.topics[topic] = append(b.topics[topic], m)
		}
	}
	owners := ownersOf(claims)
	b.all = slices.DeleteFunc(topics.partitions(), func(p Partition) bool { return len(b.topics[p.Topic]) == 0 })
	var free []Partition
	for _, p := range b.all {
		if m, ok := owners[p]; ok && slices.Contains(b.topics[p.Topic], m) {
			b.give(p, m)
		} else {
			free = append(free, p)
		}
	}
	for _, p := range free {
		b.give(p, b.least(p.Topic))
	}
	b.even()
	for m, c := range claims {
		for _, p := range c.owned {
			if to, ok := b.at[p]; ok && to != m {
				delete(b.at, p)
			}
		}
	}
	out := assignment{}
	for _, p := range b.all {
		if m, ok := b.at[p]; ok {
			out[claims[m].member] = append(out[claims[m].member], p)
		}
	}
	return out
}

// ownersOf returns the owner of each partition according to the newest generation. A partition that two members claim
// in that generation has no owner.
func ownersOf(claims []claim) map[Partition]int {
	owners, twice := map[Partition]int{}, map[Partition]bool{}
	for m, c := range claims {
		for _, p := range c.owned {
			before, ok := owners[p]
			switch {
			case !ok || claims[before].generation < c.generation:
				owners[p], twice[p] = m, false
			case before != m && claims[before].generation == c.generation:
				twice[p] = true
			}
		}
	}
	maps.DeleteFunc(owners, func(p Partition, _ int) bool { return twice[p] })
	return owners
}

// balance is an assignment in progress. Members are indexes into the claims.
type balance struct {
	all    []Partition
	topics map[string][]int // each topic's subscribers
	load   []int
	at     map[Partition]int
}

func (b *balance) give(p Partition, m int) {
	b.at[p] = m
	b.load[m]++
}

// least returns the topic's subscriber with the fewest partitions.
func (b *balance) least(topic string) int {
	return slices.MinFunc(b.topics[topic], func(x, y int) int { return cmp.Compare(b.load[x], b.load[y]) })
}

// even moves one partition at a time, where the difference between two shares is largest, until no move makes the
// shares more even.
func (b *balance) even() {
	for {
		least := map[string]int{}
		for topic := range b.topics {
			least[topic] = b.least(topic)
		}
		most, which := 1, Partition{}
		for _, p := range b.all {
			if d := b.load[b.at[p]] - b.load[least[p.Topic]]; d > most {
				most, which = d, p
			}
		}
		if most == 1 {
			return
		}
		b.load[b.at[which]]--
		b.give(which, least[which.Topic])
	}
}

// assignEager assigns with one of kafka-go's balancers, which do not consider owners.
func assignEager(by kafka.GroupBalancer, claims []claim, topics sizes) assignment {
	var members []kafka.GroupMember
	for _, c := range claims {
		members = append(members, kafka.GroupMember{ID: c.member, Topics: c.topics})
	}
	var all []kafka.Partition
	for _, p := range topics.partitions() {
		all = append(all, kafka.Partition{Topic: p.Topic, ID: int(p.ID)})
	}
	out := assignment{}
	for member, given := range by.AssignGroups(members, all) {
		for topic, ids := range given {
			for _, id := range ids {
				out[member] = append(out[member], Partition{topic, int32(id)})
			}
		}
	}
	return out
}
