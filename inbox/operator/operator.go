// Package operator is what people see of an inbox and change in it, and what the relay command calls: parked events,
// consumers and their partitions, and the diagnosis. It works on the database alone, beside running workers or without
// any.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// What an operator of an outbox and one of an inbox share.
type (
	// Parked is what a parked event of an outbox and one of an inbox have in common.
	Parked = audit.Parked
	// ParkedFilter chooses parked events. The zero value is the first hundred of all.
	ParkedFilter = audit.ParkedFilter
	// BlockedFilter chooses parked keys. The zero value is the first hundred of all.
	BlockedFilter = audit.BlockedFilter
	// BlockedKey is a key whose events wait for an operator, or are being released.
	BlockedKey = audit.BlockedKey
	// Edit is what EditParked changes; nil fields stay as they are.
	Edit = audit.Edit
	// DiscardResult is what a discard did.
	DiscardResult = audit.DiscardResult
	// AuditEntry is one row of the audit.
	AuditEntry = audit.Entry
)

// What an operator of either answers.
var (
	// ErrNotParked: what an Operator was asked to act on is not parked (any more).
	ErrNotParked = audit.ErrNotParked
	// ErrReleasing: an event cannot be changed while it is being released. Wait until that is done, or it is parked
	// again.
	ErrReleasing = audit.ErrReleasing
)

// ErrNotHalted: the partition does not wait for anybody.
var ErrNotHalted = errors.New("neither halted nor waiting: it goes on, or never stopped; list the consumers")

// Operator is what a person may do with an inbox: look at what is parked or quarantined, mend it, release it, discard
// it. It only changes the database; the workers, which have the effects, do the rest within Config.ReleaseEvery. Every
// change needs a reason and leaves a row in inbox_audit, in the same transaction. Its methods may be called from
// several goroutines.
type Operator struct {
	db       *pgxpool.Pool
	prefix   string
	consumer string // empty: any
	person   *audit.Person
}

// New makes an Operator. consumer is whose events it sees; empty: those of every consumer of the schema, and
// then what is done by key or partition needs an Operator of that consumer. name is the person's, for the
// audit. An empty schema is the connection's search_path.
func New(db *pgxpool.Pool, schema, consumer, name string) (*Operator, error) {
	prefix, err := pgschema.Prefix(schema)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	person, err := audit.New("inbox", db, name, pgschema.Expand(sql.Attentive, prefix))
	if err != nil {
		return nil, err
	}
	return &Operator{db, prefix, consumer, person}, nil
}

// q is a statement with its schema.
func (o *Operator) q(statement string) string { return pgschema.Expand(statement, o.prefix) }

// act runs a change in one transaction.
func (o *Operator) act(ctx context.Context, action, reason string, change func(tx pgx.Tx) error) error {
	return o.person.Act(ctx, action, reason, change)
}

// EditParked changes a parked event before it is released. Its id, topic and key stay. The record as it was is kept in
// the audit. It fails with ErrNotParked and ErrReleasing.
func (o *Operator) EditParked(ctx context.Context, id int64, edit Edit, reason string) error {
	if err := edit.Check(false); err != nil {
		return fmt.Errorf("inbox: edit parked: %w", err)
	}
	const action = "edit parked"
	return o.act(ctx, action, reason, func(tx pgx.Tx) error {
		e, err := o.locked(ctx, tx, id)
		if err != nil {
			return err
		}
		if e.Releasing {
			return fmt.Errorf("event %d %w", id, ErrReleasing)
		}
		headers, payload := "", []byte(nil)
		if edit.Headers != nil || edit.ContentType != nil {
			headers = sql.EncodeHeaders(edited(e.Headers, edit))
		}
		if edit.Payload != nil {
			payload = *edit.Payload
		}
		if err := o.auditRecords(ctx, tx, action, reason, edit.Detail(), true, e.ID); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, o.q(sql.Edit), e.ID, edit.Payload != nil, payload, headers)
		return err
	})
}

// edited are the new headers of a record: the codec's as they are, then the event's own by name.
func edited(headers []event.Header, edit Edit) []event.Header {
	var list []event.Header
	for _, h := range headers {
		switch {
		case edit.ContentType != nil && h.Key == event.HeaderContentType:
		case edit.Headers != nil && !event.ReservedHeader(h.Key):
		default:
			list = append(list, h)
		}
	}
	if edit.ContentType != nil && *edit.ContentType != "" {
		list = append(list, event.Header{Key: event.HeaderContentType, Value: []byte(*edit.ContentType)})
	}
	if edit.Headers != nil {
		at := len(list)
		for name, value := range *edit.Headers {
			list = append(list, event.Header{Key: name, Value: []byte(value)})
		}
		slices.SortFunc(list[at:], func(a, b event.Header) int { return strings.Compare(a.Key, b.Key) })
	}
	return list
}

