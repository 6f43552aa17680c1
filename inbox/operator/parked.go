package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
)

// defaultList is how many rows a list has when nobody says.
const defaultList = 100

// ParkedFilter chooses parked events. The zero value is the first hundred of all.
type ParkedFilter struct {
	ID        int64         // the number in the list; 0: any
	MessageID uuid.UUID     // zero: any
	Tenant    *string       // nil: any
	Topic     string        // empty: any
	Key       string        // empty: any
	Code      string        // the reason's code, such as [inbox.CodeKilled]; empty: any
	Kind      string        // "failed", "behind" or "quarantined"; empty: any
	OlderThan time.Duration // parked for at least so long
	After     int64         // only numbers above it, for the next page
	Limit     int           // default 100
}

// ParkedEvent is an event that finally failed, that waits behind one that did, or that is in quarantine.
type ParkedEvent struct {
	ID        int64     `json:"id"` // the list of a key is in this order
	Consumer  string    `json:"consumer"`
	MessageID uuid.UUID `json:"message_id"`
	// Tenant and Key are the record's bytes, which need not be text.
	Tenant string `json:"tenant"`
	Topic  string `json:"topic"`
	Key    string `json:"key"`
	Type   string `json:"type"`
	// Kind is "failed", "behind" (it has not run yet) or "quarantined".
	Kind string `json:"kind"`
	// Alone: no key is held back for it. Otherwise the whole (tenant, topic, key) is parked.
	Alone     bool  `json:"alone"`
	Releasing bool  `json:"releasing"`
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
	// Attempts is how often its effect ran and failed.
	Attempts int    `json:"attempts"`
	Reason   string `json:"reason"` // the last error
	Code     string `json:"code"`
	// Time is the event's own time, or the record's where it names none.
	Time     time.Time `json:"time"`
	ParkedAt time.Time `json:"parked_at"`
	Bytes    int       `json:"bytes"` // of the payload; -1: it is a tombstone
	// Headers are the record's, in order, and Payload is its value; both are filled by Operator.ParkedEvent only.
	Headers []event.Header `json:"headers,omitempty"`
	Payload []byte         `json:"payload,omitempty"`

	hash []byte
}

// Parked lists parked events by ID, without headers and payloads.
func (o *Operator) Parked(ctx context.Context, f ParkedFilter) ([]ParkedEvent, error) {
	list, err := o.parked(ctx, o.db, f, false)
	if err != nil {
		return nil, fmt.Errorf("inbox: listing parked events: %w", err)
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
		return ParkedEvent{}, fmt.Errorf("inbox: event %d: %w", id, err)
	}
	return list[0], nil
}

// rowsQuerier is a pool or a transaction.
type rowsQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func (o *Operator) parked(ctx context.Context, db rowsQuerier, f ParkedFilter, whole bool) ([]ParkedEvent, error) {
	if f.Limit <= 0 {
		f.Limit = defaultList
	}
	id := ""
	if f.MessageID != uuid.Nil {
		id = f.MessageID.String()
	}
	rows, err := db.Query(ctx, o.q(sql.Parked), o.consumer, f.ID, id, optional(f.Tenant), f.Topic, someBytes(f.Key), f.Code, f.Kind,
		f.OlderThan.Seconds(), f.After, whole, f.Limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e ParkedEvent, err error) {
		var id, headers string
		var tenant, key []byte
		var millis int64
		err = row.Scan(&e.ID, &e.Consumer, &id, &tenant, &e.Topic, &key, &e.Type, &e.Kind, &e.Alone, &e.Releasing, &e.Partition, &e.Offset,
			&millis, &e.Attempts, &e.Reason, &e.Code, &e.ParkedAt, &e.Bytes, &headers, &e.Payload, &e.hash)
		if err != nil {
			return e, err
		}
		e.Tenant, e.Key = string(tenant), string(key)
		if e.MessageID, err = uuid.Parse(id); err != nil {
			return e, err
		}
		list, err := sql.DecodeHeaders(headers)
		if err != nil {
			return e, err
		}
		// As the consumer reads it: the time that the headers name wins over the record's.
		e.Time = event.Decode(&event.Record{Time: time.UnixMilli(millis), Headers: list}, "").Time
		if whole {
			e.Headers = list
		}
		return e, nil
	})
}

// optional are the bytes of a filter that may be anything, the empty one included.
func optional(s *string) []byte {
	if s == nil {
		return nil
	}
	return append([]byte{}, *s...) // never nil
}

// someBytes are the bytes of a filter whose empty value means any.
func someBytes(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
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
	Consumer  string `json:"consumer"`
	Tenant    string `json:"tenant"` // as bytes, as Key
	Topic     string `json:"topic"`
	Key       string `json:"key"`
	Releasing bool   `json:"releasing"`
	// AtBound: its list is at Config.ParkedPerKey, and its partition halts.
	AtBound bool       `json:"at_bound"`
	Since   time.Time  `json:"since"` // of this state
	Reason  string     `json:"reason"`
	Code    string     `json:"code"`
	Waiting int64      `json:"waiting"` // events in its list
	Oldest  time.Time  `json:"oldest"`  // when the first of them was parked; Since when the list is empty
	Head    *uuid.UUID `json:"head"`    // the message id of the first; nil when the list is empty
}

// BlockedKeys lists parked keys, the longest blocked first.
func (o *Operator) BlockedKeys(ctx context.Context, f BlockedFilter) ([]BlockedKey, error) {
	if f.Limit <= 0 {
		f.Limit = defaultList
	}
	rows, err := o.db.Query(ctx, o.q(sql.BlockedKeys), o.consumer, optional(f.Tenant), f.Topic, someBytes(f.Key), f.Code,
		f.OlderThan.Seconds(), f.Limit)
	var list []BlockedKey
	if err == nil {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (k BlockedKey, err error) {
			var tenant, key []byte
			var head *string
			err = row.Scan(&k.Consumer, &tenant, &k.Topic, &key, &k.Releasing, &k.AtBound, &k.Since, &k.Reason, &k.Code, &k.Waiting, &k.Oldest, &head)
			k.Tenant, k.Key = string(tenant), string(key)
			if err == nil && head != nil {
				var id uuid.UUID
				id, err = uuid.Parse(*head)
				k.Head = &id
			}
			return k, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: listing parked keys: %w", err)
	}
	return list, nil
}
