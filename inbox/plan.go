package inbox

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/days"
)

// planned is what one transaction does with its events: which id goes to which table, or which numbers are new.
type planned struct {
	ids      []planID // by id: sorted by it, then by index, for inserts in another order deadlock
	inserted int
	refused  int    // how many nobody can decide
	database string // that the transaction met
	queued   int    // by id: statements that insert

	// Of a watermark.
	name   partitionName
	marks  *marks // how far the numbers are decided when it is committed
	moved  []int  // of marks.of: those of which the transaction replaces the row
	lost   bool   // another transaction has moved one of them
	lookup bool   // what ids know counts as well
	aged   bool   // and so does their age
}

// wrote reports that the transaction has rows of its own, so that its COMMIT waits for the standby.
func (p *planned) wrote() bool { return p.inserted > 0 || len(p.moved) > 0 }

type planID struct {
	id    uuid.UUID
	index int32
	place place
	isNew bool
}

// plan puts each id into its table.
func (s *state) plan(events []event.Event, windowDays days.Number, ahead int, halt bool) (*planned, *failure) {
	p := &planned{ids: make([]planID, len(events))}
	for i := range events {
		e := &events[i]
		if e.ID == uuid.Nil {
			return nil, &failure{kind: refused, index: i, err: errNoID}
		}
		where := s.place(e.ID, windowDays, ahead)
		if where.undecidable() {
			if halt {
				return nil, &failure{kind: refused, index: i, err: refusal(where, e, *s, windowDays)}
			}
			p.refused++
		}
		p.ids[i] = planID{id: e.ID, index: int32(i), place: where}
	}
	p.sort()
	return p, nil
}

// sort brings the ids into the order in which they are inserted.
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

// newIDs are the ids that are new.
func (p *planned) newIDs() []uuid.UUID {
	ids := make([]uuid.UUID, 0, p.inserted)
	for i := range p.ids {
		if p.ids[i].isNew {
			ids = append(ids, p.ids[i].id)
		}
	}
	return ids
}

// holds reports that, by what the transaction itself read, every id is where the plan put it.
func (p *planned) holds(s *state, windowDays days.Number, ahead int) bool {
	for i := range p.ids {
		if s.place(p.ids[i].id, windowDays, ahead) != p.ids[i].place {
			return false
		}
	}
	return true
}

// new notes that an id was inserted; false: it was not sent. Of an id that occurs twice, the first in log order is the
// new one.
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

// of lists the ids that belong in a table, each once, in the order in which they are inserted.
func (p *planned) of(where place) (ids []uuid.UUID) {
	for i := range p.ids {
		if p.ids[i].place != where || i > 0 && p.ids[i].id == p.ids[i-1].id {
			continue
		}
		ids = append(ids, p.ids[i].id)
	}
	return ids
}

// mark notes which ids were inserted.
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

// fresh writes the outcomes that are known before the effect runs, and returns the indexes of the new events in log
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

// uuidArray is the text of a uuid[]: one argument in every query mode of pgx.
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

// readIDs collects the ids that a statement returned.
func readIDs(rows pgx.Rows) (map[uuid.UUID]bool, error) {
	ids := map[uuid.UUID]bool{}
	var id pgtype.UUID
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error { ids[id.Bytes] = true; return nil })
	return ids, err
}
