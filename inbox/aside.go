package inbox

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/outcome"
)

// aside holds the events that a transaction sets aside instead of running them.
type aside struct {
	outcomes    map[int]Outcome // by index of the event
	written     int             // rows of inbox_parked
	quarantined []*planID

	// Rows to write.
	behind, quarantine rows
	asked              []*planID             // the events of quarantine
	forget             map[route][]uuid.UUID // recorded ids to delete again
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
	a := &aside{outcomes: map[int]Outcome{}, forget: map[route][]uuid.UUID{}}
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
		return nil, &failure{kind: bounded, index: full, err: outcome.Terminal(CodeListFull, fmt.Errorf(
			"%d events or more wait behind its key: release or discard them, or raise Config.ParkedPerKey",
			in.cfg.ParkedPerKey))}
	}
	for _, to := range to {
		id := &p.ids[to.at]
		e := &events[id.index]
		switch to.verdict {
		case asideQuarantine:
			in.quarantine(a, id, e)
		case asideOther:
			a.forget[id.route] = append(a.forget[id.route], id.id)
			in.quarantine(a, id.other(), e)
		case asideOpen:
			a.outcomes[int(id.index)] = Duplicate
			a.forget[id.route] = append(a.forget[id.route], id.id)
		case asideBehind:
			a.outcomes[int(id.index)] = Parked
			a.forget[id.route] = append(a.forget[id.route], id.id)
			a.behind.add(e, id.id, hashes[id.index], kindBehind, "", "", 0)
		}
	}
	if err := in.writeAside(ctx, on, a); err != nil {
		return nil, in.classify(ctx, fmt.Errorf("inbox: setting %d events aside: %w", len(a.outcomes), err))
	}
	if err := in.leftOver(ctx, on, a, events); err != nil {
		return nil, in.classify(ctx, err)
	}
	return a, nil
}

// quarantine adds an event to those that a quarantines.
func (in *Inbox) quarantine(a *aside, id *planID, e *event.Event) {
	a.quarantine.add(e, id.id, nil, kindQuarantined, quarantineCode(id.route),
		whyUndecidable(id.route, e, *in.state.Load(), in.cfg.windowDays).Error(), 0)
	a.asked = append(a.asked, id)
	a.outcomes[int(id.index)] = Duplicate // unless the quarantine takes it
}

// leftOver looks at the events that the quarantine did not take: each is decided or parked, or only its id is.
func (in *Inbox) leftOver(ctx context.Context, on batcher, a *aside, events []event.Event) error {
	var ids []uuid.UUID
	left := slices.DeleteFunc(a.asked, func(id *planID) bool { return a.outcomes[int(id.index)] != Duplicate })
	for _, id := range left {
		ids = append(ids, id.id)
	}
	known, err := in.there(ctx, on, ids, true)
	if err != nil {
		return err
	}
	a.behind, a.quarantine, a.asked, a.forget = rows{}, rows{}, nil, nil
	for _, id := range left {
		e := &events[id.index]
		if id.content = sql.Content(e); otherContent(known[id.id], id.content) {
			in.quarantine(a, id.other(), e)
		}
	}
	if len(a.asked) == 0 {
		return nil
	}
	if err := in.writeAside(ctx, on, a); err != nil {
		return fmt.Errorf("inbox: setting %d events aside: %w", len(a.asked), err)
	}
	return in.leftOver(ctx, on, a, events)
}

// asideVerdict is why an event does not run.
type asideVerdict uint8

const (
	asideQuarantine asideVerdict = iota // undecidable: quarantined, unless it is decided or parked
	asideOpen                           // it is parked already, and so decided: its new row is deleted
	asideOther                          // another event that has its id is parked: its new row is deleted, as above
	asideBehind                         // its key is marked: it is parked behind it, and its new row is deleted
)

// asideAt is the verdict on one of the planned ids.
type asideAt struct {
	at      int // in planned.ids
	verdict asideVerdict
}

// aside decides, in log order, which events of a transaction must not run. marks has the marked keys of the new events
// (true: the list is full), open the ids that are parked already, with their contents. full is the index of the first
// event whose list is full, or -1.
func (p *planned) aside(hashes [][]byte, marks map[string]bool, open map[uuid.UUID]int64, bound bool) (list []asideAt,
	full int,
) {
	for _, i := range inLogOrder(p.ids) {
		id := &p.ids[i]
		listFull, marked := marks[string(hashes[id.index])]
		content, isOpen := open[id.id]
		switch {
		case id.route.undecidable():
			list = append(list, asideAt{i, asideQuarantine})
		case !id.isNew:
		case isOpen && otherContent(content, id.content):
			list = append(list, asideAt{i, asideOther})
		case isOpen:
			list = append(list, asideAt{i, asideOpen})
		case marked && listFull && bound:
			return nil, int(id.index)
		case marked:
			list = append(list, asideAt{i, asideBehind})
		}
	}
	return list, -1
}

func quarantineCode(p route) string {
	switch p {
	case tooOld:
		return CodeTooOld
	case tooFuture:
		return CodeTooFarAhead
	case otherEvents:
		return CodeOtherContent
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
	open map[uuid.UUID]int64, err error,
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
		open, err = readContents(rows)
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
func (in *Inbox) writeAside(ctx context.Context, on batcher, a *aside) error {
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
		b.Queue(in.q(sqlQuarantine), a.quarantine.args(in.consumer)...).Query(a.listed)
		b.Queue(in.q(sqlUnquarantine), in.consumer, a.quarantine.ids).Query(a.unlisted)
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
func forgets(where route) string {
	switch where {
	case inDay:
		return sqlForgetDay
	case inAny:
		return sqlForgetAny
	}
	return ""
}

// listed stores which events the quarantine took. If an id occurs twice, it took the first in log order.
func (a *aside) listed(rows pgx.Rows) error {
	taken, err := readIDs(rows)
	for _, id := range a.asked {
		if !taken[id.id] {
			continue
		}
		delete(taken, id.id)
		a.outcomes[int(id.index)] = Quarantined
		a.quarantined = append(a.quarantined, id)
		a.written++
	}
	return err
}

// unlisted stores which quarantined events another transaction decided in the meantime.
func (a *aside) unlisted(rows pgx.Rows) error {
	gone, err := readIDs(rows)
	a.quarantined = slices.DeleteFunc(a.quarantined, func(id *planID) bool {
		if !gone[id.id] {
			return false
		}
		a.outcomes[int(id.index)] = Duplicate
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
	first := a.quarantined[0]
	e := &events[first.index]
	in.log.Error("inbox: events quarantined: they wait for an operator", "count", len(a.quarantined),
		"code", quarantineCode(first.route), "first", first.id, "topic", e.Topic, "partition", e.Position.Partition,
		"offset", e.Position.Offset)
}
