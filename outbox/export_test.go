package outbox

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

// Queries is all SQL of the room, for a test against the migrated schema.
var Queries = map[string]string{
	"append one": queryAppendOne, "append many": queryAppendMany,
	"schedule one": queryScheduleOne, "schedule many": queryScheduleMany, "lock keys": queryLockKeys,
}

// Reserve lets a test compare what the size check assumes with what the codec writes.
const (
	MaxRecord      = maxRecord
	RecordOverhead = recordOverhead
)

// CopyFrom is where Append changes to COPY.
const CopyFrom = copyFrom

// ByStatements is Append without COPY, for the benchmark that decides between the two.
func ByStatements(ctx context.Context, tx pgx.Tx, events ...event.Event) error {
	b, err := Appender{}.prepare(ctx, events)
	if err != nil {
		return err
	}
	return b[0].statements(func(query string, args []any, _ int) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	})
}

// ByCopy is Append with COPY however few events there are.
func ByCopy(ctx context.Context, tx pgx.Tx, events ...event.Event) error {
	b, err := Appender{}.prepare(ctx, events)
	if err != nil {
		return err
	}
	return b[0].copy(ctx, tx)
}

// Prepare is what Append does before it sends anything.
func Prepare(ctx context.Context, events ...event.Event) error {
	_, err := Appender{Schema: "app"}.prepare(ctx, events)
	return err
}
