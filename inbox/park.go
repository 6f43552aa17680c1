package inbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
)

// Codes of parked events, beside those of [Terminal].
const (
	// CodeFailed: its effect failed MaxAttempts times with an error of no class.
	CodeFailed = "failed"
	// CodePanicked: the same, and the last time it panicked.
	CodePanicked = "panicked"
	// CodeUnavailable: its effect answered [Retryable] for longer than MaxRetryFor.
	CodeUnavailable = "unavailable"
	// CodeTooOld: its id is older than what is remembered, so nobody can tell whether it was applied. It is
	// quarantined.
	CodeTooOld = "too_old"
	// CodeTooFarAhead: its id is of a day too far in the future: the clock that made it is broken. It is quarantined.
	CodeTooFarAhead = "too_far_ahead"
	// CodeMaybePublished: it may have been published under another number, see [ByWatermark]. It is parked as if it had
	// failed.
	CodeMaybePublished = "maybe_published"
	// CodeReplayed: it was published under another number, see [ByWatermark]. It is quarantined.
	CodeReplayed = "replayed"
	// CodeOldNumbering: it is of a numbering that its partition has left, see [ByWatermark]. It is quarantined.
	CodeOldNumbering = "old_numbering"
	// CodeNoNumber: it carries no number, see [ByWatermark]. It is quarantined; where its partition has no event with
	// one, it halts that.
	CodeNoNumber = "no_number"
	// CodeNewNumbering: its numbering is newer than its partition's, see [ByWatermark]. Its partition halts until an
	// operator accepts it.
	CodeNewNumbering = "new_numbering"
	// CodeOffsetsBack: its offset is decided, and its time is later than whatever was, see [ByOffset]. Its partition
	// halts.
	CodeOffsetsBack = "offsets_went_back"
	// CodeNumbered: a relay wrote it, which repeats events, see [ByOffset]. Its partition halts.
	CodeNumbered = "written_by_a_relay"
	// CodeListFull: the list of its key is at Config.ParkedPerKey. It is not parked: its partition halts.
	CodeListFull = "list_full"
	// CodeRejected: the database rejects a statement of the inbox, for want of a right, say. Its partition is noted as
	// halted and tries again all the while.
	CodeRejected = "rejected"
)

// codeOf is an error in a machine's words.
func codeOf(err error) string {
	if code, ok := TerminalCode(err); ok {
		return code
	}
	if _, ok := errors.AsType[*retryableError](err); ok {
		return CodeUnavailable
	}
	if _, ok := errors.AsType[*panicError](err); ok {
		return CodePanicked
	}
	return CodeFailed
}

// aside is what a transaction sets aside instead of running it.
type aside struct {
	outcomes    map[int]Outcome // by index of the event
	written     int             // rows of inbox_parked
	quarantined []int
	code        string // of the first that is quarantined
}

// setAside looks at marks and open ids, once the ids are inserted, and puts what must not run where it belongs: events
// of a marked key behind it, and those too old or too far ahead into quarantine.
func (in *Inbox) setAside(ctx context.Context, conn *pgx.Conn, p *planned, events []event.Event) (*aside, *failure) {
	a := &aside{outcomes: map[int]Outcome{}}
	hashes := make([][]byte, len(events))
	for _, id := range p.ids {
		if e := &events[id.index]; id.isNew {
			hashes[id.index] = sql.KeyHash(e.Tenant, e.Topic, e.Key)
		}
	}
	marks, open, err := in.readOpen(ctx, conn, p, hashes)
	if err != nil {
		return nil, in.classify(ctx, err)
	}
	to, full := p.aside(hashes, marks, open, in.cfg.ParkedPerKey > 0)
	if full >= 0 {
		return nil, &failure{kind: bounded, index: full, err: Terminal(CodeListFull, fmt.Errorf(
			"%d events or more wait behind its key: release or discard them, or raise Config.ParkedPerKey",
			in.cfg.ParkedPerKey))}
	}
	var behind, quarantine rows
	forget := map[place][]uuid.UUID{}
	for _, to := range to {
		id := &p.ids[to.at]
		n := int(id.index)
		switch to.verdict {
		case asideQuarantine:
			a.quarantined = append(a.quarantined, n)
			a.code = cmp.Or(a.code, quarantineCode(id.place))
			quarantine.add(&events[n], nil, kindQuarantined, quarantineCode(id.place),
				refusal(id.place, &events[n], *in.state.Load(), in.cfg.windowDays).Error(), 0)
		case asideOpen:
			a.outcomes[n] = Duplicate
			forget[id.place] = append(forget[id.place], id.id)
		case asideBehind:
			a.outcomes[n] = Parked
			forget[id.place] = append(forget[id.place], id.id)
			behind.add(&events[n], hashes[n], kindBehind, "", "", 0)
		}
	}
	return a, in.writeAside(ctx, conn, a, events, &behind, &quarantine, forget)
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
func (in *Inbox) readOpen(ctx context.Context, conn *pgx.Conn, p *planned, hashes [][]byte) (marks map[string]bool,
	open map[uuid.UUID]bool, err error,
) {
	marks, open = map[string]bool{}, map[uuid.UUID]bool{}
	var ids []uuid.UUID
	for _, id := range p.ids {
		if id.isNew {
			ids = append(ids, id.id)
		}
	}
	if len(ids) == 0 {
		return marks, open, nil
	}
	keys := slices.DeleteFunc(slices.Clone(hashes), func(h []byte) bool { return h == nil })
	slices.SortFunc(keys, bytes.Compare)
	keys = slices.CompactFunc(keys, bytes.Equal)
	var b pgx.Batch
	b.Queue(in.q(sqlOpenIDs), in.consumer, uuidArray(ids)).Query(func(rows pgx.Rows) error {
		var id pgtype.UUID
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error { open[id.Bytes] = true; return nil })
		return err
	})
	if len(keys) > 0 {
		b.Queue(in.q(sqlMarks), in.consumer, keys).Query(func(rows pgx.Rows) error {
			var hash []byte
			var full bool
			_, err := pgx.ForEachRow(rows, []any{&hash, &full}, func() error { marks[string(hash)] = full; return nil })
			return err
		})
	}
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return nil, nil, fmt.Errorf("inbox: reading the marks of %d keys: %w", len(keys), err)
	}
	return marks, open, nil
}