// ReleaseKey lets the events of a parked key go, in order: a worker runs them one after the other, and what came
// meanwhile goes behind them. When one fails again, the key is parked again, and so it is at an event with
// [inbox.CodeMaybePublished] that is not the first of the list: look whether it was applied, and then release the key,
// or discard the event. It returns how many events wait. It fails with ErrNotParked; a key that is being released
// already is no error.
func (o *Operator) ReleaseKey(ctx context.Context, tenant, topic, key, reason string) (events int64, err error) {
	const action = "release key"
	err = o.act(ctx, action, reason, func(tx pgx.Tx) error {
		hash, err := o.lockKey(ctx, tx, tenant, topic, key)
		if err != nil {
			return err
		}
		for _, sql := range []string{sql.ReleaseKey, sql.ResetReleases} {
			if _, err := tx.Exec(ctx, o.q(sql), o.consumer, hash); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, o.q(sql.Judged), o.consumer, hash, inbox.CodeMaybePublished); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, o.q(sql.ListLength), o.consumer, hash).Scan(&events); err != nil {
			return err
		}
		return o.audit(ctx, tx, action, reason, o.consumer, tenant, topic, key, map[string]any{"events": events})
	})
	return events, err
}

// ReleaseEvent lets one event go that is parked or quarantined alone. Of a quarantined one, look at its business row
// first: the inbox cannot tell whether it was applied. One that stands in the list of a parked key is not released by
// itself, which would break the key's order: release the key, or discard what stands before it. It fails with
// ErrNotParked.
func (o *Operator) ReleaseEvent(ctx context.Context, id int64, reason string) error {
	const action = "release event"
	return o.act(ctx, action, reason, func(tx pgx.Tx) error {
		e, err := o.locked(ctx, tx, id)
		if err != nil {
			return err
		}
		if !e.Alone {
			return audit.ErrInList(id)
		}
		if _, err = tx.Exec(ctx, o.q(sql.ReleaseEvent), id); err != nil {
			return err
		}
		return o.auditRecords(ctx, tx, action, reason, map[string]any{"kind": e.Kind}, false, id)
	})
}

// DiscardEvent gives a parked event up for good: its id stays in the inbox as discarded, so that a duplicate is one,
// and its record in the audit. Discarding the head of a key's list skips it: what stands behind it goes on with the
// next release, and the key at once when nothing does. It fails with ErrNotParked.
func (o *Operator) DiscardEvent(ctx context.Context, id int64, reason string) (d DiscardResult, err error) {
	const action = "discard event"
	err = o.discarding(ctx, func() error {
		return o.act(ctx, action, reason, func(tx pgx.Tx) error {
			e, err := o.locked(ctx, tx, id)
			if err != nil {
				return err
			}
			d = DiscardResult{Events: 1}
			return o.discard(ctx, tx, e.Consumer, e.hash, action, reason, []discardID{{e.ID, e.MessageID, e.Code}})
		})
	})
	return d, err
}

// DiscardKey gives the whole list of a parked key up for good; later events of the key are applied again. It fails with
// ErrNotParked.
func (o *Operator) DiscardKey(ctx context.Context, tenant, topic, key, reason string) (d DiscardResult, err error) {
	const action = "discard key"
	err = o.discarding(ctx, func() error {
		return o.act(ctx, action, reason, func(tx pgx.Tx) error {
			hash, err := o.lockKey(ctx, tx, tenant, topic, key)
			if err != nil {
				return err
			}
			rows, err := tx.Query(ctx, o.q(sql.ListIDs), o.consumer, hash)
			if err != nil {
				return err
			}
			list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d discardID, err error) {
				var id string
				if err = row.Scan(&d.row, &id, &d.code); err == nil {
					d.id, err = uuid.Parse(id)
				}
				return d, err
			})
			if err != nil {
				return err
			}
			d = DiscardResult{Events: int64(len(list))}
			if err := o.audit(ctx, tx, action, reason, o.consumer, tenant, topic, key,
				map[string]any{"events": len(list)}); err != nil {
				return err
			}
			return o.discard(ctx, tx, o.consumer, hash, action, reason, list)
		})
	})
	return d, err
}

// discardID is an event to discard.
type discardID struct {
	row  int64
	id   uuid.UUID
	code string
}

// missingDays are those that discarded ids need, one of which has no partition.
type missingDays struct {
	days []days.Number
	error
}

