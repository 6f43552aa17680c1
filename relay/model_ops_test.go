//go:build !race

package relay

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/pg"
)

// modelOps are the model's versions of the room's statements, by the name in the statement's first line.
var modelOps map[string]func(m *modelRun, a []any) ([][]any, error)

func init() { //nolint:gochecknoinits // the operations call each other through the table's users
	modelOps = map[string]func(m *modelRun, a []any) ([][]any, error){
		"lock": opLock, "as known": opAsKnown, "reserve": opReserve, "meta": opMeta,
		"raise incarnation": opRaiseIncarnation,
		"paused":            opPaused, "look": opLook, "look held": opLookHeld, "emptied": opEmptied, "open": opOpen,
		"take": opTake, "take marked": opTakeMarked,
		"drain": opDrain, "unmark": opUnmark, "list": opList, "due": opDue, "move due": opMoveDue,
		"settle": opSettle, "settle acked": opSettleAcked, "settle park": opSettlePark,
		"settle hold": opSettleHold, "settle entries": opSettleEntries, "try": opTry, "untry": opUntry,
		"present": opPresent, "renew": opRenew, "join": opJoin, "prune": opNothing, "members": opMembers,
		"unfit":     opUnfit,
		"take over": opTakeOver,
		"release":   opRelease, "leave": opLeave, "probe": opProbe,
		"highest": opHighest, "holders": opHolders, "ended": opEnded, "smallest": opSmallest, "unsettled": opUnsettled,
		"below":  opBelow,
		"rejoin": opRejoin, "release key": opReleaseKey, "release event": opReleaseEvent,
		"discard event": opDiscardEvent, "unmark empty": opUnmarkEmpty,
		"pause": opPause, "resume": opResume, "fence": opFence, "new incarnation": opNewIncarnation,
	}
}

// execute runs a pipeline: one transaction, or separate statements.
func (m *modelRun) execute(b *pgx.Batch) (results []modelRows, err error) {
	before, level, locked, locks, floor := m.s.db, "", 0, false, false
	results = make([]modelRows, 0, len(b.QueuedQueries))
	for i, q := range b.QueuedQueries {
		if m.between != nil {
			m.between(i)
		}
		var rows [][]any
		switch name := statementName(q.SQL); name {
		case "begin", "probe settings":
		case "settings":
			level = q.Arguments[0].(string)
		case "commit":
			if locks && locked == 0 && m.s.db != before {
				m.fail("a stale owner changed the database")
			}
			m.commit(level, (!locks || locked > 0) && (!floor || !m.world.rules.lazyFloor))
		default:
			op := modelOps[name]
			if op == nil {
				panic("the model has no statement " + name)
			}
			m.world.ran[name] = true
			if rows, err = op(m, q.Arguments); err != nil {
				last := m.s.db.last // a sequence is not rolled back
				m.s.db = before
				m.s.db.last = last
				return results, err
			}
			floor = floor || name == "highest"
			if name == "lock" {
				locks, locked = true, len(rows)
			}
		}
		results = append(results, modelRows{all: rows})
	}
	return results, nil
}

// commit makes the writes that it covers durable if it waits for that. A COMMIT without writes waits for nothing.
func (m *modelRun) commit(level string, wrote bool) {
	switch {
	case !wrote || m.world.lagging || level == pg.Async || level == "":
	case level == pg.Disk && m.world.standby:
	case level == pg.Standby && m.world.rules.noBarrier:
	default:
		m.flush()
	}
}

func pgFailure(code string) error {
	return &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code}
}

func opNothing(*modelRun, []any) ([][]any, error) { return nil, nil }

func opUnfit(*modelRun, []any) ([][]any, error) { return [][]any{{int64(0), false, ""}}, nil }

// owns compares owner and fence, as every statement of a claim or settle does.
func (m *modelRun) owns(lane int16, fence int64, owner any) bool {
	l := &m.s.db.lanes[lane]
	return ownerID(l.owner) == owner.(uuid.UUID) && l.owner != 0 && (int64(l.fence) == fence || m.world.rules.noFence)
}

// own returns the lanes that the owner owns, as indexes into the parameters.
func (m *modelRun) own(a []any) (at []int) {
	lanes, fences := a[0].([]int16), a[1].([]int64)
	for i, lane := range lanes {
		if m.owns(lane, fences[i], a[2]) {
			at = append(at, i)
		}
	}
	return at
}