// writeAside writes what setAside decided.
func (in *Inbox) writeAside(ctx context.Context, conn *pgx.Conn, a *aside, events []event.Event, behind,
	quarantine *rows, forget map[place][]uuid.UUID,
) *failure {
	var b pgx.Batch
	if len(behind.ids) > 0 {
		a.written += len(behind.ids)
		b.Queue(in.q(sqlPark), behind.args(in.consumer)...)
	}
	if len(quarantine.ids) > 0 {
		for _, n := range a.quarantined {
			a.outcomes[n] = Duplicate // unless it is listed now
		}
		b.Queue(in.q(sqlQuarantine), quarantine.args(in.consumer)...).Query(func(rows pgx.Rows) error {
			return a.listed(rows, events)
		})
		b.Queue(in.q(sqlUnquarantine), in.consumer, quarantine.ids).Query(func(rows pgx.Rows) error {
			return a.unlisted(rows, events)
		})
	}
	for where, sql := range map[place]string{inDay: in.q(sqlForgetDay), inAny: in.q(sqlForgetAny)} {
		if len(forget[where]) > 0 {
			b.Queue(sql, in.consumer, uuidArray(forget[where]))
		}
	}
	if b.Len() == 0 {
		return nil
	}
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: setting %d events aside: %w", len(a.outcomes), err))
	}
	return nil
}

// listed notes which events the quarantine took. Of an id that stands twice, the first in log order is meant.
func (a *aside) listed(rows pgx.Rows, events []event.Event) error {
	var id pgtype.UUID
	taken := map[uuid.UUID]bool{}
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { taken[id.Bytes] = true; return nil }); err != nil {
		return err
	}
	left := a.quarantined[:0]
	for _, n := range a.quarantined {
		if taken[events[n].ID] {
			delete(taken, events[n].ID)
			a.outcomes[n] = Quarantined
			a.written++
			left = append(left, n)
		}
	}
	a.quarantined = left
	return nil
}

// unlisted notes which of them were decided meanwhile after all.
func (a *aside) unlisted(rows pgx.Rows, events []event.Event) error {
	var id pgtype.UUID
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
		a.quarantined = slices.DeleteFunc(a.quarantined, func(n int) bool {
			gone := events[n].ID == id.Bytes
			if gone {
				a.outcomes[n] = Duplicate
				a.written--
			}
			return gone
		})
		return nil
	})
	return err
}

// tellAside says once per transaction what was quarantined.
func (in *Inbox) tellAside(events []event.Event, a *aside) {
	if len(a.quarantined) == 0 {
		return
	}
	e := &events[a.quarantined[0]]
	in.log.Error("inbox: events quarantined: nobody can tell whether they were applied; they wait for an operator",
		"count", len(a.quarantined), "code", a.code, "first", e.ID, "topic", e.Topic, "partition", e.Position.Partition,
		"offset", e.Position.Offset)
}

