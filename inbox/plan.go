package inbox

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// planned is the plan of one transaction: which id goes to which table, or which numbers are new.
type planned struct {
	ids         []planID // sorted by id, then index: inserts in another order could deadlock
	inserted    int
	undecidable int // events that only an operator can decide

	// For byID.
	queued int  // the number of insert statements
	allNew bool // an id that is known fails the transaction

	// For byNumber.
	name       partitionName
	watermarks *watermarks // the watermarks after the commit
	replaced   []int       // indexes in watermarks.of of the rows that the transaction replaces
	lost       bool        // another transaction has advanced one of these watermarks
	lookup     bool        // recorded ids are checked too
	aged       bool        // the age of ids is checked too
}

// wrote reports whether the transaction writes rows, so that its COMMIT waits for the standby.
func (p *planned) wrote() bool { return p.inserted > 0 || len(p.replaced) > 0 }

type planID struct {
	id      uuid.UUID
	content int64 // sql.Content; 0: not known
	index   int32
	route   route
	isNew   bool
}

// plan assigns each id to its table. Two events with one id have a transaction each.
func (s *state) plan(events []event.Event, windowDays days.Number, ahead int, halt bool) (*planned, *failure) {
	p := &planned{ids: make([]planID, len(events))}
	for i := range events {
		e := &events[i]
		if e.ID == uuid.Nil {
			return nil, &failure{kind: undecidable, index: i, err: errNoID}
		}
		where := s.route(e.ID, windowDays, ahead)
		if where.undecidable() {
			if halt {
				return nil, &failure{kind: undecidable, index: i, err: whyUndecidable(where, e, *s, windowDays)}
			}
			p.undecidable++
		}
		p.ids[i] = planID{id: e.ID, content: sql.Content(e), index: int32(i), route: where}
	}
	p.sort()
	if i := p.split(); i > 0 {
		return nil, &failure{kind: bounded, index: i}
	}
	return p, nil
}

// split returns the index of the first event whose id is that of another event before it: these have a transaction
// each. 0: there is none.
func (p *planned) split() (first int) {
	of := 0 // the first of the same id
	for i := range p.ids {
		if p.ids[i].id != p.ids[of].id {
			of = i
		}
		n := int(p.ids[i].index)
		if otherContent(p.ids[i].content, p.ids[of].content) && (first == 0 || n < first) {
			first = n
		}
	}
	return first
}

// sort sorts the ids in the order of their inserts.
func (p *planned) sort() {
	slices.SortFunc(p.ids, func(a, b planID) int {
		if c := bytes.Compare(a.id[:], b.id[:]); c != 0 {
			return c
		}
		return cmp.Compare(a.index, b.index)
	})
}

var (
	errNoID  = errors.New("it has no id: events must come from event.Decode, or carry one")
	errStale = errors.New("inbox: what the plan was made from has changed")
)

// newIDs returns the ids that are new.
func (p *planned) newIDs() []uuid.UUID {
	ids := make([]uuid.UUID, 0, p.inserted)
	for i := range p.ids {
		if p.ids[i].isNew {
			ids = append(ids, p.ids[i].id)
		}
	}
	return ids
}

// holds reports whether every id still belongs where the plan put it, by the state that the transaction read.
func (p *planned) holds(s *state, windowDays days.Number, ahead int) bool {
	for i := range p.ids {
		if s.route(p.ids[i].id, windowDays, ahead) != p.ids[i].route {
			return false
		}
	}
	return true
}

// new marks an id as inserted. It returns false if the id was not sent. If an id occurs twice, the first event in log
// order is the new one.
func (p *planned) new(id uuid.UUID) bool {
	i, found := slices.BinarySearchFunc(p.ids, id, func(a planID, b uuid.UUID) int {
		return bytes.Compare(a.id[:], b[:])
	})
	if found {
		p.ids[i].isNew = true
		p.inserted++
	}
	return found
}

// repeats returns the ids that were to be recorded and are not new.
func (p *planned) repeats() (ids []uuid.UUID) {
	if p.inserted == len(p.ids) {
		return nil
	}
	for i := range p.ids {
		if id := &p.ids[i]; !id.isNew && !id.route.undecidable() {
			ids = append(ids, id.id)
		}
	}
	return ids
}