// entry returns an open entry by its number, or nil if it is gone.
func (m *modelRun) entry(lane int16, first int64) *modelEntry {
	for i := range m.s.db.lanes[lane].journal {
		if e := &m.s.db.lanes[lane].journal[i]; e.first != 0 && int64(e.first) == first {
			return e
		}
	}
	return nil
}

// ownEntries is own, restricted to lanes whose entry is there.
func (m *modelRun) ownEntries(a []any) (lanes []int16) {
	firsts := a[3].([]int64)
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		if m.entry(lane, firsts[i]) != nil || m.world.rules.ghostSettles {
			lanes = append(lanes, lane)
		}
	}
	return lanes
}

func (m *modelRun) write(lane int16, e modelEntry) error {
	j := &m.s.db.lanes[lane].journal
	if m.entry(lane, int64(e.first)) != nil {
		return pgFailure("23505")
	}
	if j[modelEntries-1].first != 0 {
		m.fail("a lane has more open entries than the model can store")
		return nil
	}
	j[modelEntries-1] = e
	slices.SortFunc(j[:], func(a, b modelEntry) int {
		switch {
		case a.first == b.first:
			return 0
		case a.first == 0 || (b.first != 0 && b.first < a.first):
			return 1
		}
		return -1
	})
	return nil
}

func (m *modelRun) remove(lane int16, first int64) {
	j := &m.s.db.lanes[lane].journal
	kept := [modelEntries]modelEntry{}
	n := 0
	for _, e := range j {
		if e.first != 0 && int64(e.first) != first {
			kept[n] = e
			n++
		}
	}
	*j = kept
	if m.world.rules.clearJournal {
		*j = [modelEntries]modelEntry{}
	}
}

// find returns the event whose row has an id in one of the tables.
func (m *modelRun) find(lane int16, id int64) (ev uint8, row *modelRow) {
	for ev := range uint8(len(m.world.keys)) {
		r := &m.s.db.rows[ev]
		if int64(r.id) == id && (r.place == inEvent || r.place == inHeld || r.place == inParked) &&
			m.world.of(ev).lane == lane {
			return ev, r
		}
	}
	return 0, nil
}

// rows returns the events that a lane has in a table, by id or by seq.
func (m *modelRun) rows(lane int16, in uint8, bySeq bool) (evs []uint8) {
	for ev := range uint8(len(m.world.keys)) {
		if m.s.db.rows[ev].place == in && m.world.of(ev).lane == lane {
			evs = append(evs, ev)
		}
	}
	slices.SortStableFunc(evs, func(a, b uint8) int {
		x, y := &m.s.db.rows[a], &m.s.db.rows[b]
		if bySeq {
			return int(x.seq) - int(y.seq)
		}
		return int(x.id) - int(y.id)
	})
	return evs
}

// columns returns the columns of an event that every claim reads.
func (m *modelRun) columns(ev uint8) []any {
	k := m.world.of(ev)
	return []any{modelIDs[ev], "", "", k.topic, k.key, "T", "c", []byte(nil), []byte(nil), modelTime}
}

var modelTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func opLock(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, i := range m.own(a) {
		rows = append(rows, []any{a[0].([]int16)[i]})
	}
	return rows, nil
}

func opAsKnown(m *modelRun, a []any) ([][]any, error) {
	if (a[4] != epochName(m.s.db.incarnation) || m.s.db.system != m.s.server) && !m.world.rules.noIncarnation {
		return nil, pgFailure("22012")
	}
	for _, i := range m.own(a) {
		if m.entry(a[0].([]int16)[i], a[3].([]int64)[i]) != nil && !m.world.rules.noTakenBack {
			return nil, pgFailure("22012")
		}
	}
	return [][]any{{int32(1)}}, nil
}

func opReserve(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		l := &m.s.db.lanes[lane]
		l.reserved += int32(a[3].(int64))
		rows = append(rows, []any{lane, int64(l.reserved)})
	}
	return rows, nil
}

func opMeta(m *modelRun, _ []any) ([][]any, error) {
	return [][]any{{epochName(m.s.db.incarnation), m.s.db.system == m.s.server || m.world.rules.noIncarnation}}, nil
}

