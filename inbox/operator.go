package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// ErrNotParked: what an Operator was asked to act on is not parked (any more).
var ErrNotParked = errors.New("not parked: it was released or discarded meanwhile, or never was; list what is parked")

// ErrReleasing: an event cannot be changed while it is being released. Wait until it is applied or parked again.
var ErrReleasing = errors.New("is being released at this moment: wait until it is applied, or parked again")

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
	name     string
}

// NewOperator makes an Operator. consumer is whose events it sees; empty: those of every consumer of the schema, and
// then what is done by key or partition needs an Operator of that consumer. operator is the person's name, for the
// audit. An empty schema is the connection's search_path.
func NewOperator(db *pgxpool.Pool, schema, consumer, operator string) (*Operator, error) {
	prefix, err := pgschema.Prefix(schema)
	switch {
	case err != nil:
		return nil, fmt.Errorf("inbox: %w", err)
	case db == nil:
		return nil, errors.New("inbox: NewOperator needs a pool")
	case strings.TrimSpace(operator) == "":
		return nil, errors.New("inbox: say who you are: the operator's name goes into the audit")
	}
	return &Operator{db: db, prefix: prefix, consumer: consumer, name: operator}, nil
}

func (o *Operator) sql(text string) string { return pgschema.Expand(text, o.prefix) }

// act runs a change in one transaction, with a bound on every wait for a lock.
func (o *Operator) act(ctx context.Context, action, reason string, change func(tx pgx.Tx) error) error {
	if strings.TrimSpace(reason) == "" {
		return fmt.Errorf("inbox: %s: give a reason: it goes into the audit", action)
	}
	err := pgx.BeginTxFunc(ctx, o.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, o.sql(sqlAttentive), "10s"); err != nil {
			return err
		}
		return failpoint.After(failpoint.InboxOperate, change(tx))
	})
	err = failpoint.After(failpoint.InboxOperated, err)
	if pgerr.Retry(err) {
		err = fmt.Errorf("a worker is at it: try again: %w", err)
	}
	if err != nil {
		return fmt.Errorf("inbox: %s: %w", action, err)
	}
	return nil
}

// Edit is what EditParked changes; nil fields stay as they are.
type Edit struct {
	Payload     *[]byte            // a nil slice makes a tombstone
	Headers     *map[string]string // all of the event's own; names of the codec's are refused, and its headers stay
	ContentType *string
}

// EditParked changes a parked event before it is released. Its id, topic and key stay. The record as it was is kept in
// the audit. It fails with ErrNotParked and ErrReleasing.
func (o *Operator) EditParked(ctx context.Context, id int64, edit Edit, reason string) error {
	if edit.Headers != nil {
		for name := range *edit.Headers {
			if event.ReservedHeader(name) {
				return fmt.Errorf("inbox: edit parked: header %q is the codec's own", name)
			}
		}
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
			headers = encodeHeaders(edit.apply(e.Headers))
		}
		if edit.Payload != nil {
			payload = *edit.Payload
		}
		detail := map[string]any{"payload": edit.Payload != nil, "headers": edit.Headers != nil, "content_type": edit.ContentType != nil}
		if err := o.auditRecords(ctx, tx, action, reason, detail, true, e.ID); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, o.sql(sqlEdit), e.ID, edit.Payload != nil, payload, headers)
		return err
	})
}

