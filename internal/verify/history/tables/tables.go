// Package tables has the tables of a run itself: what producers and effects write there, in the transactions under
// test, is the truth that the checker compares everything else with.
package tables

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/verify/history"
)

// The headers in which an event carries what its effect writes down.
const (
	HeaderVersion  = "history-version"
	HeaderBusiness = "history-business"
)

// NextVersion locks the row of an aggregate and returns its next version. Events of the key are appended behind it, in
// the same transaction: that is the producer's part of order per key (P2).
func NextVersion(ctx context.Context, tx pgx.Tx, tenant, key string) (version int64, err error) {
	if err := tx.QueryRow(ctx, SQLNextVersion, tenant, key).Scan(&version); err != nil {
		return 0, fmt.Errorf("tables: next version of %q: %w", key, err)
	}
	return version, nil
}

// Record writes the business rows of events, in the transaction that appends them.
func Record(ctx context.Context, tx pgx.Tx, events ...history.Event) error {
	var batch pgx.Batch
	for _, e := range events {
		batch.Queue(SQLRecord, RecordArgs(e)...)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("tables: record %d events: %w", len(events), err)
	}
	return nil
}

// RecordArgs are the arguments of SQLRecord, for producers on database/sql.
func RecordArgs(e history.Event) []any {
	return []any{
		e.ID.String(), e.Tenant, e.Topic, e.Key, e.Version, e.Business, e.Scheduled, e.Poison, e.Skipped,
		e.Digest,
	}
}

// Describe puts what Apply needs into an event's headers, and returns what is recorded of it. The event has its id.
func Describe(e *event.Event, version int64, business string) history.Event {
	if e.Headers == nil {
		e.Headers = map[string]string{}
	}
	e.Headers[HeaderVersion], e.Headers[HeaderBusiness] = strconv.FormatInt(version, 10), business
	return history.Event{
		ID: e.ID, Tenant: e.Tenant, Topic: e.Topic, Key: e.Key, Version: version, Business: business,
		Scheduled: !e.NotBefore.IsZero(), Digest: history.Digest(e.Payload),
	}
}

// Apply is the effect of events, within an inbox's transaction: a row without any constraint, so that a second effect
// is seen and not refused, and before it a row of the ledger with its business key. An event whose business key the
// ledger has leaves no effect: that is what the business key is for.
func Apply(ctx context.Context, tx pgx.Tx, consumer string, events ...event.Event) error {
	var batch pgx.Batch
	for _, e := range events {
		version, err := strconv.ParseInt(e.Headers[HeaderVersion], 10, 64)
		if err != nil {
			return fmt.Errorf("tables: the version of %s: %w", e.ID, err)
		}
		business := e.Headers[HeaderBusiness]
		if business == "" {
			return errors.New("tables: an event without a business key")
		}
		batch.Queue(SQLApply, consumer, e.ID.String(), e.Tenant, e.Topic, e.Key, version, business,
			e.Position.Partition, e.Position.Offset)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("tables: apply %d events: %w", len(events), err)
	}
	return nil
}

// IDs are the ids of events, for Entry.IDs.
func IDs(events []event.Event) []uuid.UUID {
	ids := make([]uuid.UUID, len(events))
	for i := range events {
		ids[i] = events[i].ID
	}
	return ids
}
