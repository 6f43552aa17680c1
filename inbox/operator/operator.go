// Package operator lets people inspect and change an inbox: parked events, consumers and their partitions, and a
// diagnosis. The relay command uses it. It needs only the database, with or without running workers.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// ErrAnother: the edit makes another event of the record, or none that can be understood.
var ErrAnother = errors.New("the edit does not decode as the event that it was")

// ErrNotHalted: no row of the partition waits for an operator.
var ErrNotHalted = errors.New("neither halted nor waiting in this database: it goes on, or its worker has halted it " +
	"for a reason that only its log has, or the consumer has no such partition; list the consumers")

// Operator lists, edits, releases and discards the parked and quarantined events of an inbox, for one person. It only
// changes the database; the workers, which have the effects, act on it within Config.ReleaseEvery. Every change needs a
// reason and adds a row to inbox_audit in the same transaction. An Operator is safe for concurrent use.
type Operator struct {
	db       *pgxpool.Pool
	prefix   string
	consumer string // empty: any
	person   *audit.Person
}

// New returns an Operator for the events of consumer. Empty: the events of all consumers of the schema; changes to a
// key or a partition then need an Operator for a consumer. name is the person's name, for the audit. An empty schema
// means the connection's search_path.
func New(db *pgxpool.Pool, schema, consumer, name string) (*Operator, error) {
	prefix, err := pgschema.Prefix(schema)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	person, err := audit.New("inbox", db, name, pgschema.Expand(sql.Timeouts, prefix))
	if err != nil {
		return nil, err
	}
	return &Operator{db, prefix, consumer, person}, nil
}

// q returns a statement with the schema filled in.
func (o *Operator) q(statement string) string { return pgschema.Expand(statement, o.prefix) }

// change is an operator's change and its transaction.
type change struct {
	o              *Operator
	tx             pgx.Tx
	action, reason string
}

// act runs a change in one transaction.
func (o *Operator) act(ctx context.Context, action, reason string, do func(c change) error) error {
	return o.person.Act(ctx, action, reason, func(tx pgx.Tx) error { return do(change{o, tx, action, reason}) })
}

// exec runs a statement.
func (c change) exec(ctx context.Context, statement string, args ...any) (rows int64, err error) {
	tag, err := c.tx.Exec(ctx, c.o.q(statement), args...)
	return tag.RowsAffected(), err
}

// query runs a statement that returns at most one row.
func (c change) query(ctx context.Context, statement string, args ...any) pgx.Row {
	return c.tx.QueryRow(ctx, c.o.q(statement), args...)
}

// EditParked changes a parked event before its release. The event keeps its id, topic, key and type: the payload of a
// CloudEvent in the structured mode is the whole CloudEvent, and so must the new one be. The audit keeps the original
// record. It fails with admin.ErrNotParked, admin.ErrReleasing, admin.ErrEdited and ErrAnother.
func (o *Operator) EditParked(ctx context.Context, id int64, edit admin.Edit, reason string) error {
	if err := audit.CheckHeaders(edit, false); err != nil {
		return fmt.Errorf("inbox: edit parked: %w", err)
	}
	return o.act(ctx, audit.EditParked, reason, func(c change) error {
		e, err := c.locked(ctx, id)
		if err != nil {
			return err
		}
		if e.Releasing {
			return fmt.Errorf("event %d %w", id, admin.ErrReleasing)
		}
		contentType, own := audit.OwnHeaders(e.Headers)
		if err := audit.CheckBefore(edit, id, e.Payload, contentType, own); err != nil {
			return err
		}
		to := event.Record{Topic: e.Topic, Value: e.Payload, Headers: e.Headers}
		was, headers, payload := event.Decode(&to, ""), "", []byte(nil)
		if edit.Headers != nil || edit.ContentType != nil {
			to.Headers = edited(e.Headers, edit)
			headers = sql.EncodeHeaders(to.Headers)
		}
		if edit.Payload != nil {
			payload = *edit.Payload
			to.Value = payload
		}
		if err := checkSame(id, was, event.Decode(&to, "")); err != nil {
			return err
		}
		if err := c.auditRecords(ctx, audit.Changed(edit), true, e.ID); err != nil {
			return err
		}
		_, err = c.exec(ctx, sql.Edit, e.ID, edit.Payload != nil, payload, headers)
		return err
	})
}