func opRaiseIncarnation(m *modelRun, _ []any) ([][]any, error) {
	if m.s.db.system != m.s.server {
		m.s.db.incarnation++
		m.s.db.system = m.s.server
	}
	return nil, nil
}

func opPaused(m *modelRun, _ []any) ([][]any, error) {
	return [][]any{{topicsOf(m.s.db.paused)}}, nil
}

func opLook(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		parked, releasing := len(m.rows(lane, inParked, false)) > 0, false
		for _, k := range modelKeyOf {
			if k.mark >= 0 && k.lane == lane {
				parked = parked || m.s.db.marks[k.mark] != unmarked
				releasing = releasing || m.s.db.marks[k.mark] == markReleasing
			}
		}
		for _, ev := range m.rows(lane, inParked, false) {
			releasing = releasing || m.s.db.rows[ev].releasing
		}
		rows = append(rows, []any{lane, parked, releasing})
	}
	return rows, nil
}

func opLookHeld(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		bits := uint8(0)
		for _, ev := range m.rows(lane, inHeld, true) {
			bits |= placeBit(delivery.At(m.world.of(ev).topic, int32(m.s.db.rows[ev].partition)))
		}
		for _, at := range placesOf(bits) {
			rows = append(rows, []any{lane, at.Topic, at.Partition})
		}
	}
	return rows, nil
}

func opEmptied(m *modelRun, a []any) (rows [][]any, _ error) {
	lanes, topics, partitions := a[3].([]int16), a[4].([]string), a[5].([]int32)
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		for k := range lanes {
			left := slices.ContainsFunc(m.rows(lane, inHeld, true), func(ev uint8) bool {
				return m.world.of(ev).topic == topics[k] && int32(m.s.db.rows[ev].partition) == partitions[k]
			})
			if lanes[k] == lane && !left {
				rows = append(rows, []any{lane, topics[k], partitions[k]})
			}
		}
	}
	return rows, nil
}

func opOpen(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		for _, e := range m.s.db.lanes[lane].journal {
			var part [][]any
			for k := range e.n {
				ev, row := m.find(lane, int64(e.ids[k]))
				head := []any{
					lane, int64(e.first), int64(e.seqs[k]), row == nil, int64(e.ids[k]), int16(0), int32(0),
					false, false,
				}
				if row == nil {
					part = append(part, append(head, make([]any, 10)...))
					continue
				}
				switch row.place {
				case inHeld:
					head[5], head[6], head[8] = int16(1), int32(row.partition), row.maybe
				case inParked:
					head[5], head[7], head[8] = int16(2), row.alone, row.maybe
				}
				part = append(part, append(head, m.columns(ev)...))
			}
			m.misorder(lane, part)
			rows = append(rows, part...)
		}
	}
	return rows, nil
}

// misorder is the bugs resort and renumber.
func (m *modelRun) misorder(lane int16, part [][]any) {
	if m.world.rules.resort {
		slices.SortFunc(part, func(a, b []any) int { return int(a[4].(int64) - b[4].(int64)) })
		var seqs []int64
		for _, row := range part {
			seqs = append(seqs, row[2].(int64))
		}
		slices.Sort(seqs)
		for i, row := range part {
			row[2] = seqs[i]
		}
	}
	if m.world.rules.renumber {
		l := &m.s.db.lanes[lane]
		for _, row := range part {
			l.reserved++
			row[2] = int64(l.reserved)
		}
	}
}

// blocked reports whether the lane has an open entry from a number on.
func (m *modelRun) blocked(lane int16, from int64) bool {
	for _, e := range m.s.db.lanes[lane].journal {
		if e.first != 0 && int64(e.first) >= from {
			return true
		}
	}
	return false
}

// next returns the first of a lane's new numbers.
func (m *modelRun) next(lane int16, next, block int64) int64 {
	if next == 0 {
		return int64(m.s.db.lanes[lane].reserved) - block + 1
	}
	return next
}