// apply makes the new headers of a record: the codec's as they are, then the event's own by name.
func (edit Edit) apply(headers []event.Header) []event.Header {
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
// [CodeMaybePublished] that is not the first of the list: look whether it was applied, and then release the key, or
// discard the event. It returns how many events wait. It fails with ErrNotParked; a key that is being released already
// is no error.
func (o *Operator) ReleaseKey(ctx context.Context, tenant, topic, key, reason string) (events int64, err error) {
	const action = "release key"
	err = o.act(ctx, action, reason, func(tx pgx.Tx) error {
		hash, err := o.lockKey(ctx, tx, tenant, topic, key)
		if err != nil {
			return err
		}
		for _, sql := range []string{sqlReleaseKey, sqlResetReleases} {
			if _, err := tx.Exec(ctx, o.sql(sql), o.consumer, hash); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, o.sql(sqlJudged), o.consumer, hash, CodeMaybePublished); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, o.sql(sqlListLength), o.consumer, hash).Scan(&events); err != nil {
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
			return fmt.Errorf("event %d stands in the list of its key: release the key, or discard what stands before it", id)
		}
		if _, err = tx.Exec(ctx, o.sql(sqlReleaseEvent), id); err != nil {
			return err
		}
		return o.auditRecords(ctx, tx, action, reason, map[string]any{"kind": e.Kind}, false, id)
	})
}

// Discarded is what a discard did.
type Discarded struct {
	Events int64 `json:"events"`
}

// DiscardEvent gives a parked event up for good: its id stays in the inbox as discarded, so that a duplicate is one,
// and its record in the audit. Discarding the head of a key's list skips it: what stands behind it goes on with the
// next release, and the key at once when nothing does. It fails with ErrNotParked.
func (o *Operator) DiscardEvent(ctx context.Context, id int64, reason string) (d Discarded, err error) {
	const action = "discard event"
	err = o.discarding(ctx, func() error {
		return o.act(ctx, action, reason, func(tx pgx.Tx) error {
			e, err := o.locked(ctx, tx, id)
			if err != nil {
				return err
			}
			d = Discarded{Events: 1}
			return o.discard(ctx, tx, e.Consumer, e.hash, action, reason, []discardID{{e.ID, e.MessageID, e.Code}})
		})
	})
	return d, err
}

// DiscardKey gives the whole list of a parked key up for good; later events of the key are applied again. It fails with
// ErrNotParked.
func (o *Operator) DiscardKey(ctx context.Context, tenant, topic, key, reason string) (d Discarded, err error) {
	const action = "discard key"
	err = o.discarding(ctx, func() error {
		return o.act(ctx, action, reason, func(tx pgx.Tx) error {
			hash, err := o.lockKey(ctx, tx, tenant, topic, key)
			if err != nil {
				return err
			}
			rows, err := tx.Query(ctx, o.sql(sqlListIDs), o.consumer, hash)
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
			d = Discarded{Events: int64(len(list))}
			if err := o.audit(ctx, tx, action, reason, o.consumer, tenant, topic, key, map[string]any{"events": len(list)}); err != nil {
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

// missingDay is the day that a discarded id needs and that has no partition.
type missingDay struct {
	day dayNumber
	err error
}

func (m *missingDay) Error() string { return m.err.Error() }
func (m *missingDay) Unwrap() error { return m.err }

// discarding makes the day that an id needs, as far as this role may.
func (o *Operator) discarding(ctx context.Context, do func() error) error {
	err := do()
	if missing, ok := errors.AsType[*missingDay](err); ok {
		k := &keeper{db: o.db, prefix: o.prefix, lockTimeout: "10s", log: slog.New(slog.DiscardHandler)}
		if err := k.makeDay(ctx, missing.day); err != nil {
			return err
		}
		return do()
	}
	return err
}

// discard records the ids, keeps the records in the audit, and empties their places in the list.
func (o *Operator) discard(ctx context.Context, tx pgx.Tx, consumer string, hash []byte, action, reason string, list []discardID) error {
	s, err := stateOf(tx.QueryRow(ctx, o.sql(sqlState), "", "", consumer, ""))
	if err != nil {
		return err
	}
	var rows []int64
	ids, codes := map[place][]string{}, map[place][]string{}
	last := map[place]dayNumber{}
	for _, d := range list {
		where := s.releasePlace(d.id)
		rows = append(rows, d.row)
		ids[where], codes[where] = append(ids[where], d.id.String()), append(codes[where], d.code)
		last[where], _ = idDay(d.id)
	}
	if err := o.auditRecords(ctx, tx, action, reason, map[string]any{}, true, rows...); err != nil {
		return err
	}
	for _, to := range []struct {
		place place
		sql   string
	}{{inDay, sqlDiscardDay}, {inAny, sqlDiscardAny}} {
		if len(ids[to.place]) == 0 {
			continue
		}
		_, err := tx.Exec(ctx, o.sql(to.sql), consumer, ids[to.place], codes[to.place])
		if pgerr.Is(err, pgerr.CheckViolation) {
			return &missingDay{last[to.place], err}
		}
		if err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, o.sql(sqlLeaveAll), rows); err != nil || hash == nil {
		return err
	}
	_, err = tx.Exec(ctx, o.sql(sqlUnmark), consumer, hash)
	return err
}

// Resume lets a halted partition go on, with its count of runs at zero, and has an event that fails and waits for its
// next attempt run at once: mend the cause first. Its worker notices by itself within seconds. It fails with
// ErrNotHalted.
func (o *Operator) Resume(ctx context.Context, topic string, partition int32, reason string) error {
	const action = "resume partition"
	if o.consumer == "" {
		return fmt.Errorf("inbox: %s: %w", action, errNoConsumer)
	}
	return o.act(ctx, action, reason, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, o.sql(sqlResume), o.consumer, topic, partition)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("%s-%d: %w", topic, partition, ErrNotHalted)
		}
		return o.audit(ctx, tx, action, reason, o.consumer, "", topic, "", map[string]any{"partition": partition})
	})
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
		if err := tx.QueryRow(ctx, o.sql(sqlLockMark), e.Consumer, e.hash).Scan(&state); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return e, err
		}
	}
	var locked int64
	err = tx.QueryRow(ctx, o.sql(sqlLockListed), id).Scan(&locked)
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
	hash = keyHash(tenant, topic, key)
	var state string
	err = tx.QueryRow(ctx, o.sql(sqlLockMark), o.consumer, hash).Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("key %q of topic %q: %w", key, topic, ErrNotParked)
	}
	return hash, err
}

