//go:build !race

package relay

import (
	"math"

	"github.com/effectonce/effectonce/relay/internal/cycle"
)

// args makes random parameters of a statement: mostly those that the relay would use, and some others.
func (c *modelCompare) args(name string, m *modelRun) []any {
	rnd := c.rnd
	lanes, fences, owner := c.ownership(m)
	own := []any{lanes, fences, ownerID(owner)}
	firsts, nexts, floors, fresh := make([]int64, len(lanes)), make([]int64, len(lanes)), make([]int64, len(lanes)),
		make([]bool, len(lanes))
	upperBounds := make([]int64, len(lanes))
	for i, lane := range lanes {
		firsts[i] = int64(m.s.db.lanes[lane].journal[rnd.IntN(modelEntries)].first)
		nexts[i] = []int64{0, 5, 100}[rnd.IntN(3)]
		floors[i], upperBounds[i] = int64(rnd.IntN(12)), []int64{int64(rnd.IntN(12)), math.MaxInt64}[rnd.IntN(2)]
		fresh[i] = rnd.IntN(2) == 0
	}
	ids := []string{numbering(1), "", "another"}[rnd.IntN(3)]
	limit, bytes, most := 1+rnd.IntN(3), 1<<30, 1+rnd.IntN(2)
	entries := append(own[:3:3], firsts)
	switch name {
	case "lock", "look", "look held", "open":
		return own
	case "meta", "raise incarnation", "paused", "highest", "fence", "new incarnation":
		return nil
	case "settle", "settle entries":
		return entries
	case "as known":
		return append(entries, epochName(uint8(rnd.IntN(4)/3)))
	case "reserve":
		return append(own, int64(cycle.BlockSize))
	case "unmark":
		return append(own, 100)
	case "move due":
		return append(own, most, bytes, cycle.EventOverhead)
	case "take", "list":
		if name == "list" { // it reads no more keys than that, the oldest first; here all of them
			return append(own, nexts, limit+2, bytes, cycle.EventOverhead, int64(cycle.BlockSize))
		}
		return append(own, nexts, limit, bytes, cycle.EventOverhead, int64(cycle.BlockSize), floors, ids, upperBounds)
	case "take marked":
		return append(own, nexts, limit, bytes, cycle.EventOverhead, int64(cycle.BlockSize), floors, ids, fresh,
			upperBounds)
	case "drain":
		return append(own, c.groups(lanes)...)
	case "emptied":
		return append(own, c.groups(lanes)[:3]...)
	case "try":
		topics, partitions := make([]string, len(lanes)), make([]int32, len(lanes))
		for i := range lanes {
			topics[i], partitions[i] = modelTopics[rnd.IntN(4)/3], int32(rnd.IntN(3))-1
		}
		return append(own, topics, partitions)
	case "untry":
		return append(own, c.someIDs(m, lanes))
	case "settle acked", "settle park", "settle hold":
		return append(entries, c.moves(name, m)...)
	}
	return c.otherArgs(name, m, owner, lanes, floors, ids)
}

func (c *modelCompare) otherArgs(name string, m *modelRun, owner uint8, lanes []int16, floors []int64,
	ids string,
) []any {
	rnd, lease, all := c.rnd, "1 hour", []int16{0, 1}
	k := modelKeyOf["ABCU"[rnd.IntN(4)]]
	id := int64(1)
	lane := int16(rnd.IntN(modelLanes))
	for ev := range uint8(modelEvents) {
		if row := &m.s.db.rows[ev]; row.place == inParked && (id == 1 || rnd.IntN(2) == 0) {
			id, lane = int64(row.id), m.world.of(ev).lane
		}
	}
	if owner == 0 {
		owner = 1
	}
	switch name {
	case "present", "leave":
		return []any{ownerID(owner)}
	case "renew":
		return []any{ownerID(owner), lease, lanes[:rnd.IntN(len(lanes)+1)]}
	case "join":
		return []any{ownerID(owner), "n", lease, rnd.IntN(2) == 0, "v", "", nil, nil}
	case "members":
		return []any{lease, ownerID(owner)}
	case "take over":
		return []any{ownerID(owner), lease, 1 + rnd.IntN(2), "0 seconds"}
	case "release":
		return []any{ownerID(owner), lanes}
	case "probe":
		return []any{lanes, lease, floors, ids, all[:rnd.IntN(3)]}
	case "due":
		return []any{lanes}
	case "unsettled":
		return []any{lanes, floors}
	case "smallest":
		upperBounds := make([]int64, len(lanes))
		for i := range upperBounds {
			upperBounds[i] = int64(rnd.IntN(12))
		}
		return []any{lanes, floors, upperBounds}
	case "below":
		return []any{lanes, floors, int64(rnd.IntN(6)), int64(rnd.IntN(12))}
	case "release key":
		return []any{"", k.topic, k.key}
	case "rejoin":
		return []any{"", k.topic, k.key, 100, 1 << 30}
	case "release event", "discard event":
		return []any{lane, id}
	case "unmark empty":
		return []any{k.lane, "", k.topic, k.key}
	case "pause":
		return []any{modelTopics[rnd.IntN(2)], "o", "r"}
	case "resume":
		return []any{modelTopics[rnd.IntN(2)]}
	}
	panic("no parameters for " + name)
}

