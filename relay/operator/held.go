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

// HeldEvent is an event that waits for its partition, or for its topic as a whole.
type HeldEvent struct {
	MessageID uuid.UUID `json:"message_id"`
	Tenant    string    `json:"tenant"`
	Topic     string    `json:"topic"`
	Key       string    `json:"key"`
	Type      string    `json:"type"`
	Partition int32     `json:"partition"` // -1: the topic as a whole
	// MaybePublished: an attempt may have reached the broker, or is in flight.
	MaybePublished bool      `json:"maybe_published"`
	Bytes          int       `json:"bytes"` // of the payload; -1: a tombstone
	CreatedAt      time.Time `json:"created_at"`
	HeldAt         time.Time `json:"held_at"`
}

// ErrNotHeld: the events that an Operator should discard are not held (any more).
var ErrNotHeld = errors.New("not held: it was published or discarded meanwhile, or never was; list what is held")

// DiscardHeldMost limits the events that one DiscardHeld deletes: the relays wait for its locks.
const DiscardHeldMost = 10_000

// HeldEvents lists held events of a topic, at most limit; those of each partition and lane are in the order of their
// publishing.
func (o *Operator) HeldEvents(ctx context.Context, topic string, limit int) ([]HeldEvent, error) {
	return audit.List(ctx, o.person, "listing held events", pgx.RowToStructByPos[HeldEvent], o.q(sql.HeldEvents), topic,
		limit)
}

// DiscardHeld deletes held events of a topic for good: the one with that message id, or with the zero id all of them,
// at most DiscardHeldMost in a call. Events behind them keep their order. It fails with ErrNotHeld.
func (o *Operator) DiscardHeld(ctx context.Context, topic string, messageID uuid.UUID, reason string) (
	d admin.DiscardResult, err error,
) {
	var only *uuid.UUID
	if messageID != uuid.Nil {
		only = &messageID
	}
	err = o.act(ctx, audit.DiscardHeld, reason, func(tx pgx.Tx) (audited, error) {
		if _, err := tx.Exec(ctx, o.q(sql.LockTimeout), lockTimeout); err != nil {
			return audited{}, err
		}
		lanes, err := audit.Read(ctx, tx, pgx.RowTo[int16], o.q(sql.LockHeld), topic, only)
		if err != nil {
			return audited{}, fmt.Errorf("locking the lanes: %w", err)
		}
		err = tx.QueryRow(ctx, o.q(sql.DiscardHeld), topic, only, lanes, DiscardHeldMost).
			Scan(&d.Events, &d.MaybePublished)
		if err == nil && d.Events == 0 {
			err = fmt.Errorf("topic %s: %w", topic, ErrNotHeld)
		}
		return audited{messageID: only, topic: topic, detail: map[string]any{
			"events":     d.Events,
			"may_appear": d.MaybePublished,
		}}, err
	})
	return d, err
}