// checkSame refuses a record that is decoded as another event than before the edit. What was missing may be added, as
// when a CloudEvent that did not parse is mended.
func checkSame(id int64, was, is event.Event) error {
	for _, a := range [][3]string{
		{"type", was.Type, is.Type}, {"source", was.Source, is.Source}, {"tenant", was.Tenant, is.Tenant},
	} {
		if a[1] != "" && a[1] != a[2] {
			return fmt.Errorf("event %d: %w: its %s would be %q and is %q (the payload of a structured CloudEvent is "+
				"the whole CloudEvent)", id, ErrAnother, a[0], a[2], a[1])
		}
	}
	return nil
}

// edited returns the new headers of a record: the codec's headers unchanged, then the event's own headers by name.
func edited(headers []event.Header, edit admin.Edit) []event.Header {
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

// ReleaseKey releases the events of a parked key, in order. A worker runs them one after the other; new events of the
// key are added behind them. The key is parked again when an event fails again. It is also parked again at an event
// with [inbox.CodeMaybePublished] that is not the first of the list: check whether that event was applied, then release
// the key or discard the event. ReleaseKey returns the number of waiting events. It fails with admin.ErrNotParked and
// admin.ErrAnotherList. Releasing a key that is already being released is not an error.
func (o *Operator) ReleaseKey(ctx context.Context, tenant, topic, key string, seen admin.Seen, reason string) (
	events int64, err error,
) {
	err = o.act(ctx, audit.ReleaseKey, reason, func(c change) error {
		hash, list, err := c.lockKey(ctx, tenant, topic, key, seen)
		if err != nil {
			return err
		}
		events = list.Events
		return c.release(ctx, tenant, topic, key, hash, events)
	})
	return events, err
}

// release releases a key whose mark is locked.
func (c change) release(ctx context.Context, tenant, topic, key string, hash []byte, events int64) error {
	for _, statement := range []string{sql.ReleaseKey, sql.ResetReleases} {
		if _, err := c.exec(ctx, statement, c.o.consumer, hash); err != nil {
			return err
		}
	}
	if _, err := c.exec(ctx, sql.Judged, c.o.consumer, hash, inbox.CodeMaybePublished); err != nil {
		return err
	}
	c.action = audit.ReleaseKey
	return c.audit(ctx, tenant, topic, key, map[string]any{"events": events})
}

// ReleaseEvent releases one event that is parked or quarantined alone. Before releasing a quarantined event, check its
// business row: the inbox cannot tell whether it was applied. An event in the list of a parked key is refused, because
// it would break the key's order: release the key, or discard the events before it. It fails with admin.ErrNotParked.
func (o *Operator) ReleaseEvent(ctx context.Context, id int64, reason string) error {
	return o.act(ctx, audit.ReleaseEvent, reason, func(c change) error {
		e, err := c.locked(ctx, id)
		if err != nil {
			return err
		}
		if !e.Alone {
			return audit.ErrInList(id)
		}
		if _, err = c.exec(ctx, sql.ReleaseEvent, id); err != nil {
			return err
		}
		return c.auditRecords(ctx, map[string]any{"kind": e.Kind}, false, id)
	})
}

// RevealParked is ParkedEvent with a row in the audit: who saw the headers and payload, and why. It fails with
// admin.ErrNotParked.
func (o *Operator) RevealParked(ctx context.Context, id int64, reason string) (ParkedEvent, error) {
	var e ParkedEvent
	err := o.act(ctx, audit.RevealParked, reason, func(c change) error {
		list, err := o.parked(ctx, c.tx, admin.ParkedFilter{ID: id, Limit: 1}, true)
		if err == nil && len(list) == 0 {
			err = fmt.Errorf("event %d: %w", id, admin.ErrNotParked)
		}
		if err != nil {
			return err
		}
		e = list[0]
		return c.auditRecords(ctx, map[string]any{}, false, id)
	})
	if err != nil {
		return ParkedEvent{}, err
	}
	return e, nil
}

// MayChange reports whether the connection's role can make changes: it may write the audit, and the database is not a
// standby.
func (o *Operator) MayChange(ctx context.Context) (may bool, err error) {
	if err := o.db.QueryRow(ctx, o.q(sql.MayChange)).Scan(&may); err != nil {
		return false, fmt.Errorf("inbox: asking what this role may do: %w", err)
	}
	return may, nil
}

var errNoConsumer = errors.New("name the consumer: a key or partition is one of a consumer")

// locked locks a parked event and reads all of it. If its key has a mark, locked locks the mark first.
func (c change) locked(ctx context.Context, id int64) (ParkedEvent, error) {
	missing := fmt.Errorf("event %d: %w", id, admin.ErrNotParked)
	read := func() (ParkedEvent, error) {
		found, err := c.o.parked(ctx, c.tx, admin.ParkedFilter{ID: id, Limit: 1}, true)
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
		if err := c.query(ctx, sql.LockMark, e.Consumer, e.hash).Scan(&state); err != nil &&
			!errors.Is(err, pgx.ErrNoRows) {
			return e, err
		}
	}
	var locked int64
	err = c.query(ctx, sql.LockListed, id).Scan(&locked)
	if errors.Is(err, pgx.ErrNoRows) {
		return e, missing
	}
	if err != nil {
		return e, err
	}
	return read() // under the lock
}

// lockKey locks the mark of a parked key. It refuses another list than the one that was seen.
func (c change) lockKey(ctx context.Context, tenant, topic, key string, seen admin.Seen) (hash []byte,
	list audit.KeyList, err error,
) {
	if c.o.consumer == "" {
		return nil, list, errNoConsumer
	}
	hash = sql.KeyHash(tenant, topic, key)
	var state string
	err = c.query(ctx, sql.LockMark, c.o.consumer, hash).Scan(&state)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = fmt.Errorf("key %q of topic %q: %w", key, topic, admin.ErrNotParked)
	case err == nil:
		list.Releasing = state == "releasing"
		err = c.query(ctx, sql.KeyList, c.o.consumer, hash).Scan(&list.Head, &list.Events)
	}
	if err == nil {
		err = list.CheckSeen(topic, key, seen)
	}
	return hash, list, err
}