// park sets an event aside that finally failed, in one transaction: its id first, for a row that is there says that it
// was applied after all; the mark of its key, held; the list; and the id goes again, for what waits leaves no row.
func (in *Inbox) park(ctx context.Context, e *event.Event, cause error, attempts int, g *guard, pass *passing,
	out []Outcome,
) *failure {
	p, f := in.dedup.plan([]event.Event{*e}, g, true)
	if f != nil {
		return f
	}
	conn, err := in.db.Acquire(ctx)
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: getting a connection: %w", err))
	}
	defer release(ctx, conn)
	if _, f = in.insert(ctx, conn.Conn(), p, g); f == nil {
		f = g.stays(p.home)
	}
	if f != nil {
		return f
	}
	out[0] = Duplicate
	switch {
	case p.refused > 0:
		// Its day left the window while it failed.
		a, f := in.setAside(ctx, conn.Conn(), p, []event.Event{*e})
		if f != nil {
			return f
		}
		out[0] = a.outcomes[0]
	case p.inserted > 0:
		if out[0], f = in.parkNew(ctx, conn.Conn(), e, p.ids[0].place, cause, attempts); f != nil {
			return f
		}
	default:
		if f := in.barrier(ctx, conn.Conn()); f != nil {
			return f
		}
	}
	if f := in.passAndCommit(ctx, conn.Conn(), pass); f != nil {
		return f
	}
	g.setMarks(p.marks)
	if out[0] == Parked {
		in.tellParked(bare(*e), cause, attempts)
	}
	return nil
}

// parkNew lists an event whose id the open transaction has just inserted. An id that is open is decided.
func (in *Inbox) parkNew(ctx context.Context, conn *pgx.Conn, e *event.Event, where place, cause error, attempts int) (
	Outcome, *failure,
) {
	id := uuidArray([]uuid.UUID{e.ID})
	failed := func(err error) (Outcome, *failure) {
		return Undecided, in.classify(ctx, fmt.Errorf("inbox: parking event %s: %w", e.ID, err))
	}
	tag, err := conn.Exec(ctx, in.q(sqlOpenIDs), in.consumer, id)
	if err != nil {
		return failed(err)
	}
	outcome := Duplicate
	if tag.RowsAffected() == 0 {
		var list rows
		var hash []byte
		outcome = Parked
		code, reason := codeOf(cause), cause.Error()
		if in.cfg.OnFailure == ParkKey {
			hash = sql.KeyHash(e.Tenant, e.Topic, e.Key)
		}
		if hash != nil {
			if f := in.hold(ctx, conn, e, hash, code, reason); f != nil {
				return Undecided, f
			}
		}
		list.add(e, hash, kindFailed, code, reason, attempts)
		_, err := conn.Exec(ctx, in.q(sqlPark), list.args(in.consumer)...)
		if err != nil {
			return failed(err)
		}
	}
	if forget := in.dedup.forget(where); forget != "" {
		_, err = conn.Exec(ctx, forget, in.consumer, id)
	}
	if err != nil {
		return failed(err)
	}
	return outcome, nil
}

// hold makes the mark of a key or finds it, and holds it, so that no releaser removes it before the event stands behind
// it.
func (in *Inbox) hold(ctx context.Context, conn *pgx.Conn, e *event.Event, hash []byte, code, reason string) *failure {
	_, err := conn.Exec(ctx, in.q(sqlMark), in.consumer, hash, []byte(e.Tenant), e.Topic, []byte(e.Key),
		storable(code, 255), storable(reason, 2000))
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: marking a key: %w", err))
	}
	tag, err := conn.Exec(ctx, in.q(sqlMarks), in.consumer, [][]byte{hash})
	switch {
	case err != nil:
		return in.classify(ctx, fmt.Errorf("inbox: holding the mark of a key: %w", err))
	case tag.RowsAffected() == 0:
		return &failure{kind: conflict, err: errors.New("inbox: the mark of a key went while an event was parked")}
	}
	return nil
}

func (in *Inbox) tellParked(e event.Event, cause error, attempts int) {
	in.log.Error("inbox: an event finally failed and is parked; later events of its key go behind it",
		append(failureAttrs(&e, cause), "code", codeOf(cause), "attempts", attempts)...)
	if do := in.cfg.Observer.Parked; do != nil {
		do(ParkedInfo{Event: e, Code: codeOf(cause), Attempts: attempts, Err: cause})
	}
}

// noteHalt writes down that a partition waits for a person, so that one can be told and can resume it. That it halts
// does not depend on it.
func (in *Inbox) noteHalt(ctx context.Context, p partitionName, e *event.Event, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
	defer cancel()
	_, err := in.db.Exec(ctx, in.q(sqlHalted), in.consumer, p.topic, p.id, e.Position.Offset,
		storable(codeOf(cause), 255), storable(cause.Error(), 2000))
	if err != nil {
		in.log.Warn("inbox: a halt could not be written down", "topic", p.topic, "partition", p.id, "error", err)
	}
}

// unhalt takes back what noteHalt has noted with that code, where no list is full, or all the same.
func (in *Inbox) unhalt(ctx context.Context, code string, all bool) error {
	_, err := in.db.Exec(ctx, in.q(sqlUnhalt), in.consumer, code, all)
	return err
}

// Resumed implements [Handler].
func (h *handler) Resumed(ctx context.Context, topic string, partition int32) (bool, error) {
	var resumed bool
	err := h.db.QueryRow(ctx, h.q(sqlResumed), h.consumer, topic, partition).Scan(&resumed)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inbox: asking whether %s-%d is resumed: %w", topic, partition, err)
	}
	return resumed, nil
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
