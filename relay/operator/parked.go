package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// ParkedEvent is an event that was certainly refused, or that waits behind one that was.
type ParkedEvent struct {
	admin.Parked        // its ID is its outbox id
	Lane         int16  `json:"lane"`
	Source       string `json:"source"`
	ContentType  string `json:"content_type"`
	// MaybePublished: an attempt may have reached the broker. If the event is released, it carries the header ce_maybe;
	// if it is discarded, it may still appear once.
	MaybePublished bool              `json:"maybe_published"`
	CreatedAt      time.Time         `json:"created_at"`
	Headers        map[string]string `json:"headers,omitempty"`
}

func (e *ParkedEvent) audited() audited {
	return audited{
		messageID: &e.MessageID, tenant: e.Tenant, topic: e.Topic,
		detail: map[string]any{"id": e.ID, "type": e.Type},
	}
}

// Parked lists parked events by id, without their payloads.
func (o *Operator) Parked(ctx context.Context, f admin.ParkedFilter) ([]ParkedEvent, error) {
	list, err := o.parked(ctx, o.db, f, false)
	if err != nil {
		return nil, fmt.Errorf("relay: listing parked events: %w", err)
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
		return ParkedEvent{}, fmt.Errorf("relay: event %d: %w", id, err)
	}
	return list[0], nil
}

func (o *Operator) parked(ctx context.Context, db audit.DB, f admin.ParkedFilter, whole bool) ([]ParkedEvent, error) {
	if f.Limit <= 0 {
		f.Limit = admin.DefaultLimit
	}
	if f.ID != 0 {
		f.After = max(f.After, f.ID-1) // where reading of the index begins
	}
	var messageID *uuid.UUID
	if f.MessageID != uuid.Nil {
		messageID = &f.MessageID
	}
	return audit.Read(ctx, db, scanParked, o.q(sql.Parked), f.ID, messageID, f.Tenant, f.Topic, f.Key, f.Code,
		sql.Interval(f.OlderThan), f.After, f.Limit, whole, f.Kind)
}

func scanParked(row pgx.CollectableRow) (e ParkedEvent, err error) {
	var headers []byte
	err = row.Scan(&e.ID, &e.Lane, &e.MessageID, &e.Source, &e.Tenant, &e.Topic, &e.Key, &e.Type, &e.ContentType,
		&e.Kind, &e.Alone, &e.Releasing, &e.MaybePublished, &e.Attempts, &e.Error, &e.Code, &e.CreatedAt, &e.ParkedAt,
		&e.Bytes, &headers, &e.Payload)
	if err == nil && headers != nil {
		err = json.Unmarshal(headers, &e.Headers)
	}
	return e, err
}

// BlockedKeys lists parked keys, the longest blocked first.
func (o *Operator) BlockedKeys(ctx context.Context, f admin.BlockedFilter) ([]admin.BlockedKey, error) {
	if f.Limit <= 0 {
		f.Limit = admin.DefaultLimit
	}
	return o.person.BlockedKeys(ctx, o.q(sql.BlockedKeys), f.Tenant, f.Topic, f.Key, f.Code, sql.Interval(f.OlderThan),
		f.Limit)
}

// Failures lists the failures that wait for an operator, a key or an event that is parked alone, the longest parked
// first. It leaves out those that are being released.
func (o *Operator) Failures(ctx context.Context, f admin.FailureFilter) ([]admin.Failure, error) {
	return o.person.Failures(ctx, o.q(sql.Failures), f, f.Tenant)
}

// HeldPartition counts the events that wait for one partition, or for a topic as a whole.
type HeldPartition struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"` // -1: the topic as a whole is refused
	Events    int64     `json:"events"`
	Lanes     int       `json:"lanes"`  // in how many lanes
	Since     time.Time `json:"since"`  // when the first of them was held
	Oldest    time.Time `json:"oldest"` // when the oldest was appended
	// MaybePublished counts those that an attempt may have written.
	MaybePublished int64 `json:"maybe_published"`
}

// Held counts held events per topic and partition. It reads all of them.
func (o *Operator) Held(ctx context.Context) ([]HeldPartition, error) {
	return audit.List(ctx, o.person, "counting held events", pgx.RowToStructByPos[HeldPartition], o.q(sql.HeldCounts))
}
