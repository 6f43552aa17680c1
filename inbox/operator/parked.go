package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/audit"
)

// ParkedEvent is an event that finally failed, waits behind a failed event, or is quarantined.
type ParkedEvent struct {
	admin.Parked
	Consumer  string         `json:"consumer"`
	Partition int32          `json:"partition"`
	Offset    int64          `json:"offset"`
	Time      time.Time      `json:"time"`              // the event's time, or the record's if it has none
	Headers   []event.Header `json:"headers,omitempty"` // the record's headers, in order

	hash []byte
}

// Parked lists parked events in the order of ID, without headers and payloads.
func (o *Operator) Parked(ctx context.Context, f admin.ParkedFilter) ([]ParkedEvent, error) {
	list, err := o.parked(ctx, o.db, f, false)
	if err != nil {
		return nil, fmt.Errorf("inbox: listing parked events: %w", err)
	}
	return list, nil
}

// ParkedEvent reads one parked event with its headers and payload. It fails with admin.ErrNotParked.
func (o *Operator) ParkedEvent(ctx context.Context, id int64) (ParkedEvent, error) {
	list, err := o.parked(ctx, o.db, admin.ParkedFilter{ID: id, Limit: 1}, true)
	if err == nil && len(list) == 0 {
		err = admin.ErrNotParked
	}
	if err != nil {
		return ParkedEvent{}, fmt.Errorf("inbox: event %d: %w", id, err)
	}
	return list[0], nil
}

func (o *Operator) parked(ctx context.Context, db audit.DB, f admin.ParkedFilter, whole bool) ([]ParkedEvent, error) {
	if f.Limit <= 0 {
		f.Limit = admin.DefaultLimit
	}
	id := ""
	if f.MessageID != uuid.Nil {
		id = f.MessageID.String()
	}
	return audit.Read(ctx, db, func(row pgx.CollectableRow) (e ParkedEvent, err error) {
		var id, headers string
		var tenant, key []byte
		var millis int64
		err = row.Scan(&e.ID, &e.Consumer, &id, &tenant, &e.Topic, &key, &e.Type, &e.Kind, &e.Alone, &e.Releasing,
			&e.Partition, &e.Offset,
			&millis, &e.Attempts, &e.Error, &e.Code, &e.ParkedAt, &e.Bytes, &headers, &e.Payload, &e.hash)
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
		// As the consumer decodes it: the time in the headers takes precedence over the record's.
		e.Time = event.Decode(&event.Record{Time: time.UnixMilli(millis), Headers: list}, "").Time
		if whole {
			e.Headers = list
		}
		return e, nil
	}, o.q(sql.Parked), o.consumer, f.ID, id, optional(f.Tenant), f.Topic, someBytes(f.Key), f.Code, f.Kind,
		f.OlderThan.Seconds(), f.After, whole, f.Limit)
}

// optional returns the bytes of a filter value that may be empty; nil: no filter.
func optional(s *string) []byte {
	if s == nil {
		return nil
	}
	return append([]byte{}, *s...) // never nil
}

// someBytes returns the bytes of a filter value; an empty value means no filter.
func someBytes(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// Failures lists the parked keys and the events that are parked alone, oldest first, without those that are being
// released.
func (o *Operator) Failures(ctx context.Context, f admin.FailureFilter) ([]admin.Failure, error) {
	return o.person.Failures(ctx, o.q(sql.Failures), f, optional(f.Tenant), o.consumer)
}

// BlockedKeys lists parked keys, the longest blocked first.
func (o *Operator) BlockedKeys(ctx context.Context, f admin.BlockedFilter) ([]admin.BlockedKey, error) {
	if f.Limit <= 0 {
		f.Limit = admin.DefaultLimit
	}
	return o.person.BlockedKeys(ctx, o.q(sql.BlockedKeys), o.consumer, optional(f.Tenant), f.Topic, someBytes(f.Key),
		f.Code,
		f.OlderThan.Seconds(), f.Limit)
}
