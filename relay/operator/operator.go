// Package operator reads and changes an outbox for operators; the relay command and the pages call it: parked and held
// events, topics, scheduled events, replays, the fence, the publication of the WAL feed, the status and the
// diagnosis. It works on the database alone, with or without running relays.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Operator reads and changes an outbox for an operator: parked, held and scheduled events, and topics. It only changes
// the database; the relays that own the lanes do the rest, within a probe. Every change needs a reason and leaves a row
// in outbox_audit, in the same transaction. Its methods may be called from several goroutines.
type Operator struct {
	db     *pgxpool.Pool
	schema *sql.Schema
	person *audit.Person
}

// New makes an Operator. name is the name of the person, for the audit. An empty schema is the connection's
// search_path.
func New(db *pgxpool.Pool, schema, name string) (*Operator, error) {
	in, err := sql.For(schema)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	person, err := audit.New("relay", db, name, in.Expand(sql.IdleTimeout))
	if err != nil {
		return nil, err
	}
	return &Operator{db, in, person}, nil
}

// q returns a statement with its schema.
func (o *Operator) q(statement string) string { return o.schema.Expand(statement) }

// audited is the audit's record of an action. Detail never has payloads.
type audited struct {
	messageID     *uuid.UUID
	tenant, topic string
	detail        map[string]any
	release       *audited // of a key, in the same transaction
}

// text returns the detail as JSON: in the modes that a pooler needs, pgx does not know that a map is to become that.
func (a *audited) text() (*string, error) {
	if a.detail == nil {
		return nil, nil
	}
	b, err := json.Marshal(a.detail)
	text := string(b)
	return &text, err
}

// act runs a change and its audit in one transaction.
func (o *Operator) act(ctx context.Context, action, reason string, change func(tx pgx.Tx) (audited, error)) error {
	return o.person.Act(ctx, action, reason, func(tx pgx.Tx) error {
		a, err := change(tx)
		if err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, o.q(sql.Announce)); err != nil {
			return err
		}
		if err := o.record(ctx, tx, action, reason, a); err != nil || a.release == nil {
			return err
		}
		return o.record(ctx, tx, audit.ReleaseKey, reason, *a.release)
	})
}

func (o *Operator) record(ctx context.Context, tx pgx.Tx, action, reason string, a audited) error {
	detail, err := a.text()
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, o.q(sql.Audit), o.person.Name, action, a.messageID, a.tenant, a.topic, reason, detail)
	return err
}

// EditParked changes a parked event before it is released. Its id, topic, key and type stay: consumers may have
// recorded them. An earlier attempt may have written the old content: see ParkedEvent.MaybePublished. It fails with
// admin.ErrNotParked, admin.ErrReleasing and admin.ErrEdited.
func (o *Operator) EditParked(ctx context.Context, id int64, edit admin.Edit, reason string) error {
	if err := audit.CheckHeaders(edit, true); err != nil {
		return fmt.Errorf("relay: edit parked: %w", err)
	}
	return o.act(ctx, audit.EditParked, reason, func(tx pgx.Tx) (audited, error) {
		e, err := o.locked(ctx, tx, id)
		if err != nil {
			return audited{}, err
		}
		if e.Releasing {
			return audited{}, fmt.Errorf("event %d %w", id, admin.ErrReleasing)
		}
		if edit.Payload != nil || edit.HeadersBefore != nil {
			whole, err := o.parked(ctx, tx, admin.ParkedFilter{ID: id, Limit: 1}, true)
			if err == nil {
				err = audit.CheckBefore(edit, id, whole[0].Payload, whole[0].ContentType, audit.Pairs(whole[0].Headers))
			}
			if err != nil {
				return audited{}, err
			}
		}
		_, err = tx.Exec(ctx, o.q(sql.EditParked), e.Lane, id, edit.Payload != nil, edit.Payload, edit.Headers != nil,
			edit.Headers, edit.ContentType)
		a := e.audited()
		maps.Copy(a.detail, audit.Changed(edit))
		return a, err
	})
}

// ReleaseKey releases the events of a parked key, in order: the owner of its lane publishes them under new numbers and
// the same ids, and before events that were appended meanwhile. If one is refused again, the key is parked again. It
// returns the number of released events. It fails with admin.ErrNotParked and admin.ErrAnotherList; for a key that is
// being released already it returns 0 and no error.
func (o *Operator) ReleaseKey(ctx context.Context, tenant, topic, key string, seen admin.Seen, reason string) (
	events int64, err error,
) {
	if err := o.rejoin(ctx, tenant, topic, key); err != nil {
		return 0, fmt.Errorf("relay: release key: %w", err)
	}
	err = o.act(ctx, audit.ReleaseKey, reason, func(tx pgx.Tx) (audited, error) {
		if _, _, err := o.lockWhole(ctx, tx, tenant, topic, key, seen); err != nil {
			return audited{}, err
		}
		a, n, err := o.release(ctx, tx, tenant, topic, key)
		events = n
		return a, err
	})
	return events, err
}

