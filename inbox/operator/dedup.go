package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/audit"
)

// AcceptNumbering accepts an incarnation of an outbox, and all earlier ones, for a consumer that uses
// [inbox.ByWatermark]. epoch names it as events do (ce_epoch). First check which events were published around the
// change: events that are published again under new numbers are applied again. Halted partitions resume by themselves;
// AcceptNumbering returns how many. It fails if no partition has halted for the incarnation.
func (o *Operator) AcceptNumbering(ctx context.Context, epoch, reason string) (partitions int64, err error) {
	outbox, incarnation, ok := sql.Epoch(epoch)
	if !ok {
		return 0, fmt.Errorf("inbox: accept numbering: %q is not the ce_epoch of an event, such as "+
			"5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.1", epoch)
	}
	err = o.ofOne(ctx, audit.AcceptNumbering, reason, func(c change) error {
		accepted, err := c.exec(ctx, sql.Accept, o.consumer, outbox.String(), incarnation, inbox.CodeNewNumbering)
		if err != nil {
			return err
		}
		if accepted == 0 {
			return fmt.Errorf("no partition of consumer %q waits for numbering %s, see relay inbox consumers: %w",
				o.consumer, epoch, ErrNotHalted)
		}
		if partitions, err = c.exec(ctx, sql.AcceptResumes, o.consumer, inbox.CodeNewNumbering, ""); err != nil {
			return err
		}
		return c.audit(ctx, "", "", "", map[string]any{"epoch": epoch, "partitions": partitions})
	})
	return partitions, err
}

// MoveTo returns the strategy for a name that [Operator.Move] takes: "watermark" or "offset".
func MoveTo(name string) (to inbox.Dedup, err error) {
	for _, to := range []inbox.Dedup{inbox.ByWatermark, inbox.ByOffset} {
		if name == to.String() {
			return to, nil
		}
	}
	return to, fmt.Errorf("inbox: move consumer: to %q: want watermark or offset", name)
}

// Move switches a consumer from [inbox.ByID] to another strategy. Stop its workers first, then start them with the new
// Config.Dedup: workers that still use ids are refused from then on. Until the returned time, one window later, the
// consumer also checks ids: events that it applied before are duplicates, and events older than its window are
// quarantined as before. No other move is possible, neither back to ids nor between the other two, because they record
// no ids. Move fails if the progress advanced within the last minute, or a program reported within the last two that it
// runs the consumer.
func (o *Operator) Move(ctx context.Context, to inbox.Dedup, reason string) (idsUntil time.Time, err error) {
	if to != inbox.ByWatermark && to != inbox.ByOffset {
		return idsUntil, fmt.Errorf("inbox: move consumer: to %s: want watermark or offset; a consumer that went by "+
			"numbers has no ids to go back to: give it another name", to)
	}
	err = o.ofOne(ctx, audit.MoveConsumer, reason, func(c change) error {
		if _, err := c.exec(ctx, sql.LockConsumers); err != nil {
			return err
		}
		// Only under the lock of the table: its writers would wait for this row, and this for them.
		if _, err := c.lockStopped(ctx); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		err := c.query(ctx, sql.MoveConsumer, o.consumer, to.String()).Scan(&idsUntil)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("consumer %q does not go by ids, or never started: relay inbox consumers lists them",
				o.consumer)
		}
		if err != nil {
			return err
		}
		return c.audit(ctx, "", "", "", map[string]any{"to": to.String(), "ids_until": idsUntil})
	})
	return idsUntil, err
}

// ForgetOffsets makes a consumer that uses [inbox.ByOffset] start the partitions of a topic from scratch, after the
// topic was deleted and created again: all records that the topic now holds are applied. If the topic was not created
// again, records that the group has not committed are applied twice. Halted partitions resume by themselves;
// ForgetOffsets returns how many.
func (o *Operator) ForgetOffsets(ctx context.Context, topic, reason string) (partitions int64, err error) {
	err = o.ofOne(ctx, audit.ForgetOffsets, reason, func(c change) error {
		forgotten, err := c.exec(ctx, sql.ForgetOffsets, o.consumer, topic)
		if err != nil {
			return err
		}
		if forgotten == 0 {
			return fmt.Errorf("consumer %q knows no offsets of topic %q", o.consumer, topic)
		}
		if partitions, err = c.exec(ctx, sql.AcceptResumes, o.consumer, inbox.CodeOffsetsBack, topic); err != nil {
			return err
		}
		return c.audit(ctx, "", topic, "", map[string]any{"partitions": partitions})
	})
	return partitions, err
}

// ofOne is act for an Operator that needs a consumer.
func (o *Operator) ofOne(ctx context.Context, action, reason string, do func(c change) error) error {
	if o.consumer == "" {
		return fmt.Errorf("inbox: %s: %w", action, errNoConsumer)
	}
	return o.act(ctx, action, reason, do)
}
