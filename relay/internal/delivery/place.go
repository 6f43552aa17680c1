// Package delivery decides the fates of a claim's events: which may be sent, what a verdict means, which are held and
// which are parked (P4). It has no SQL, no publisher and no clock.
package delivery

import (
	"maps"
	"slices"
)

// WholeTopic is used instead of a partition: the topic as a whole is refused, or its events' partitions are unknown.
const WholeTopic int32 = -1

// Place is where events go that succeed or fail together.
type Place struct {
	Topic     string
	Partition int32
}

// At returns the place of a topic's partition.
func At(topic string, partition int32) Place { return Place{topic, partition} }

// Whole returns the place of a topic as a whole.
func Whole(topic string) Place { return Place{topic, WholeTopic} }

// Groups are the places that a lane holds events for, by topic. A group has the held events of a lane for one
// partition, or for the topic as a whole. There may be thousands: a relay may lose its rights on all topics at once.
// Groups are replaced, not modified.
type Groups map[string][]int32

// Has reports whether there is a group for a place.
func (g Groups) Has(at Place) bool { return slices.Contains(g[at.Topic], at.Partition) }

// HasPartOf reports whether there is a group for some partition of a topic.
func (g Groups) HasPartOf(topic string) bool {
	return slices.ContainsFunc(g[topic], func(p int32) bool { return p != WholeTopic })
}

// With returns the groups and some more.
func (g Groups) With(more []Place) Groups {
	if len(more) == 0 {
		return g
	}
	out := make(Groups, len(g)+len(more))
	maps.Copy(out, g)
	for _, at := range more {
		out[at.Topic] = append(slices.Clip(out[at.Topic]), at.Partition)
	}
	return out
}

// Without returns the groups but for some.
func (g Groups) Without(gone []Place) Groups {
	out := maps.Clone(g)
	for _, at := range gone {
		rest := slices.DeleteFunc(slices.Clone(out[at.Topic]), func(p int32) bool { return p == at.Partition })
		if out[at.Topic] = rest; len(rest) == 0 {
			delete(out, at.Topic)
		}
	}
	return out
}

// Open returns the groups that can be sent while some places are closed. The group of a topic as a whole waits for
// those of its partitions, which are older.
func (g Groups) Open(closed map[Place]bool) (out []Place) {
	for topic, partitions := range g {
		if closed[Whole(topic)] {
			continue
		}
		before := len(out)
		for _, p := range partitions {
			if at := At(topic, p); p != WholeTopic && !closed[at] {
				out = append(out, at)
			}
		}
		if whole := Whole(topic); len(out) == before && g.Has(whole) {
			out = append(out, whole)
		}
	}
	return out
}
