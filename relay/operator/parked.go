package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/sql"
)

// defaultList is how many rows a list has when nobody says.
const defaultList = 100

// ParkedFilter chooses parked events. The zero value is the first hundred of all.
type ParkedFilter struct {
	ID        int64         // the outbox id; 0: any
	MessageID uuid.UUID     // zero: any
	Tenant    *string       // nil: any
	Topic     string        // empty: any
	Key       string        // empty: any
	Code      string        // the reason's code, such as "MESSAGE_TOO_LARGE"; empty: any
	OlderThan time.Duration // parked for at least so long
	After     int64         // only ids above it, for the next page
	Limit     int           // default 100
}

// ParkedEvent is an event that was refused for certain, or that waits behind one that was.
type ParkedEvent struct {
	ID          int64     `json:"id"` // its outbox id: the list of a key is in this order
	Lane        int16     `json:"lane"`
	MessageID   uuid.UUID `json:"message_id"`
	Source      string    `json:"source"`
	Tenant      string    `json:"tenant"`
	Topic       string    `json:"topic"`
	Key         string    `json:"key"`
	Type        string    `json:"type"`
	ContentType string    `json:"content_type"`
	// Alone: no key is held back for it. Otherwise the whole (tenant, topic, key) is parked.
	Alone     bool `json:"alone"`
	Releasing bool `json:"releasing"`
	// MaybePublished: an attempt may have reached the broker. Released, it carries the header ce_maybe; discarded, it
	// may still appear once.
	MaybePublished bool      `json:"maybe_published"`
	Attempts       int       `json:"attempts"` // how often it was refused; 0: it only waits behind one that was
	Reason         string    `json:"reason"`   // what the broker said last
	Code           string    `json:"code"`
	CreatedAt      time.Time `json:"created_at"`
	ParkedAt       time.Time `json:"parked_at"`
	Bytes          int       `json:"bytes"` // of the payload; -1: it is a tombstone
	// Headers and Payload are filled by Operator.ParkedEvent only.
	Headers map[string]string `json:"headers,omitempty"`
	Payload []byte            `json:"payload,omitempty"`
}

func (e *ParkedEvent) audited() audited {
	return audited{messageID: &e.MessageID, tenant: e.Tenant, topic: e.Topic, detail: map[string]any{"id": e.ID, "type": e.Type}}
}

// Parked lists parked events by id, without their payloads.
func (o *Operator) Parked(ctx context.Context, f ParkedFilter) ([]ParkedEvent, error) {
	list, err := o.parked(ctx, o.db, f, false)
	if err != nil {
		return nil, fmt.Errorf("relay: listing parked events: %w", err)
	}
	return list, nil
}

// ParkedEvent reads one parked event with its headers and payload. It fails with ErrNotParked.
func (o *Operator) ParkedEvent(ctx context.Context, id int64) (ParkedEvent, error) {
	list, err := o.parked(ctx, o.db, ParkedFilter{ID: id, Limit: 1}, true)
	if err == nil && len(list) == 0 {
		err = ErrNotParked
	}
	if err != nil {
		return ParkedEvent{}, fmt.Errorf("relay: event %d: %w", id, err)
	}
	return list[0], nil
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func (o *Operator) parked(ctx context.Context, db querier, f ParkedFilter, whole bool) ([]ParkedEvent, error) {
	if f.Limit <= 0 {
		f.Limit = defaultList
	}
	if f.ID != 0 {
		f.After = max(f.After, f.ID-1) // where the index begins to be read
	}
	var messageID *uuid.UUID
	if f.MessageID != uuid.Nil {
		messageID = &f.MessageID
	}
	rows, err := db.Query(ctx, o.q(sql.Parked), f.ID, messageID, f.Tenant, f.Topic, f.Key, f.Code, sql.Interval(f.OlderThan), f.After, f.Limit, whole)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e ParkedEvent, err error) {
		var headers []byte
		err = row.Scan(&e.ID, &e.Lane, &e.MessageID, &e.Source, &e.Tenant, &e.Topic, &e.Key, &e.Type, &e.ContentType, &e.Alone,
			&e.Releasing, &e.MaybePublished, &e.Attempts, &e.Reason, &e.Code, &e.CreatedAt, &e.ParkedAt, &e.Bytes, &headers, &e.Payload)
		if err == nil && headers != nil {
			err = json.Unmarshal(headers, &e.Headers)
		}
		return e, err
	})
}

// BlockedFilter chooses parked keys. The zero value is the first hundred of all.
type BlockedFilter struct {
	Tenant    *string       // nil: any
	Topic     string        // empty: any
	Key       string        // empty: any
	Code      string        // the reason's code; empty: any
	OlderThan time.Duration // in its state for at least so long
	Limit     int           // default 100
}

// BlockedKey is a key whose events wait for an operator, or are being released.
type BlockedKey struct {
	Tenant    string    `json:"tenant"`
	Topic     string    `json:"topic"`
	Key       string    `json:"key"`
	Releasing bool      `json:"releasing"`
	Since     time.Time `json:"since"` // of this state
	Reason    string    `json:"reason"`
	Code      string    `json:"code"`
	Waiting   int64     `json:"waiting"` // events in its list
	// Oldest is when the first of them was appended; Since when the list is empty.
	Oldest time.Time  `json:"oldest"`
	Head   *uuid.UUID `json:"head"` // the message id of the first; nil when the list is empty
}

// BlockedKeys lists parked keys, the longest blocked first.
func (o *Operator) BlockedKeys(ctx context.Context, f BlockedFilter) ([]BlockedKey, error) {
	if f.Limit <= 0 {
		f.Limit = defaultList
	}
	rows, err := o.db.Query(ctx, o.q(sql.BlockedKeys), f.Tenant, f.Topic, f.Key, f.Code, sql.Interval(f.OlderThan), f.Limit)
	var list []BlockedKey
	if err == nil {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (k BlockedKey, err error) {
			err = row.Scan(&k.Tenant, &k.Topic, &k.Key, &k.Releasing, &k.Since, &k.Reason, &k.Code, &k.Waiting, &k.Oldest, &k.Head)
			return k, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("relay: listing parked keys: %w", err)
	}
	return list, nil
}

// HeldPartition is what waits for one partition, or for a topic as a whole.
type HeldPartition struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"` // -1: the topic as a whole is refused
	Events    int64     `json:"events"`
	Lanes     int       `json:"lanes"`  // in how many lanes
	Since     time.Time `json:"since"`  // when the first of them was held
	Oldest    time.Time `json:"oldest"` // when the oldest was appended
}

// Held counts held events per topic and partition. It reads all of them.
func (o *Operator) Held(ctx context.Context) ([]HeldPartition, error) {
	rows, err := o.db.Query(ctx, o.q(sql.HeldCounts))
	var list []HeldPartition
	if err == nil {
		list, err = pgx.CollectRows(rows, scanHeld)
	}
	if err != nil {
		return nil, fmt.Errorf("relay: counting held events: %w", err)
	}
	return list, nil
}

func scanHeld(row pgx.CollectableRow) (h HeldPartition, err error) {
	err = row.Scan(&h.Topic, &h.Partition, &h.Events, &h.Lanes, &h.Since, &h.Oldest)
	return h, err
}