// release releases a key whose lane is locked.
func (o *Operator) release(ctx context.Context, tx pgx.Tx, tenant, topic, key string) (a audited, events int64,
	err error,
) {
	err = tx.QueryRow(ctx, o.q(sql.ReleaseKey), tenant, topic, key).Scan(&events)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return audited{tenant: tenant, topic: topic, detail: map[string]any{"key": key, "events": events}}, events, err
}

// ReleaseEvent releases one event that was parked alone: one without a key, or one parked without its key. An event in
// the list of a parked key cannot be released by itself, because that would break the key's order: release the key, or
// discard the events before it. It fails with admin.ErrNotParked.
func (o *Operator) ReleaseEvent(ctx context.Context, id int64, reason string) error {
	return o.act(ctx, audit.ReleaseEvent, reason, func(tx pgx.Tx) (audited, error) {
		e, err := o.locked(ctx, tx, id)
		if err != nil {
			return audited{}, err
		}
		if !e.Alone {
			return audited{}, audit.ErrInList(id)
		}
		_, err = tx.Exec(ctx, o.q(sql.ReleaseEvent), e.Lane, id)
		return e.audited(), err
	})
}

// DiscardEvent deletes a parked event for good. Discarding the head of a key's list skips it: the events behind it
// follow at the next release; if there are none, the key is unblocked at once. It fails with admin.ErrNotParked.
func (o *Operator) DiscardEvent(ctx context.Context, id int64, reason string) (d admin.DiscardResult, err error) {
	err = o.act(ctx, audit.DiscardEvent, reason, func(tx pgx.Tx) (audited, error) {
		e, err := o.locked(ctx, tx, id)
		if err != nil {
			return audited{}, err
		}
		a, maybe, err := o.discard(ctx, tx, e)
		d = admin.DiscardResult{Events: 1, MaybePublished: maybe}
		return a, err
	})
	return d, err
}

// discard deletes an event whose lane is locked.
func (o *Operator) discard(ctx context.Context, tx pgx.Tx, e ParkedEvent) (a audited, maybePublished int64, err error) {
	var maybe bool
	if err := tx.QueryRow(ctx, o.q(sql.DiscardEvent), e.Lane, e.ID).Scan(&maybe); err != nil {
		return audited{}, 0, err
	}
	if maybe {
		maybePublished = 1
	}
	if !e.Alone {
		_, err = tx.Exec(ctx, o.q(sql.UnmarkEmpty), e.Lane, e.Tenant, e.Topic, e.Key)
	}
	a = e.audited()
	a.detail["may_appear"] = maybe
	return a, maybePublished, err
}

// SkipHead is DiscardEvent for the first event of a key's list, and, unless keep is set, ReleaseKey for the events
// behind it, in one transaction. Unless seen names its head, it refuses one that has not failed. It fails with
// admin.ErrNotParked, admin.ErrReleasing and admin.ErrAnotherList.
func (o *Operator) SkipHead(ctx context.Context, tenant, topic, key string, seen admin.Seen, keep bool,
	reason string,
) (s admin.SkipResult, err error) {
	if err := o.rejoin(ctx, tenant, topic, key); err != nil {
		return s, fmt.Errorf("relay: skip head: %w", err)
	}
	err = o.act(ctx, audit.DiscardEvent, reason, func(tx pgx.Tx) (audited, error) {
		_, list, err := o.lockWhole(ctx, tx, tenant, topic, key, seen)
		if err != nil {
			return audited{}, err
		}
		e, err := o.locked(ctx, tx, list.Head)
		if err == nil {
			err = list.CheckHead(e.Parked, seen)
		}
		if err != nil {
			return audited{}, err
		}
		a, maybe, err := o.discard(ctx, tx, e)
		s = admin.SkipResult{ID: e.ID, MessageID: e.MessageID, MaybePublished: maybe}
		if err != nil || keep || list.Events == 1 {
			return a, err
		}
		release, n, err := o.release(ctx, tx, tenant, topic, key)
		a.release, s.Released = &release, n
		return a, err
	})
	return s, err
}

// DiscardKey deletes the whole list of a parked key for good; later events of the key are published again. It fails
// with admin.ErrNotParked and admin.ErrAnotherList.
func (o *Operator) DiscardKey(ctx context.Context, tenant, topic, key string, seen admin.Seen, reason string) (
	d admin.DiscardResult, err error,
) {
	if err := o.rejoin(ctx, tenant, topic, key); err != nil {
		return d, fmt.Errorf("relay: discard key: %w", err)
	}
	err = o.act(ctx, audit.DiscardKey, reason, func(tx pgx.Tx) (audited, error) {
		lane, _, err := o.lockWhole(ctx, tx, tenant, topic, key, seen)
		if err == nil {
			err = tx.QueryRow(ctx, o.q(sql.DiscardKey), tenant, topic, key).Scan(&d.Events, &d.MaybePublished)
		}
		if err == nil {
			_, err = tx.Exec(ctx, o.q(sql.UnmarkEmpty), lane, tenant, topic, key)
		}
		return audited{tenant: tenant, topic: topic, detail: map[string]any{
			"key": key, "events": d.Events,
			"may_appear": d.MaybePublished,
		}}, err
	})
	return d, err
}

