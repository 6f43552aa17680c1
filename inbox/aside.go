package inbox

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
)

// aside holds the events that a transaction sets aside instead of running them.
type aside struct {
	outcomes    map[int]Outcome // by index of the event
	written     int             // rows of inbox_parked
	quarantined []int           // indexes of the events
	code        string          // of the first quarantined event

	// Rows to write.
	behind, quarantine rows
	forget             map[place][]uuid.UUID // recorded ids to delete again
}

// batcher is a connection, or a transaction.
type batcher interface {
	querier
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// setAside reads the marks of keys and the open ids after the ids are inserted, and sets aside the events that must not
// run: events of a marked key are added to its list, and undecidable events are quarantined. bounds: fail at a full
// list.
func (in *Inbox) setAside(ctx context.Context, on batcher, p *planned, events []event.Event, bounds bool) (
	*aside, *failure,
) {
	a := &aside{outcomes: map[int]Outcome{}, forget: map[place][]uuid.UUID{}}
	hashes := make([][]byte, len(events))
	for _, id := range p.ids {
		if e := &events[id.index]; id.isNew {
			hashes[id.index] = sql.KeyHash(e.Tenant, e.Topic, e.Key)
		}
	}
	marks, open, err := in.readOpen(ctx, on, p, hashes)
	if err != nil {
		return nil, in.classify(ctx, err)
	}
	to, full := p.aside(hashes, marks, open, bounds)
	if full >= 0 {
		return nil, &failure{kind: bounded, index: full, err: Terminal(CodeListFull, fmt.Errorf(
			"%d events or more wait behind its key: release or discard them, or raise Config.ParkedPerKey",
			in.cfg.ParkedPerKey))}
	}
	for _, to := range to {
		id := &p.ids[to.at]
		n := int(id.index)
		switch to.verdict {
		case asideQuarantine:
			code := quarantineCode(id.place)
			a.quarantined, a.code = append(a.quarantined, n), cmp.Or(a.code, code)
			a.quarantine.add(&events[n], nil, kindQuarantined, code,
				refusal(id.place, &events[n], *in.state.Load(), in.cfg.windowDays).Error(), 0)
			a.outcomes[n] = Duplicate // unless the quarantine takes it
		case asideOpen:
			a.outcomes[n] = Duplicate
			a.forget[id.place] = append(a.forget[id.place], id.id)
		case asideBehind:
			a.outcomes[n] = Parked
			a.forget[id.place] = append(a.forget[id.place], id.id)
			a.behind.add(&events[n], hashes[n], kindBehind, "", "", 0)
		}
	}
	if err := in.writeAside(ctx, on, a, events); err != nil {
		return nil, in.classify(ctx, fmt.Errorf("inbox: setting %d events aside: %w", len(a.outcomes), err))
	}
	var refused []uuid.UUID // by the quarantine
	for _, to := range to {
		if id := &p.ids[to.at]; to.verdict == asideQuarantine && a.outcomes[int(id.index)] == Duplicate {
			refused = append(refused, id.id)
		}
	}
	if err := in.there(ctx, on, refused, true); err != nil {
		return nil, in.classify(ctx, err)
	}
	return a, nil
}

// asideVerdict is why an event does not run.
type asideVerdict uint8

const (
	asideQuarantine asideVerdict = iota // undecidable: quarantined, unless it is decided or parked
	asideOpen                           // it is parked already, and so decided: its new row is deleted
	asideBehind                         // its key is marked: it is parked behind it, and its new row is deleted
)

// asideAt is the verdict on one of the planned ids.
type asideAt struct {
	at      int // in planned.ids
	verdict asideVerdict
}

// aside decides, in log order, which events of a transaction must not run. marks has the marked keys of the new events
// (true: the list is full), open the ids that are parked already. full is the index of the first event whose list is
// full, or -1.
func (p *planned) aside(hashes [][]byte, marks map[string]bool, open map[uuid.UUID]bool, bound bool) (list []asideAt,
	full int,
) {
	for _, i := range inLogOrder(p.ids) {
		id := &p.ids[i]
		listFull, marked := marks[string(hashes[id.index])]
		switch {
		case id.place.undecidable():
			list = append(list, asideAt{i, asideQuarantine})
		case !id.isNew:
		case open[id.id]:
			list = append(list, asideAt{i, asideOpen})
		case marked && listFull && bound:
			return nil, int(id.index)
		case marked:
			list = append(list, asideAt{i, asideBehind})
		}
	}
	return list, -1
}

func quarantineCode(p place) string {
	switch p {
	case tooOld:
		return CodeTooOld
	case tooFuture:
		return CodeTooFarAhead
	case replayed:
		return CodeReplayed
	case oldNumbering:
		return CodeOldNumbering
	}
	return CodeNoNumber
}

// inLogOrder returns the indexes of ids in log order.
func inLogOrder(ids []planID) []int {
	order := make([]int, len(ids))
	for i := range ids {
		order[ids[i].index] = i
	}
	return order
}

// readOpen returns the marked keys (true: the list is full) and the new ids that are parked already. It locks the
// marks.
func (in *Inbox) readOpen(ctx context.Context, on batcher, p *planned, hashes [][]byte) (marks map[string]bool,
	open map[uuid.UUID]bool, err error,
) {
	ids := p.newIDs()
	if len(ids) == 0 {
		return nil, nil, nil
	}
	keys := slices.DeleteFunc(slices.Clone(hashes), func(h []byte) bool { return h == nil })
	slices.SortFunc(keys, bytes.Compare)
	keys = slices.CompactFunc(keys, bytes.Equal)
	var b pgx.Batch
	b.Queue(in.q(sqlOpenIDs), in.consumer, uuidArray(ids)).Query(func(rows pgx.Rows) (err error) {
		open, err = readIDs(rows)
		return err
	})
	if len(keys) > 0 {
		marks = map[string]bool{}
		b.Queue(in.q(sqlMarks), in.consumer, keys).Query(func(rows pgx.Rows) error {
			var hash []byte
			var full bool
			_, err := pgx.ForEachRow(rows, []any{fromHex{&hash}, &full}, func() error {
				marks[string(hash)] = full
				return nil
			})
			return err
		})
	}
	if err := on.SendBatch(ctx, &b).Close(); err != nil {
		return nil, nil, fmt.Errorf("inbox: reading the marks of %d keys: %w", len(keys), err)
	}
	return marks, open, nil
}

// writeAside writes the rows that setAside prepared.
func (in *Inbox) writeAside(ctx context.Context, on batcher, a *aside, events []event.Event) error {
	var b pgx.Batch
	if n := len(a.behind.ids); n > 0 {
		a.written += n
		b.Queue(in.q(sqlPark), a.behind.args(in.consumer)...).Exec(func(tag pgconn.CommandTag) error {
			if lost := n - int(tag.RowsAffected()); lost > 0 {
				return takenError("inbox_parked", lost)
			}
			return nil
		})
	}
	if len(a.quarantine.ids) > 0 {
		b.Queue(in.q(sqlQuarantine), a.quarantine.args(in.consumer)...).Query(func(rows pgx.Rows) error {
			return a.listed(rows, events)
		})
		b.Queue(in.q(sqlUnquarantine), in.consumer, a.quarantine.ids).Query(func(rows pgx.Rows) error {
			return a.unlisted(rows, events)
		})
	}
	for where, ids := range a.forget {
		if statement := forgets(where); statement != "" {
			b.Queue(in.q(statement), in.consumer, uuidArray(ids))
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return on.SendBatch(ctx, &b).Close()
}

// forgets returns the statement that deletes the id of an event that waits; the id is inserted again when the event
// runs. Empty: the event has no row.
func forgets(where place) string {
	switch where {
	case inDay:
		return sqlForgetDay
	case inAny:
		return sqlForgetAny
	}
	return ""
}

// listed stores which events the quarantine took. If an id occurs twice, it took the first in log order.
func (a *aside) listed(rows pgx.Rows, events []event.Event) error {
	taken, err := readIDs(rows)
	a.quarantined = slices.DeleteFunc(a.quarantined, func(n int) bool {
		if !taken[events[n].ID] {
			return true
		}
		delete(taken, events[n].ID)
		a.outcomes[n] = Quarantined
		a.written++
		return false
	})
	return err
}

// unlisted stores which quarantined events another transaction decided in the meantime.
func (a *aside) unlisted(rows pgx.Rows, events []event.Event) error {
	gone, err := readIDs(rows)
	a.quarantined = slices.DeleteFunc(a.quarantined, func(n int) bool {
		if !gone[events[n].ID] {
			return false
		}
		a.outcomes[n] = Duplicate
		a.written--
		return true
	})
	return err
}

// logQuarantined logs the quarantined events, once per transaction.
func (in *Inbox) logQuarantined(events []event.Event, a *aside) {
	if len(a.quarantined) == 0 {
		return
	}
	e := &events[a.quarantined[0]]
	in.log.Error("inbox: events quarantined: nobody can tell whether they were applied; they wait for an operator",
		"count", len(a.quarantined), "code", a.code, "first", e.ID, "topic", e.Topic, "partition", e.Position.Partition,
		"offset", e.Position.Offset)
}