// audit writes the audit row for a change of the operator's consumer. Arguments that do not apply are empty.
func (c change) audit(ctx context.Context, tenant, topic, key string, detail map[string]any) error {
	b, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	_, err = c.exec(ctx, sql.Audit, c.o.person.Name, c.action, c.reason, c.o.consumer, []byte(tenant), topic,
		[]byte(key), string(b))
	return err
}

// auditRecords writes an audit row for each parked event, with or without its record.
func (c change) auditRecords(ctx context.Context, detail map[string]any, whole bool, ids ...int64) error {
	b, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	_, err = c.exec(ctx, sql.AuditRecords, c.o.person.Name, c.action, c.reason, string(b), ids, whole)
	return err
}

// Audit returns the latest actions, newest first, at most limit.
func (o *Operator) Audit(ctx context.Context, limit int) ([]admin.AuditEntry, error) {
	return o.person.Log(ctx, o.q(sql.AuditLog), o.consumer, limit)
}

// Acknowledge says that the doctor's finding is known until a.Until, and why it stays; a time that has passed ends
// that. a.Operator and a.Reason are not read.
func (o *Operator) Acknowledge(ctx context.Context, a admin.Acknowledgement, reason string) error {
	return o.act(ctx, audit.Acknowledge, reason, func(c change) error {
		return c.audit(ctx, "", "", "", audit.Acknowledged(a))
	})
}

// Acknowledgements returns those of now. One that is older than the last 10,000 actions is forgotten.
func (o *Operator) Acknowledgements(ctx context.Context) ([]admin.Acknowledgement, error) {
	return o.person.Acknowledgements(ctx, o.q(sql.Acknowledged))
}