// ownership chooses lanes with fences, most of them right, and an owner.
func (c *modelCompare) ownership(m *modelRun) (lanes []int16, fences []int64, owner uint8) {
	lanes, fences = []int16{}, []int64{}
	owner = m.s.db.lanes[c.rnd.IntN(modelLanes)].owner
	for lane := range modelLanes {
		if c.rnd.IntN(5) > 0 {
			fence := int64(m.s.db.lanes[lane].fence)
			if c.rnd.IntN(6) == 0 {
				fence++
			}
			lanes, fences = append(lanes, int16(lane)), append(fences, fence)
		}
		if c.rnd.IntN(3) > 0 && owner != 0 { // often of both lanes
			m.s.db.lanes[lane].owner = owner
			m.s.db.lanes[lane].expired = m.s.db.lanes[lane].expired && c.rnd.IntN(2) == 0
		}
	}
	return lanes, fences, owner
}

// groups chooses some groups of held events.
func (c *modelCompare) groups(lanes []int16) []any {
	glanes, topics, partitions, most := []int16{}, []string{}, []int32{}, []int32{}
	for _, lane := range lanes {
		for _, at := range placesOf(uint8(c.rnd.IntN(64))) {
			glanes, topics, partitions = append(glanes, lane), append(topics, at.Topic),
				append(partitions, at.Partition)
			most = append(most, int32(1+c.rnd.IntN(2)))
		}
	}
	return []any{glanes, topics, partitions, most, 1 << 30, cycle.EventOverhead}
}

func (c *modelCompare) someIDs(m *modelRun, lanes []int16) []int64 {
	ids := make([]int64, len(lanes))
	for i, lane := range lanes {
		ids[i] = 30
		for ev := range uint8(modelEvents) {
			if m.world.of(ev).lane == lane && m.s.drawn[ev] != 0 && (ids[i] == 30 || c.rnd.IntN(2) == 0) {
				ids[i] = int64(m.s.drawn[ev])
			}
		}
	}
	return ids
}

// moves chooses the events of a settle, and what becomes of each.
func (c *modelCompare) moves(name string, m *modelRun) []any {
	rnd := c.rnd
	lanes, ids, seqs, partitions := []int16{}, []int64{}, []int64{}, []int32{}
	alone, sent, attempts, reasons := []bool{}, []bool{}, []int32{}, []string{}
	tenants, topics, keys := []string{}, []string{}, []string{}
	for ev := range uint8(modelEvents) {
		if m.s.drawn[ev] == 0 || rnd.IntN(4) == 0 {
			continue
		}
		k := m.world.of(ev)
		lanes, ids = append(lanes, k.lane), append(ids, int64(m.s.drawn[ev]))
		seqs, partitions, sent = append(seqs, 50+int64(ev)), append(partitions, int32(rnd.IntN(3))-1),
			append(sent, rnd.IntN(2) == 0)
		alone, attempts, reasons = append(alone, k.key == "" || rnd.IntN(4) == 0), append(attempts, int32(rnd.IntN(2))),
			append(reasons, "r")
		if k.key != "" {
			tenants, topics, keys = append(tenants, ""), append(topics, k.topic), append(keys, k.key)
		}
	}
	switch name {
	case "settle acked":
		return []any{lanes, ids}
	case "settle park":
		return []any{lanes, ids, alone, sent, attempts, reasons, reasons}
	case "settle hold":
		return []any{lanes, ids, seqs, partitions, sent}
	}
	return []any{tenants, topics, keys}
}
