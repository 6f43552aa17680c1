//go:build !race

package relay

import (
	"math"
	"slices"

	"github.com/effectonce/effectonce/relay/internal/delivery"
)

func opSettle(m *modelRun, a []any) (rows [][]any, _ error) {
	var found int64
	for _, i := range m.own(a) {
		lane, first := a[0].([]int16)[i], a[3].([]int64)[i]
		e := m.entry(lane, first)
		if e == nil {
			continue
		}
		for k := range e.n {
			if _, row := m.find(lane, int64(e.ids[k])); row != nil && row.place == inEvent {
				*row = modelRow{}
				found++
			}
		}
		m.remove(lane, first)
		rows = append(rows, []any{lane, nil})
	}
	for _, row := range rows {
		row[1] = found
	}
	return rows, nil
}

func opSettleAcked(m *modelRun, a []any) ([][]any, error) {
	own, lanes, ids := m.ownEntries(a), a[4].([]int16), a[5].([]int64)
	for i, lane := range lanes {
		if slices.Contains(own, lane) {
			if _, row := m.find(lane, ids[i]); row != nil {
				*row = modelRow{}
			}
		}
	}
	return nil, nil
}

func opSettlePark(m *modelRun, a []any) ([][]any, error) {
	own, lanes, ids := m.ownEntries(a), a[4].([]int16), a[5].([]int64)
	alone, sent := a[6].([]bool), a[7].([]bool)
	for i, lane := range lanes {
		if !slices.Contains(own, lane) {
			continue
		}
		ev, row := m.find(lane, ids[i])
		if row == nil {
			if m.world.rules.ghostSettles && !alone[i] {
				m.markOf(lane, ids[i])
			}
			continue
		}
		k := m.world.of(ev)
		its := alone[i]
		switch row.place {
		case inEvent:
			*row = modelRow{place: inParked, id: row.id, alone: its, maybe: sent[i]}
		case inHeld:
			*row = modelRow{place: inParked, id: row.id, alone: its, maybe: sent[i] || row.sent || row.maybe}
		case inParked:
			row.releasing, row.maybe = false, row.maybe || sent[i]
			its = row.alone
		}
		if !its && k.mark >= 0 {
			m.s.db.marks[k.mark] = markParked
		}
	}
	return nil, nil
}

// markOf is the bug ghostSettles: an event's key is parked although no row of the event was moved.
func (m *modelRun) markOf(lane int16, id int64) {
	for _, ev := range m.allByID(lane) {
		if int64(m.s.drawn[ev]) == id && m.world.of(ev).mark >= 0 {
			m.s.db.marks[m.world.of(ev).mark] = markParked
		}
	}
}

func opSettleHold(m *modelRun, a []any) ([][]any, error) {
	own, lanes, ids, seqs := m.ownEntries(a), a[4].([]int16), a[5].([]int64), a[6].([]int64)
	partitions, sent := a[7].([]int32), a[8].([]bool)
	for i, lane := range lanes {
		if !slices.Contains(own, lane) {
			continue
		}
		_, row := m.find(lane, ids[i])
		if row == nil {
			continue
		}
		switch row.place {
		case inEvent, inParked:
			*row = modelRow{
				place: inHeld, id: row.id, seq: int32(seqs[i]), partition: int8(partitions[i]),
				sent: sent[i], maybe: row.maybe,
			}
		case inHeld:
			row.partition, row.sent = int8(partitions[i]), row.sent || sent[i]
		}
	}
	return nil, nil
}

func opSettleEntries(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, i := range m.own(a) {
		lane, first := a[0].([]int16)[i], a[3].([]int64)[i]
		if m.entry(lane, first) != nil {
			m.remove(lane, first)
			rows = append(rows, []any{lane})
		}
	}
	return rows, nil
}

func opTry(m *modelRun, a []any) (rows [][]any, _ error) {
	topics, partitions := a[3].([]string), a[4].([]int32)
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		held := slices.DeleteFunc(m.rows(lane, inHeld, true),
			func(ev uint8) bool { return m.world.of(ev).topic != topics[i] })
		if m.s.db.paused&topicBits(topics[i:i+1]) != 0 || partitions[i] == delivery.WholeTopic &&
			slices.ContainsFunc(held, func(ev uint8) bool { return m.s.db.rows[ev].partition >= 0 }) {
			continue
		}
		for _, ev := range held {
			if row := &m.s.db.rows[ev]; int32(row.partition) == partitions[i] &&
				(!m.behind(&m.s.db, ev) || m.world.rules.noBehind) {
				rows = append(rows, m.heldRow(lane, ev, row.sent))
				row.sent = true
				break
			}
		}
	}
	return rows, nil
}

func opUntry(m *modelRun, a []any) ([][]any, error) {
	for _, i := range m.own(a) {
		if _, row := m.find(a[0].([]int16)[i], a[3].([]int64)[i]); row != nil && row.place == inHeld {
			row.sent = false
		}
	}
	return nil, nil
}

func opProbe(m *modelRun, a []any) ([][]any, error) {
	ready, releasing := []int16{}, []int16{}
	for i, lane := range a[0].([]int16) {
		if len(m.above(lane, a[2].([]int64)[i], math.MaxInt64, a[3].(string))) > 0 {
			ready = append(ready, lane)
		}
	}
	for _, lane := range a[4].([]int16) {
		found := false
		for _, k := range modelKeyOf {
			found = found || (k.mark >= 0 && k.lane == lane && m.s.db.marks[k.mark] == markReleasing)
		}
		for _, ev := range m.rows(lane, inParked, false) {
			found = found || m.s.db.rows[ev].releasing
		}
		if found {
			releasing = append(releasing, lane)
		}
	}
	free, members := false, int64(0)
	for _, l := range m.s.db.lanes[:m.world.lanes] {
		free = free || l.owner == 0 || (l.expired && m.s.db.members[l.owner] != memberAlive)
	}
	for _, state := range m.s.db.members {
		if state == memberAlive {
			members++
		}
	}
	return [][]any{{ready, free, members, releasing}}, nil
}