// RevealParked is ParkedEvent for an operator who sees headers and payload: the audit records who has seen them, and
// why. It fails with admin.ErrNotParked.
func (o *Operator) RevealParked(ctx context.Context, id int64, reason string) (ParkedEvent, error) {
	var e ParkedEvent
	err := o.act(ctx, audit.RevealParked, reason, func(tx pgx.Tx) (audited, error) {
		list, err := o.parked(ctx, tx, admin.ParkedFilter{ID: id, Limit: 1}, true)
		if err == nil && len(list) == 0 {
			err = fmt.Errorf("event %d: %w", id, admin.ErrNotParked)
		}
		if err != nil {
			return audited{}, err
		}
		e = list[0]
		return e.audited(), nil
	})
	if err != nil {
		return ParkedEvent{}, err
	}
	return e, nil
}

// MayChange reports whether the connection's role may make changes: whether it may write the audit, and the database is
// no standby.
func (o *Operator) MayChange(ctx context.Context) (may bool, err error) {
	if err := o.db.QueryRow(ctx, o.q(sql.MayChange)).Scan(&may); err != nil {
		return false, fmt.Errorf("relay: asking what this role may do: %w", err)
	}
	return may, nil
}

// locked locks the lane of a parked event and reads it.
func (o *Operator) locked(ctx context.Context, tx pgx.Tx, id int64) (ParkedEvent, error) {
	var lane int16
	err := tx.QueryRow(ctx, o.q(sql.LockParked), id).Scan(&lane)
	var found []ParkedEvent
	if err == nil {
		found, err = o.parked(ctx, tx, admin.ParkedFilter{ID: id, Limit: 1}, false)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && len(found) == 0:
		return ParkedEvent{}, fmt.Errorf("event %d: %w", id, admin.ErrNotParked)
	case err != nil:
		return ParkedEvent{}, err
	}
	return found[0], nil
}

// lockKey locks the lane of a parked key.
func (o *Operator) lockKey(ctx context.Context, tx pgx.Tx, tenant, topic, key string) (lane int16, err error) {
	err = tx.QueryRow(ctx, o.q(sql.LockKey), tenant, topic, key).Scan(&lane)
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("key %q of topic %q: %w", key, topic, admin.ErrNotParked)
	}
	return lane, err
}

// Limits for moving held events of a parked key in one transaction.
const (
	rejoinEvents = 10_000
	rejoinBytes  = 16 << 20
)

// rejoin moves the held events of a parked key behind its list, part by part: the relays wait for the lane meanwhile.
func (o *Operator) rejoin(ctx context.Context, tenant, topic, key string) error {
	for moved := int64(1); moved > 0; {
		err := o.person.Begin(ctx, func(tx pgx.Tx) error {
			if _, err := o.lockKey(ctx, tx, tenant, topic, key); err != nil {
				return err
			}
			return tx.QueryRow(ctx, o.q(sql.Rejoin), tenant, topic, key, rejoinEvents, rejoinBytes).Scan(&moved)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lockWhole locks the lane of a parked key whose events are all in its list, but for those that were refused since
// [Operator.rejoin]. It refuses another list than the one that was seen.
func (o *Operator) lockWhole(ctx context.Context, tx pgx.Tx, tenant, topic, key string, seen admin.Seen) (lane int16,
	list audit.KeyList, err error,
) {
	lane, err = o.lockKey(ctx, tx, tenant, topic, key)
	for moved := int64(1); err == nil && moved > 0; {
		err = tx.QueryRow(ctx, o.q(sql.Rejoin), tenant, topic, key, rejoinEvents, rejoinBytes).Scan(&moved)
	}
	if err == nil {
		err = tx.QueryRow(ctx, o.q(sql.KeyList), tenant, topic, key).Scan(&list.Head, &list.Events, &list.Releasing)
	}
	if err == nil {
		err = list.CheckSeen(topic, key, seen)
	}
	return lane, list, err
}

// Audit returns the last actions, newest first, at most limit.
func (o *Operator) Audit(ctx context.Context, limit int) ([]admin.AuditEntry, error) {
	return o.person.Log(ctx, o.q(sql.AuditLog), limit)
}

// Acknowledge says that the doctor's finding is known until a.Until, and why it stays; a time that has passed ends
// that. a.Operator and a.Reason are not read.
func (o *Operator) Acknowledge(ctx context.Context, a admin.Acknowledgement, reason string) error {
	return o.act(ctx, audit.Acknowledge, reason, func(pgx.Tx) (audited, error) {
		return audited{detail: audit.Acknowledged(a)}, nil
	})
}

// Acknowledgements returns those of now. One that is older than the last 10,000 actions is forgotten.
func (o *Operator) Acknowledgements(ctx context.Context) ([]admin.Acknowledgement, error) {
	return o.person.Acknowledgements(ctx, o.q(sql.Acknowledged))
}
