package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/outcome"
)

// isFree reports whether no other process runs the release and no operator changes it. Callers wait for that outside of
// the gate.
func (in *Inbox) isFree(ctx context.Context, r *released) (free bool, err error) {
	statement, key := sqlFreeAlone, any(r.id)
	if r.hash != nil {
		statement, key = sqlFreeMark, r.hash
	}
	tag, err := in.db.Exec(ctx, in.q(statement), in.consumer, key)
	if err != nil {
		return false, in.classify(ctx, fmt.Errorf("inbox: looking whether a release is free: %w", err)).err
	}
	return tag.RowsAffected() > 0, nil
}

// countRelease locks the release, reads its head and counts the head's run, in a transaction of its own. The row
// countLeft already has a count by this handler. If the list is empty under the lock, its mark is removed. A nil head
// means that nothing is left to do. With a failure, head is the event that would have been counted.
func (in *Inbox) countRelease(ctx context.Context, r *released, countLeft int64) (head *record, f *failure) {
	err := in.inTx(ctx, func(tx pgx.Tx) error {
		list, err := in.lockHeads(ctx, tx, r, 1)
		if err != nil || len(list) == 0 {
			return err
		}
		head = list[0]
		if !r.uncounted(head) {
			head = nil
			return nil
		}
		if head.id == countLeft {
			head.attempts-- // it includes the count of this handler
			return nil
		}
		_, err = tx.Exec(ctx, in.q(sqlCountRelease), in.consumer, head.id)
		return err
	})
	if err != nil {
		return head, in.classify(ctx, fmt.Errorf("inbox: counting a release: %w", err))
	}
	return head, nil
}

// planRelease returns the events of a list that run together: the first ones, unless one of them already ran in this
// release or was in a batch that did not end. It records the last of them: if this process dies, the next process runs
// them one at a time. No ids: the next event runs alone. waiting is 0 if nothing is left to do.
func (in *Inbox) planRelease(ctx context.Context, r *released) (ids []int64, waiting int, err error) {
	err = in.inTx(ctx, func(tx pgx.Tx) error {
		if is, err := in.lockReleased(ctx, tx, r); err != nil || !is {
			return err
		}
		rows, err := tx.Query(ctx, in.q(sqlList), in.consumer, r.hash, releaseEvents)
		if err != nil {
			return err
		}
		var id int64
		var attempts, size, sum int
		var code string
		together := true
		_, err = pgx.ForEachRow(rows, []any{&id, &attempts, &code, &size}, func() error {
			waiting++
			if attempts != 0 {
				r.alone = id
			}
			sum += size
			if together = together && sum <= releaseBytes && code != CodeMaybePublished; together {
				ids = append(ids, id)
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case waiting == 0:
			return in.unmark(ctx, tx, r)
		case len(ids) < 2 || r.alone >= ids[0]:
			ids = nil
			return nil
		}
		_, err = tx.Exec(ctx, in.q(sqlNoteBatch), in.consumer, ids[len(ids)-1])
		return err
	})
	if err != nil {
		return nil, 0, in.classify(ctx, fmt.Errorf("inbox: looking at a released key: %w", err)).err
	}
	return ids, waiting, nil
}

// lockReleased locks the mark of a list, or the row of a single event, and reports whether it is still to be released.
func (in *Inbox) lockReleased(ctx context.Context, tx pgx.Tx, r *released) (is bool, err error) {
	statement, key := sqlLockAlone, any(r.id)
	if r.hash != nil {
		statement, key = sql.LockMark, r.hash
	}
	var state string
	err = tx.QueryRow(ctx, in.q(statement), in.consumer, key).Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return state == "releasing", err
}

// lockHeads locks the release and reads the first n events of the list, or the single event; none if it is no longer to
// be released. It removes the mark of a list that is empty under the lock.
func (in *Inbox) lockHeads(ctx context.Context, tx pgx.Tx, r *released, n int) ([]*record, error) {
	if is, err := in.lockReleased(ctx, tx, r); err != nil || !is {
		return nil, err
	}
	rows, err := tx.Query(ctx, in.q(sqlHead), in.consumer, r.hash, r.id, n)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*record, error) {
		h := &record{}
		return h, row.Scan(&h.id, &h.messageID, &h.topic, &h.partition, &h.offset, &h.millis, fromHex{&h.key},
			fromHex{&h.value}, &h.headers, &h.kind, &h.attempts, &h.code, &h.content)
	})
	if err == nil && len(list) == 0 {
		err = in.unmark(ctx, tx, r)
	}
	return list, err
}

// unmark removes the mark of an empty, locked list.
func (in *Inbox) unmark(ctx context.Context, tx pgx.Tx, r *released) error {
	if r.hash == nil {
		return nil
	}
	_, err := tx.Exec(ctx, in.q(sql.Unmark), in.consumer, r.hash)
	return err
}

// readState reads the state at the start of a transaction, and sets the inbox's timeouts for it. place is the partition
// of which effects run in it, or empty; nil: no effects run.
func (in *Inbox) readState(ctx context.Context, tx pgx.Tx, place *string) (*state, error) {
	return stateOf(tx.QueryRow(ctx, in.q(sql.State), in.cfg.lockTimeout, in.cfg.statementTimeout, in.consumer,
		in.cfg.idleTimeout, place))
}

// inTx runs do in a transaction with the inbox's timeouts.
func (in *Inbox) inTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, in.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := in.readState(ctx, tx, nil); err != nil {
			return err
		}
		return do(tx)
	})
}

