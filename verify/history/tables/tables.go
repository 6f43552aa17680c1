// Package tables has a run's own tables. Producers and effects write to them in the transactions under test, and the
// checker compares everything else with them.
package tables

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/verify/history"
)

// Headers with the values that an effect records.
const (
	HeaderVersion  = "history-version"
	HeaderBusiness = "history-business"
)

// NextVersion locks the row of an aggregate and returns its next version. The caller then appends the key's events in
// the same transaction, which is the producer's part of the order per key (P2).
func NextVersion(ctx context.Context, tx pgx.Tx, tenant, key string) (version int64, err error) {
	if err := tx.QueryRow(ctx, SQLNextVersion, tenant, key).Scan(&version); err != nil {
		return 0, fmt.Errorf("tables: next version of %q: %w", key, err)
	}
	return version, nil
}

// Record inserts the business rows of events, in the transaction that appends them.
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

// RecordArgs returns the arguments of SQLRecord, for producers with database/sql.
func RecordArgs(e history.Event) []any {
	return []any{
		e.ID.String(), e.Tenant, e.Topic, e.Key, e.Version, e.Business, e.Scheduled, e.Poison, e.Skipped,
		e.Digest,
	}
}

// Describe sets the headers that Apply needs, and returns the Event to record. The event must have its id.
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

// Apply is the effect of events, in an inbox's transaction. It inserts the business key into the ledger, and then a row
// without a constraint, so that a second effect is visible. An event whose business key the ledger has gets no row.
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

// IDs returns the ids of events, for Entry.IDs.
func IDs(events []event.Event) []uuid.UUID {
	ids := make([]uuid.UUID, len(events))
	for i := range events {
		ids[i] = events[i].ID
	}
	return ids
}
