package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// ErrNotScheduled: an event is not scheduled (any more).
var ErrNotScheduled = errors.New("not scheduled: it has come due, was cancelled, or never was; list what is scheduled")

// ScheduledStatus counts the scheduled events, as part of a Status.
type ScheduledStatus struct {
	Events  int64      `json:"events"`  // all scheduled events
	Overdue int64      `json:"overdue"` // those that are due: a relay takes them within a moment
	Next    *time.Time `json:"next"`    // when the next one is due; nil: there is none
}

// ScheduledFilter chooses scheduled events. The zero value is the first hundred of all.
type ScheduledFilter struct {
	Topic     string     // empty: any
	Key       *string    // nil: any
	Tenant    *string    // nil: any
	MessageID uuid.UUID  // zero: any
	Until     *time.Time // due then at the latest; nil: any time
	Limit     int        // default 100
}

// ScheduledEvent is a scheduled event, without its content.
type ScheduledEvent struct {
	Seq       int64      `json:"seq"` // its name in CancelScheduled, with Due
	Due       time.Time  `json:"due"`
	MessageID *uuid.UUID `json:"message_id"` // nil: it gets one when it is due
	Tenant    string     `json:"tenant"`
	Topic     string     `json:"topic"`
	Key       string     `json:"key"`
	Type      string     `json:"type"`
	CreatedAt time.Time  `json:"created_at"`
	Bytes     int        `json:"bytes"` // of the payload; -1: a tombstone
}

// Scheduled lists scheduled events in the order of their due times.
func (o *Operator) Scheduled(ctx context.Context, f ScheduledFilter) ([]ScheduledEvent, error) {
	if f.Limit <= 0 {
		f.Limit = admin.DefaultLimit
	}
	var id *uuid.UUID
	if f.MessageID != uuid.Nil {
		id = &f.MessageID
	}
	return audit.List(ctx, o.person, "listing what is scheduled", pgx.RowToStructByPos[ScheduledEvent],
		o.q(sql.Scheduled), f.Topic, f.Key, f.Tenant, id, f.Until, f.Limit)
}

// CancelScheduled deletes a scheduled event for good, named by the seq and the due time of the list. It fails with
// ErrNotScheduled if the event has come due: it has been or will soon be published.
func (o *Operator) CancelScheduled(ctx context.Context, seq int64, due time.Time, reason string) error {
	return o.act(ctx, audit.CancelScheduled, reason, func(tx pgx.Tx) (audited, error) {
		var a audited
		var key, typ string
		err := tx.QueryRow(ctx, o.q(sql.Cancel), seq, due).Scan(&a.messageID, &a.tenant, &a.topic, &key, &typ, &due)
		if errors.Is(err, pgx.ErrNoRows) {
			err = fmt.Errorf("event %d, due at %s: %w", seq, due.UTC().Format(time.RFC3339Nano), ErrNotScheduled)
		}
		a.detail = map[string]any{"seq": seq, "key": key, "type": typ, "due": due}
		return a, err
	})
}

// CancelAllMost limits the events that one CancelAllScheduled deletes: the relays wait for its locks.
const CancelAllMost = 10_000

// CancelAllScheduled deletes scheduled events of a topic for good, whenever they are due: all of them, or those of a
// key, of a tenant, or of both; nil means any. One call deletes at most CancelAllMost, and more reports whether it has
// left some: call it again. It fails with ErrNotScheduled if there is none.
func (o *Operator) CancelAllScheduled(ctx context.Context, topic string, key, tenant *string, reason string) (
	events int64, more bool, err error,
) {
	err = o.act(ctx, audit.CancelAllScheduled, reason, func(tx pgx.Tx) (audited, error) {
		if _, err := tx.Exec(ctx, o.q(sql.LockTimeout), lockTimeout); err != nil {
			return audited{}, err
		}
		lanes, err := audit.Read(ctx, tx, pgx.RowTo[int16], o.q(sql.LockScheduled), topic, key, tenant)
		if err != nil {
			return audited{}, fmt.Errorf("locking the lanes: %w", err)
		}
		var chosen int64
		err = tx.QueryRow(ctx, o.q(sql.CancelAll), topic, key, tenant, lanes, CancelAllMost).Scan(&chosen, &events)
		if err == nil && events == 0 {
			err = fmt.Errorf("topic %s: %w", topic, ErrNotScheduled)
		}
		more = chosen == CancelAllMost
		a := audited{topic: topic, detail: map[string]any{"events": events}}
		if key != nil {
			a.detail["key"] = *key
		}
		if tenant != nil { // the column is empty for all tenants, too
			a.tenant, a.detail["tenant"] = *tenant, *tenant
		}
		return a, err
	})
	return events, more, err
}
