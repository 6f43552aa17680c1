package inbox

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
)

// aside is what a transaction sets aside instead of running it.
type aside struct {
	outcomes    map[int]Outcome // by index of the event
	written     int             // rows of inbox_parked
	quarantined []int           // indexes of the events
	code        string          // of the first that is quarantined

	// To be written.
	behind, quarantine rows
	forget             map[place][]uuid.UUID // records that go again
}

// batcher is a connection, or a transaction.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// setAside looks at marks and open ids, once the ids are inserted, and puts what must not run where it belongs: events
// of a marked key behind it, and those too old or too far ahead into quarantine. bounds: it fails where
// a list is full.
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
			a.outcomes[n] = Duplicate // unless it is listed now
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
	return a, nil
}

// asideVerdict is why an event does not run.
type asideVerdict uint8

const (
	asideQuarantine asideVerdict = iota // too old or too far ahead: listed alone, unless it is decided or listed
	asideOpen                           // it is listed already, and so decided: its new row goes again
	asideBehind                         // its key is marked: it goes behind that, and its new row goes again
)

// asideAt is the verdict on one of the planned ids.
type asideAt struct {
	at      int // in planned.ids
	verdict asideVerdict
}

// aside decides, in log order, what of a transaction's events must not run, from the marks of the keys of its new
// events (true: the list is full) and the ids that are open. full is the index of the first event whose list takes no
// more, or -1.
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

// inLogOrder lists the places in ids in the order of the log.
func inLogOrder(ids []planID) []int {
	order := make([]int, len(ids))
	for i := range ids {
		order[ids[i].index] = i
	}
	return order
}

// readOpen returns which keys are marked (true: their list is full), holding the marks, and which of the new ids are
// open.
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
			_, err := pgx.ForEachRow(rows, []any{&hash, &full}, func() error { marks[string(hash)] = full; return nil })
			return err
		})
	}
	if err := on.SendBatch(ctx, &b).Close(); err != nil {
		return nil, nil, fmt.Errorf("inbox: reading the marks of %d keys: %w", len(keys), err)
	}
	return marks, open, nil
}

// writeAside writes what setAside decided.
func (in *Inbox) writeAside(ctx context.Context, on batcher, a *aside, events []event.Event) error {
	var b pgx.Batch
	if n := len(a.behind.ids); n > 0 {
		a.written += n
		b.Queue(in.q(sqlPark), a.behind.args(in.consumer)...)
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

// forgets is the statement that removes the record of an event that waits, which gets one when it runs; empty: it has
// none.
func forgets(where place) string {
	switch where {
	case inDay:
		return sqlForgetDay
	case inAny:
		return sqlForgetAny
	}
	return ""
}

// listed notes which events the quarantine took. Of an id that occurs twice, it took the first in log order.
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

// unlisted notes which of them another transaction has decided meanwhile.
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

// logQuarantined says once per transaction what was quarantined.
func (in *Inbox) logQuarantined(events []event.Event, a *aside) {
	if len(a.quarantined) == 0 {
		return
	}
	e := &events[a.quarantined[0]]
	in.log.Error("inbox: events quarantined: nobody can tell whether they were applied; they wait for an operator",
		"count", len(a.quarantined), "code", a.code, "first", e.ID, "topic", e.Topic, "partition", e.Position.Partition,
		"offset", e.Position.Offset)
}