// discarding makes the days that ids need, as far as this role may.
func (o *Operator) discarding(ctx context.Context, do func() error) error {
	err := do()
	missing, ok := errors.AsType[*missingDays](err)
	if !ok {
		return err
	}
	k := days.Keeper{DB: o.db, Prefix: o.prefix, LockTimeout: audit.Patience, Log: slog.New(slog.DiscardHandler)}
	for _, d := range missing.days {
		if err := k.MakeDay(ctx, d); err != nil {
			return err
		}
	}
	return do()
}

// discard records the ids, keeps the records in the audit, and empties their places in the list.
func (o *Operator) discard(ctx context.Context, tx pgx.Tx, consumer string, hash []byte, action, reason string,
	list []discardID,
) error {
	var state days.State
	if err := state.Read(tx.QueryRow(ctx, o.q(sql.State), "", "", consumer, "")); err != nil {
		return err
	}
	var rows []int64
	var own []days.Number
	ids, codes := map[string][]string{}, map[string][]string{} // by statement
	for _, d := range list {
		into := sql.DiscardAny
		if state.Released(d.id) {
			into = sql.DiscardDay
			day, _ := days.Of(d.id)
			own = append(own, day)
		}
		rows = append(rows, d.row)
		ids[into], codes[into] = append(ids[into], d.id.String()), append(codes[into], d.code)
	}
	if err := o.auditRecords(ctx, tx, action, reason, map[string]any{}, true, rows...); err != nil {
		return err
	}
	for _, into := range []string{sql.DiscardDay, sql.DiscardAny} {
		if len(ids[into]) == 0 {
			continue
		}
		_, err := tx.Exec(ctx, o.q(into), consumer, ids[into], codes[into])
		if pgerr.Is(err, pgerr.CheckViolation) {
			slices.Sort(own)
			return &missingDays{slices.Compact(own), err}
		}
		if err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, o.q(sql.LeaveAll), rows); err != nil || hash == nil {
		return err
	}
	_, err := tx.Exec(ctx, o.q(sql.Unmark), consumer, hash)
	return err
}

var errNoConsumer = errors.New("name the consumer: a key or partition is one of a consumer")

// locked locks a parked event, its mark first where it has one, and reads it whole.
func (o *Operator) locked(ctx context.Context, tx pgx.Tx, id int64) (ParkedEvent, error) {
	missing := fmt.Errorf("event %d: %w", id, ErrNotParked)
	read := func() (ParkedEvent, error) {
		found, err := o.parked(ctx, tx, ParkedFilter{ID: id, Limit: 1}, true)
		if err == nil && len(found) == 0 {
			err = missing
		}
		if err != nil {
			return ParkedEvent{}, err
		}
		return found[0], nil
	}
	e, err := read()
	if err != nil {
		return e, err
	}
	if e.hash != nil {
		var state string
		if err := tx.QueryRow(ctx, o.q(sql.LockMark), e.Consumer, e.hash).Scan(&state); err != nil &&
			!errors.Is(err, pgx.ErrNoRows) {
			return e, err
		}
	}
	var locked int64
	err = tx.QueryRow(ctx, o.q(sql.LockListed), id).Scan(&locked)
	if errors.Is(err, pgx.ErrNoRows) {
		return e, missing
	}
	if err != nil {
		return e, err
	}
	return read() // under the lock
}

func (o *Operator) lockKey(ctx context.Context, tx pgx.Tx, tenant, topic, key string) (hash []byte, err error) {
	if o.consumer == "" {
		return nil, errNoConsumer
	}
	hash = sql.KeyHash(tenant, topic, key)
	var state string
	err = tx.QueryRow(ctx, o.q(sql.LockMark), o.consumer, hash).Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("key %q of topic %q: %w", key, topic, ErrNotParked)
	}
	return hash, err
}

func (o *Operator) audit(ctx context.Context, tx pgx.Tx, action, reason, consumer, tenant, topic, key string,
	detail map[string]any,
) error {
	b, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, o.q(sql.Audit), o.person.Name, action, reason, consumer, []byte(tenant), topic, []byte(key),
		string(b))
	return err
}

func (o *Operator) auditRecords(ctx context.Context, tx pgx.Tx, action, reason string, detail map[string]any,
	whole bool, ids ...int64,
) error {
	b, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, o.q(sql.AuditRecords), o.person.Name, action, reason, string(b), ids, whole)
	return err
}

// Audit returns the last actions, newest first, at most limit.
func (o *Operator) Audit(ctx context.Context, limit int) ([]AuditEntry, error) {
	return o.person.Log(ctx, o.q(sql.AuditLog), o.consumer, limit)
}