// above returns the rows that take reads: the next ones of a lane above its floor, up to an id. There are none if an
// excepted transaction is visible.
func (m *modelRun) above(lane int16, floor, top int64, ids string) (evs []uint8) {
	ids, except, _ := strings.Cut(ids, " ")
	for _, ev := range eventsIn(except) {
		if m.s.tx[ev] != txOpen && !m.world.rules.exceptSeen {
			return nil
		}
	}
	if ids != numbering(m.s.server) || floor > int64(m.s.db.last) {
		floor = 0
	}
	evs = m.rows(lane, inEvent, false)
	if m.snapped { // the bug oneStatement: the state before the lane was locked
		return slices.DeleteFunc(m.allByID(lane), func(ev uint8) bool { return m.s.snap>>ev&1 == 0 })
	}
	if m.world.rules.cursor {
		floor = int64(m.s.cursor[lane])
	}
	return slices.DeleteFunc(evs, func(ev uint8) bool {
		return int64(m.s.db.rows[ev].id) <= floor ||
			int64(m.s.db.rows[ev].id) > top
	})
}

// eventsIn returns the events whose transactions a list of ids names.
func eventsIn(xids string) (evs []uint8) {
	for _, c := range []byte(xids) {
		if c >= '0' && c <= '9' {
			evs = append(evs, c-'0')
		}
	}
	return evs
}

func (m *modelRun) allByID(lane int16) (evs []uint8) {
	for ev := range uint8(len(m.world.keys)) {
		if m.world.of(ev).lane == lane && m.s.drawn[ev] != 0 {
			evs = append(evs, ev)
		}
	}
	slices.SortFunc(evs, func(a, b uint8) int { return int(m.s.drawn[a]) - int(m.s.drawn[b]) })
	return evs
}

func opTake(m *modelRun, a []any) ([][]any, error) { return m.take(a, false) }

func opTakeMarked(m *modelRun, a []any) ([][]any, error) { return m.take(a, true) }