func (o *Operator) audit(ctx context.Context, tx pgx.Tx, action, reason, consumer, tenant, topic, key string, detail map[string]any) error {
	b, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, o.sql(sqlAudit), o.name, action, reason, consumer, []byte(tenant), topic, []byte(key), string(b))
	return err
}

func (o *Operator) auditRecords(ctx context.Context, tx pgx.Tx, action, reason string, detail map[string]any, whole bool, ids ...int64) error {
	b, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, o.sql(sqlAuditRecords), o.name, action, reason, string(b), ids, whole)
	return err
}

// Audited is one row of the audit.
type Audited struct {
	At        time.Time       `json:"at"`
	Operator  string          `json:"operator"`
	Action    string          `json:"action"`
	Reason    string          `json:"reason"`
	Consumer  string          `json:"consumer"`
	MessageID *uuid.UUID      `json:"message_id"` // nil: not about one event
	Tenant    string          `json:"tenant"`
	Topic     string          `json:"topic"`
	Key       string          `json:"key"`
	Detail    json.RawMessage `json:"detail"`
}

// Audit returns the last actions, newest first, at most limit.
func (o *Operator) Audit(ctx context.Context, limit int) ([]Audited, error) {
	rows, err := o.db.Query(ctx, o.sql(sqlAuditLog), o.consumer, limit)
	var list []Audited
	if err == nil {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Audited, err error) {
			var id, detail string
			var tenant, key []byte
			err = row.Scan(&a.At, &a.Operator, &a.Action, &a.Reason, &a.Consumer, &id, &tenant, &a.Topic, &key, &detail)
			a.Tenant, a.Key, a.Detail = string(tenant), string(key), json.RawMessage(detail)
			if err == nil && id != "" {
				var parsed uuid.UUID
				parsed, err = uuid.Parse(id)
				a.MessageID = &parsed
			}
			return a, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: reading the audit: %w", err)
	}
	return list, nil
}
