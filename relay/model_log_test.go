//go:build !race

package relay

import (
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay/internal/delivery"
)

// placeOf returns the place that an event is published to.
func (m *modelRun) placeOf(e *event.Event) delivery.Place {
	return delivery.At(e.Topic, m.world.partition(eventOf(e.ID)))
}

// underWay keeps events of a request whose sender has given up.
func (m *modelRun) underWay(events []event.Event, which []int) {
	if len(which) == 0 {
		return
	}
	var q modelRequest
	for _, k := range which {
		it := &q.items[q.n]
		p := events[k].Position
		it.ev, it.seq, it.maybe = eventOf(events[k].ID), int32(p.Seq), p.MaybePublished
		q.epoch = epochNumber(p.Epoch)
		q.n++
	}
	for k := range m.s.net {
		if m.s.net[k].n == 0 {
			m.s.net[k] = q
			return
		}
	}
}

// consume adds an event to the log. Both consumers read it.
func (m *modelRun) consume(e *event.Event) {
	ev := eventOf(e.ID)
	s, bit := &m.s, uint8(1)<<ev
	if m.forbidden&topicBits([]string{e.Topic}) != 0 {
		m.fail("paused: a claim that began after the pause sent an event of the topic")
	}
	if s.tx[ev] != txDone && s.lost&bit == 0 {
		m.fail("phantom: an event was published that was never committed")
	}
	if s.inLog&bit == 0 {
		m.checkOrder(ev)
	}
	s.inLog |= bit
	m.checkByNumber(e, ev, bit)
}

// checkOrder checks the order of first occurrences: an event's cause comes before it.
func (m *modelRun) checkOrder(ev uint8) {
	s := &m.s
	if m.world.park == ParkEvent || s.discarded>>ev&1 == 1 {
		return // events parked alone are overtaken, and a discarded event may come once, late
	}
	for other := range uint8(len(m.world.keys)) {
		if other == ev || m.world.keys[other] != m.world.keys[ev] || m.world.keys[ev] == '-' {
			continue
		}
		switch in := s.inLog>>other&1 == 1; {
		case m.world.isScheduled(ev) || m.world.isScheduled(other): // order counts from the move
			if !in && s.moved>>other&1 == 1 && s.drawn[other] < s.drawn[ev] && s.discarded>>other&1 == 0 {
				m.fail("order: an event came before a scheduled one that was moved before it was appended")
			}
		case other < ev && !in && s.tx[other] == txDone && s.discarded>>other&1 == 0:
			m.fail("order: an event came before its cause")
		case other > ev && in:
			m.fail("order: an event came after one that it caused")
		}
	}
}

// checkByNumber is a consumer in watermark mode.
func (m *modelRun) checkByNumber(e *event.Event, ev, bit uint8) {
	s := &m.s
	if e.Position.MaybePublished {
		s.excused |= bit // quarantined until an operator decides
		return
	}
	epoch := epochNumber(e.Position.Epoch)
	if epoch >= modelEpochs {
		m.fail("the model has too few incarnations")
		return
	}
	mark := &s.marks[epoch][e.Position.Lane][placeIndex(m.placeOf(e))]
	if int32(e.Position.Seq) <= *mark {
		return
	}
	*mark = int32(e.Position.Seq)
	if s.applied[epoch]&bit != 0 && s.excused&bit == 0 {
		m.fail("numbers: an event was applied twice by a consumer that compares numbers")
	}
	s.applied[epoch] |= bit
}

// bad returns the violation in a state, or "".
func (w *modelWorld) bad(s *modelState) string {
	if s.bad != 0 {
		return w.bads[s.bad-1]
	}
	for lane := range s.db.lanes {
		if s.db.lanes[lane].journal[1].first != 0 {
			return "a lane has two open entries"
		}
	}
	m := &modelRun{world: w, s: *s}
	for _, k := range modelKeyOf {
		if k.mark >= 0 && s.db.marks[k.mark] == markParked && len(m.listed(k.mark)) == 0 {
			return "a key is parked with an empty list"
		}
	}
	for ev := range uint8(len(w.keys)) {
		if s.tx[ev] != txDone || s.discarded>>ev&1 == 1 || s.db.rows[ev].place != nowhere {
			continue
		}
		applied := s.excused
		for _, a := range s.applied {
			applied |= a
		}
		switch {
		case s.inLog>>ev&1 == 0:
			return "lost: an event left the outbox and never came to the log"
		case applied>>ev&1 == 0:
			return "numbers: a consumer that compares numbers dropped an event that it had not applied"
		}
	}
	return ""
}

// good reports whether the outbox is drained, but for events that wait for an operator.
func (w *modelWorld) good(s *modelState) bool {
	if s.db.paused != 0 {
		return false
	}
	for ev := range uint8(len(w.keys)) {
		row := &s.db.rows[ev]
		switch {
		case s.tx[ev] == txNone || s.tx[ev] == txOpen:
			return false
		case row.place == inEvent || row.place == inHeld || row.place == inScheduled || row.releasing:
			return false
		}
	}
	for lane := range s.db.lanes {
		if s.db.lanes[lane].journal[0].first != 0 {
			return false
		}
	}
	for _, mark := range s.db.marks {
		if mark == markReleasing {
			return false
		}
	}
	return true
}
