package cycle

import (
	"cmp"
	"iter"
	"slices"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay/internal/delivery"
)

// buffers are reused slices.
type buffers struct {
	events []event.Event
	items  []delivery.Item
}

// sort restores lane and sequence order, which SQL does not promise without an ORDER BY that would cost a sort of
// the payloads. New events have their ids in the number's place.
func (c *Claim) sort() {
	order := make([]ordinal, len(c.Events))
	for i := range order {
		order[i] = ordinal{c.Events[i].Position.Lane, int32(i), c.Events[i].Position.Seq}
	}
	if slices.IsSortedFunc(order, ordinal.compare) {
		return
	}
	slices.SortFunc(order, ordinal.compare)
	events, items := slices.Grow(c.scratch.events[:0], len(order)), slices.Grow(c.scratch.items[:0], len(order))
	for _, o := range order {
		events, items = append(events, c.Events[o.at]), append(items, c.Items[o.at])
	}
	clear(c.Events) // release the payloads
	clear(c.Items)
	c.scratch.events, c.scratch.items = c.Events, c.Items
	c.Events, c.Items = events, items
}

// ordinal is the position of an event in its lane, and in the claim.
type ordinal struct {
	lane int16
	at   int32
	seq  int64
}

func (o ordinal) compare(b ordinal) int {
	if o.lane != b.lane {
		return cmp.Compare(o.lane, b.lane)
	}
	return cmp.Compare(o.seq, b.seq)
}

// span is the range of a lane's events in a claim, to excluded.
type span struct{ from, to int }

func (s span) len() int { return s.to - s.from }

// runs yields the lanes that have events in a sorted claim, with their spans.
func (c *Claim) runs(at map[int16]*Part) iter.Seq2[*Part, span] {
	return func(yield func(*Part, span) bool) {
		for from, to := 0, 0; from < len(c.Events); from = to {
			lane := c.Events[from].Position.Lane
			for to = from + 1; to < len(c.Events) && c.Events[to].Position.Lane == lane; {
				to++
			}
			if !yield(at[lane], span{from, to}) {
				return
			}
		}
	}
}

// number gives the new events their journalled numbers: from the lane's next one on, in the order of ids, which are in
// the number's place until here. Events of an open entry have numbers already.
func (c *Claim) number(at map[int16]*Part) {
	for l, s := range c.runs(at) {
		if l.First != 0 {
			continue
		}
		l.First = l.Next
		for i := range c.Events[s.from:s.to] {
			c.Events[s.from+i].Position.Seq = l.Next
			l.Next++
		}
	}
}
