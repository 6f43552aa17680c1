//go:build !race

package relay

import (
	"slices"

	"github.com/google/uuid"
)

func ownerNumber(id any) uint8 { return id.(uuid.UUID)[15] }

func opPresent(m *modelRun, a []any) (rows [][]any, _ error) {
	if state := m.s.db.members[ownerNumber(a[0])]; state != noMember {
		rows = append(rows, []any{state == memberAlive})
	}
	return rows, nil
}

func opRenew(m *modelRun, a []any) (rows [][]any, _ error) {
	owner, doubted := ownerNumber(a[0]), a[2].([]int16)
	for lane := range m.world.lanes {
		l := &m.s.db.lanes[lane]
		if l.owner != owner {
			continue
		}
		if slices.Contains(doubted, int16(lane)) || (l.expired && m.s.db.members[owner] != memberAlive) {
			l.fence++
			l.expired = false
		}
		rows = append(rows, []any{int16(lane), int64(l.fence)})
	}
	return rows, nil
}

func opJoin(m *modelRun, a []any) ([][]any, error) {
	m.s.db.members[ownerNumber(a[0])] = memberAlive
	return [][]any{{modelLong}}, nil
}

func opMembers(m *modelRun, a []any) (rows [][]any, _ error) {
	for owner, state := range m.s.db.members {
		if state == memberAlive || (state != noMember && owner == int(ownerNumber(a[1]))) {
			rows = append(rows, []any{ownerID(uint8(owner)), true})
		}
	}
	return rows, nil
}

func opTakeOver(m *modelRun, a []any) (rows [][]any, _ error) {
	owner := ownerNumber(a[0])
	for lane := range m.world.lanes {
		l := &m.s.db.lanes[lane]
		if len(rows) == a[2].(int) {
			break
		}
		if l.owner != 0 && (!l.expired || l.owner == owner && m.s.db.members[owner] != noMember ||
			m.s.db.members[l.owner] == memberAlive) {
			continue
		}
		whose := ""
		if l.owner != 0 {
			whose = ownerID(l.owner).String()
		}
		l.owner, l.expired = owner, false
		if !m.world.rules.sameFence {
			l.fence++
		}
		rows = append(rows, []any{int16(lane), int64(l.fence), whose})
	}
	return rows, nil
}

func opRelease(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, lane := range a[1].([]int16) {
		if l := &m.s.db.lanes[lane]; l.owner == ownerNumber(a[0]) {
			l.owner, l.expired = 0, true
			rows = append(rows, []any{lane})
		}
	}
	return rows, nil
}

func opLeave(m *modelRun, a []any) ([][]any, error) {
	owner := ownerNumber(a[0])
	for lane := range m.world.lanes {
		if m.s.db.lanes[lane].owner == owner {
			return nil, nil
		}
	}
	m.s.db.members[owner] = noMember
	return nil, nil
}

func opHighest(m *modelRun, _ []any) ([][]any, error) {
	return [][]any{{numbering(m.s.server), int64(m.s.db.last)}}, nil
}

// opHolders names transactions after their events.
func opHolders(m *modelRun, _ []any) (rows [][]any, _ error) {
	for ev := range uint8(len(m.world.keys)) {
		if m.s.tx[ev] == txOpen && !m.world.rules.noHolders {
			rows = append(rows, []any{string('0' + rune(ev)), false, string('0' + rune(ev))})
		}
	}
	return rows, nil
}

func opEnded(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, ev := range eventsIn(a[0].(string)) {
		if m.s.tx[ev] != txOpen {
			rows = append(rows, []any{string('0' + rune(ev)), m.s.tx[ev] == txDone})
		}
	}
	return rows, nil
}

func opSmallest(m *modelRun, a []any) (rows [][]any, _ error) {
	for i, lane := range a[0].([]int16) {
		id := int64(0)
		for _, ev := range m.rows(lane, inEvent, false) {
			if at := int64(m.s.db.rows[ev].id); at > a[1].([]int64)[i] && at <= a[2].([]int64)[i] && id == 0 {
				id = at
			}
		}
		rows = append(rows, []any{lane, id})
	}
	return rows, nil
}

func opUnsettled(m *modelRun, a []any) (rows [][]any, _ error) {
	for i, lane := range a[0].([]int16) {
		if m.blocked(lane, a[1].([]int64)[i]) {
			rows = append(rows, []any{lane})
		}
	}
	return rows, nil
}

func opBelow(m *modelRun, a []any) (rows [][]any, _ error) {
	for i, lane := range a[0].([]int16) {
		below := func(ev uint8) bool {
			id := int64(m.s.db.rows[ev].id)
			return id > a[2].(int64) && id <= min(a[1].([]int64)[i], a[3].(int64))
		}
		if slices.ContainsFunc(m.rows(lane, inEvent, false), below) {
			rows = append(rows, []any{lane})
		}
	}
	return rows, nil
}

func opRejoin(m *modelRun, a []any) ([][]any, error) {
	before, moved := m.s.db, int64(0)
	for ev := range uint8(len(m.world.keys)) {
		row, k := &m.s.db.rows[ev], m.world.of(ev)
		if k.mark >= 0 && k.topic == a[1] && k.key == a[2] && row.place == inHeld && m.behind(&before, ev) {
			*row = modelRow{place: inParked, id: row.id, maybe: row.sent || row.maybe}
			moved++
		}
	}
	return [][]any{{moved}}, nil
}

func opReleaseKey(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, k := range modelKeyOf {
		if k.mark >= 0 && k.topic == a[1] && k.key == a[2] && m.s.db.marks[k.mark] == markParked {
			m.s.db.marks[k.mark] = markReleasing
			rows = append(rows, []any{int64(len(m.listed(k.mark)))})
		}
	}
	return rows, nil
}

func opReleaseEvent(m *modelRun, a []any) ([][]any, error) {
	if _, row := m.find(a[0].(int16), a[1].(int64)); row != nil && row.place == inParked && row.alone {
		row.releasing = true
	}
	return nil, nil
}

func opDiscardEvent(m *modelRun, a []any) (rows [][]any, _ error) {
	lane, id := a[0].(int16), a[1].(int64)
	if _, row := m.find(lane, id); row != nil && row.place == inParked {
		maybe := row.maybe
		for _, e := range m.s.db.lanes[lane].journal {
			maybe = maybe || slices.Contains(e.ids[:e.n], uint8(id))
		}
		*row = modelRow{}
		rows = append(rows, []any{maybe})
	}
	return rows, nil
}

func opUnmarkEmpty(m *modelRun, a []any) ([][]any, error) {
	for _, k := range modelKeyOf {
		if k.mark >= 0 && k.lane == a[0] && k.topic == a[2] && k.key == a[3] && len(m.listed(k.mark)) == 0 {
			m.s.db.marks[k.mark] = unmarked
		}
	}
	return nil, nil
}

func opPause(m *modelRun, a []any) ([][]any, error) {
	m.s.db.paused |= topicBits([]string{a[0].(string)})
	return nil, nil
}

func opResume(m *modelRun, a []any) ([][]any, error) {
	m.s.db.paused &^= topicBits([]string{a[0].(string)})
	return nil, nil
}

func opFence(m *modelRun, _ []any) ([][]any, error) {
	for i := range m.world.lanes {
		l := &m.s.db.lanes[i]
		l.owner, l.expired = 0, true
		l.fence++
	}
	return nil, nil
}

func opNewIncarnation(m *modelRun, _ []any) ([][]any, error) {
	m.s.db.incarnation++
	m.s.db.system = m.s.server
	return [][]any{{epochName(m.s.db.incarnation)}}, nil
}