// take is opTake and opTakeMarked.
func (m *modelRun) take(a []any, marked bool) (rows [][]any, err error) {
	nexts, limit, block, floors, ids := a[3].([]int64), a[4].(int), a[7].(int64), a[8].([]int64), a[9].(string)
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		from := nexts[i]
		if marked && a[10].([]bool)[i] {
			from = 0
		}
		upperBounds := a[len(a)-1].([]int64)
		if m.blocked(lane, from) {
			continue
		}
		evs := m.above(lane, floors[i], upperBounds[i], ids)
		evs = evs[:min(len(evs), limit)]
		e := modelEntry{first: int32(m.next(lane, nexts[i], block))}
		for _, ev := range evs {
			k, row := m.world.of(ev), &m.s.db.rows[ev]
			id := int64(max(row.id, m.s.drawn[ev]))
			if !m.snapped {
				id = int64(row.id)
			}
			behind := marked && k.mark >= 0 && m.s.db.marks[k.mark] != unmarked
			head := []any{lane, id}
			if marked {
				head = append(head, behind)
			}
			rows = append(rows, append(head, m.columns(ev)...))
			if behind {
				*row = modelRow{place: inParked, id: row.id}
				continue
			}
			e.ids[e.n], e.seqs[e.n] = uint8(id), e.first+int32(e.n)
			e.n++
			if m.world.rules.cursor {
				m.s.cursor[lane] = max(m.s.cursor[lane], uint8(id))
			}
		}
		if e.n > 0 {
			if err := m.write(lane, e); err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}

func opDrain(m *modelRun, a []any) (rows [][]any, err error) {
	lanes, topics, partitions, most := a[3].([]int16), a[4].([]string), a[5].([]int32), a[6].([]int32)
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		var evs []uint8
		for k := range lanes {
			if lanes[k] != lane {
				continue
			}
			n := int32(0)
			for _, ev := range m.rows(lane, inHeld, true) {
				if row := &m.s.db.rows[ev]; m.world.of(ev).topic == topics[k] &&
					int32(row.partition) == partitions[k] && n < most[k] {
					evs = append(evs, ev)
					n++
				}
			}
		}
		slices.SortFunc(evs, func(a, b uint8) int { return int(m.s.db.rows[a].seq) - int(m.s.db.rows[b].seq) })
		before := m.s.db // a row joins a list as it was before the statement, not as another row has left it
		var e modelEntry
		for _, ev := range evs {
			row := &m.s.db.rows[ev]
			behind := m.behind(&before, ev) && !m.world.rules.noBehind
			rows = append(rows, slices.Insert(m.heldRow(lane, ev, row.sent), 6, any(behind)))
			if behind {
				*row = modelRow{place: inParked, id: row.id, maybe: row.sent || row.maybe}
				continue
			}
			if e.n == 0 {
				e.first = row.seq
			}
			e.ids[e.n], e.seqs[e.n] = row.id, row.seq
			e.n++
		}
		if e.n == 0 {
			continue
		}
		if err := m.write(lane, e); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func (m *modelRun) heldRow(lane int16, ev uint8, sent bool) []any {
	row := &m.s.db.rows[ev]
	return append([]any{lane, int64(row.id), int64(row.seq), int32(row.partition), sent, row.maybe}, m.columns(ev)...)
}

// behind reports whether a held event is behind a parked one of its key.
func (m *modelRun) behind(db *modelDB, ev uint8) bool {
	k := m.world.of(ev)
	for other := range uint8(len(m.world.keys)) {
		row := &db.rows[other]
		if k.mark >= 0 && m.world.of(other).mark == k.mark && row.place == inParked && !row.alone &&
			row.id < db.rows[ev].id {
			return true
		}
	}
	return false
}

// listed returns the events in a key's list.
func (m *modelRun) listed(mark int) (evs []uint8) {
	for ev := range uint8(len(m.world.keys)) {
		if row := &m.s.db.rows[ev]; row.place == inParked && !row.alone && m.world.of(ev).mark == mark {
			evs = append(evs, ev)
		}
	}
	return evs
}

// releasing returns the number of a lane's keys that are being released.
func (m *modelRun) releasing(lane int16) (n int) {
	for _, k := range modelKeyOf {
		if k.mark >= 0 && k.lane == lane && m.s.db.marks[k.mark] == markReleasing {
			n++
		}
	}
	return n
}

func opUnmark(m *modelRun, a []any) ([][]any, error) {
	for _, i := range m.own(a) {
		for _, k := range modelKeyOf {
			if k.mark >= 0 && k.lane == a[0].([]int16)[i] && m.s.db.marks[k.mark] == markReleasing &&
				len(m.listed(k.mark)) == 0 {
				m.s.db.marks[k.mark] = unmarked
			}
		}
	}
	return nil, nil
}

func opList(m *modelRun, a []any) (rows [][]any, err error) {
	nexts, limit, block := a[3].([]int64), a[4].(int), a[7].(int64)
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		if m.blocked(lane, nexts[i]) {
			continue
		}
		e := modelEntry{first: int32(m.next(lane, nexts[i], block))}
		share, taken := limit, map[int]int{}
		if keys := m.releasing(lane); keys > 0 {
			share = max(limit/keys, 1)
		}
		for _, ev := range m.rows(lane, inParked, false) {
			row, k := &m.s.db.rows[ev], m.world.of(ev)
			if !row.releasing && (row.alone || m.s.db.marks[k.mark] != markReleasing || taken[k.mark] == share) {
				continue
			}
			if int(e.n) == limit {
				break
			}
			if !row.alone {
				taken[k.mark]++
			}
			e.ids[e.n], e.seqs[e.n] = row.id, e.first+int32(e.n)
			e.n++
			rows = append(rows, append([]any{lane, int64(row.id), row.alone, row.maybe}, m.columns(ev)...))
		}
		if e.n > 0 {
			if err := m.write(lane, e); err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}

func opDue(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, lane := range a[0].([]int16) {
		for _, ev := range m.rows(lane, inScheduled, true) {
			if m.s.db.rows[ev].due {
				rows = append(rows, []any{lane})
				break
			}
		}
	}
	return rows, nil
}

func opMoveDue(m *modelRun, a []any) (rows [][]any, _ error) {
	for _, i := range m.own(a) {
		lane := a[0].([]int16)[i]
		n := int64(0)
		for _, ev := range m.rows(lane, inScheduled, true) {
			if row := &m.s.db.rows[ev]; row.due && n < int64(a[3].(int)) {
				m.s.db.last++
				m.s.drawn[ev] = m.s.db.last
				m.s.moved |= 1 << ev
				*row = modelRow{place: inEvent, id: m.s.db.last}
				n++
			}
		}
		if n > 0 {
			rows = append(rows, []any{lane, n})
		}
	}
	return rows, nil
}