// uncountRelease takes back the count of a run that this process survived, records whether the event waits for its next
// run, and reports whether it succeeded. If not, the count serves for the next run.
func (h *handler) uncountRelease(ctx context.Context, head *record, waits bool) (told bool) {
	h.countLeft = 0
	if err := h.execLate(ctx, sqlUncountRelease, h.consumer, head.id, waits); err != nil {
		h.countLeft = head.id
	}
	return h.countLeft == 0
}

// failAgain sets a mark, or a single event, back to parked for an operator.
func (in *Inbox) failAgain(ctx context.Context, r *released, head *record, cause error, runs int) error {
	code, message := storable(codeOf(cause), 255), storable(cause.Error(), 2000)
	return in.inTx(ctx, func(tx pgx.Tx) error {
		now, err := in.lockHeads(ctx, tx, r, 1)
		if err != nil || len(now) == 0 || now[0].id != head.id {
			return err // another process has changed it
		}
		if _, err := tx.Exec(ctx, in.q(sqlFailedAgain), in.consumer, head.id, code, message, runs); err != nil ||
			r.hash == nil {
			return err
		}
		_, err = tx.Exec(ctx, in.q(sqlParkAgain), in.consumer, r.hash, code, message)
		return err
	})
}

// releasing is the transaction of released events: the next events of a list, or a single event.
type releasing struct {
	work // events and outcomes of the last transaction
	in   *Inbox
	what released
	ids  []int64 // the ids of their rows
}

func (h *handler) releasing(r *released, ids []int64) *releasing {
	return &releasing{work: work{run: h.run, skip: map[uuid.UUID]bool{}}, in: h.Inbox, what: *r, ids: ids}
}

// settle runs the effects until all are decided or one fails. It uses savepoints if an effect skipped after writing.
func (t *releasing) settle(ctx context.Context) *failure {
	for made := false; ; {
		f := t.once(ctx)
		switch {
		case f == nil:
			return nil
		case f.kind == dayMissing && made: // the day is there: it is another constraint, or a trigger
			return &failure{kind: rejected, err: f.err}
		case f.kind == dayMissing && len(t.ids) == 1:
			made = true
			d, _ := days.Of(t.events[0].ID)
			if err := t.in.exclusive(ctx, func() error { return t.in.keeper.MakeDay(ctx, d) }); err != nil {
				return &failure{kind: rejected, err: err}
			}
		case f.kind == skipping:
			t.careful = t.careful || len(f.skips) == 0
			for _, i := range f.skips {
				t.skip[t.events[i].ID] = true
			}
		default:
			return f
		}
	}
}

// once runs one transaction: it locks, records the ids, removes the events from their list, and runs the effects.
func (t *releasing) once(ctx context.Context) *failure {
	in := t.in
	return in.withConn(ctx, func(conn *pgx.Conn) *failure {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		if err != nil {
			return in.classify(ctx, err)
		}
		p, f := t.begin(ctx, tx)
		if f != nil {
			return f
		}
		// First, for an effect may change the role or other settings of the transaction.
		if _, err = tx.Exec(ctx, in.q(sqlLeave), in.consumer, t.ids); err != nil {
			return in.classify(ctx, fmt.Errorf("inbox: taking events off their list: %w", err))
		}
		if f := in.apply(ctx, conn, tx, &t.work, p.fresh(t.events, t.skip, &aside{}, t.out)); f != nil {
			return f
		}
		if ctx.Err() != nil {
			return &failure{kind: canceled, err: ctx.Err()}
		}
		return in.commit(ctx, conn)
	})
}

// begin locks the release, checks that the list still begins with the same events, and records their ids.
func (t *releasing) begin(ctx context.Context, tx pgx.Tx) (*planned, *failure) {
	in := t.in
	place := ""
	s, err := in.readState(ctx, tx, &place)
	if err != nil {
		return nil, in.classify(ctx, fmt.Errorf("inbox: reading the state: %w", err))
	}
	now, err := in.lockHeads(ctx, tx, &t.what, len(t.ids))
	switch {
	case err != nil:
		return nil, in.classify(ctx, fmt.Errorf("inbox: locking released events: %w", err))
	case !slices.EqualFunc(now, t.ids, func(r *record, id int64) bool { return r.id == id }):
		return nil, &failure{kind: conflict, err: errors.New("inbox: another process releases the same key")}
	}
	p := &planned{ids: make([]planID, len(now))}
	t.events, t.out = make([]event.Event, len(now)), make([]Outcome, len(now))
	for i, r := range now {
		if t.events[i], err = r.event(); err != nil {
			return nil, &failure{kind: failed, index: i, err: outcome.Terminal(CodeMalformed, err)}
		}
		p.ids[i] = planID{id: t.events[i].ID, content: r.content, index: int32(i), route: inAny}
		if s.Released(t.events[i].ID) {
			p.ids[i].route = inDay
		}
	}
	p.sort()
	var b pgx.Batch
	ids := byID{in} // whatever the strategy: ids record the released events
	ids.queue(&b, p)
	res := tx.SendBatch(ctx, &b)
	switch err = cmp.Or(ids.read(res, p), res.Close()); {
	case pgerr.Is(err, pgerr.CheckViolation):
		return nil, &failure{kind: dayMissing, err: err}
	case err != nil:
		return nil, in.classify(ctx, fmt.Errorf("inbox: recording released ids: %w", err))
	}
	if _, err = in.there(ctx, tx, p.repeats(), false); err != nil {
		return nil, in.classify(ctx, err)
	}
	return p, nil
}