// others makes each repeat whose recorded content is another an event of its own, with an id that is derived from both.
// It returns the index and the id of the first in log order; -1: there is none.
func (p *planned) others(known map[uuid.UUID]int64) (first int, id uuid.UUID) {
	first = -1
	for i := range p.ids {
		at := &p.ids[i]
		if at.isNew || at.route.undecidable() || !otherContent(known[at.id], at.content) {
			continue
		}
		if n := int(at.index); first < 0 || n < first {
			first, id = n, at.id
		}
		at.other()
		p.undecidable++
	}
	return first, id
}

// otherContent reports whether two contents are known and not the same.
func otherContent(a, b int64) bool { return a != 0 && b != 0 && a != b }

// other gives an event whose id is another event's an id of its own.
func (id *planID) other() *planID {
	id.id, id.route = sql.OtherID(id.id, id.content), otherEvents
	return id
}

// of returns the ids that belong in a table and their contents, without duplicates, in the order of their inserts.
func (p *planned) of(where route) (ids []uuid.UUID, contents []int64) {
	for i := range p.ids {
		if p.ids[i].route != where || i > 0 && p.ids[i].id == p.ids[i-1].id {
			continue
		}
		ids, contents = append(ids, p.ids[i].id), append(contents, p.ids[i].content)
	}
	return ids, contents
}

// mark marks the returned ids as inserted.
func (p *planned) mark(rows pgx.Rows) error {
	defer rows.Close()
	var id pgtype.UUID
	for rows.Next() {
		if err := rows.Scan(&id); err != nil {
			return err
		}
		if !p.new(id.Bytes) {
			return fmt.Errorf("the database returned id %s, which was not sent", uuid.UUID(id.Bytes))
		}
	}
	return rows.Err()
}

// readAllNew reads the results of inserts that take all ids for new.
func (p *planned) readAllNew(res pgx.BatchResults) error {
	var inserted int64
	for range p.queued {
		tag, err := res.Exec()
		if pgerr.Is(err, pgerr.UniqueViolation) {
			return errNotAllNew
		}
		if err != nil {
			return err
		}
		inserted += tag.RowsAffected()
	}
	var keyed bool
	if err := res.QueryRow().Scan(&keyed); err != nil {
		return err
	}
	for i := range p.ids {
		if id := &p.ids[i]; !id.route.undecidable() && (i == 0 || p.ids[i-1].id != id.id) {
			id.isNew = true
			p.inserted++
		}
	}
	if !keyed || int64(p.inserted) != inserted {
		return errNotAllNew
	}
	return nil
}

// fresh stores the outcomes that are known before the effect runs, and returns the indexes of the new events in log
// order.
func (p *planned) fresh(events []event.Event, skip map[uuid.UUID]bool, a *aside, out []Outcome) []int {
	fresh := make([]int, 0, p.inserted)
	for i := range p.ids {
		n := int(p.ids[i].index)
		switch o, set := a.outcomes[n]; {
		case set:
			out[n] = o
		case !p.ids[i].isNew:
			out[n] = Duplicate
		case skip[p.ids[i].id]:
			out[n] = Skipped
		default:
			out[n] = Applied
			fresh = append(fresh, n)
		}
	}
	slices.Sort(fresh)
	return fresh
}

// uuidArray returns the text of a uuid[], which is one argument in every query mode of pgx.
func uuidArray(ids []uuid.UUID) string {
	b := append(make([]byte, 0, 2+37*len(ids)), '{')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		text, _ := id.MarshalText()
		b = append(b, text...)
	}
	return string(append(b, '}'))
}

// intArray returns the text of a bigint[].
func intArray(list []int64) string {
	b := append(make([]byte, 0, 2+21*len(list)), '{')
	for i, n := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(append(b, '}'))
}

// readIDs collects the ids that a statement returned.
func readIDs(rows pgx.Rows) (map[uuid.UUID]bool, error) {
	ids := map[uuid.UUID]bool{}
	var id pgtype.UUID
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error { ids[id.Bytes] = true; return nil })
	return ids, err
}

// readContents collects the ids that a statement returned, with their contents.
func readContents(rows pgx.Rows) (map[uuid.UUID]int64, error) {
	ids := map[uuid.UUID]int64{}
	var id pgtype.UUID
	var content int64
	_, err := pgx.ForEachRow(rows, []any{&id, &content}, func() error { ids[id.Bytes] = content; return nil })
	return ids, err
}
