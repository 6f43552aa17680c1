package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/internal/sql"
)

// AcceptNumbering lets the partitions of a consumer that goes [inbox.ByWatermark] go on with a new incarnation of an
// outbox, named as events carry it (ce_epoch), and with those before it. Look first what was published around the rise:
// what comes again under new numbers is applied again. Halted partitions go on by themselves; it returns how many.
func (o *Operator) AcceptNumbering(ctx context.Context, epoch, reason string) (partitions int64, err error) {
	outbox, incarnation, ok := sql.Epoch(epoch)
	if !ok {
		return 0, fmt.Errorf("inbox: accept numbering: %q is not the ce_epoch of an event, such as "+
			"5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.1", epoch)
	}
	err = o.ofOne(ctx, "accept numbering", reason, func(c change) error {
		accepted, err := c.exec(ctx, sql.Accept, o.consumer, outbox.String(), incarnation)
		if err != nil {
			return err
		}
		if accepted == 0 {
			return fmt.Errorf("consumer %q goes by no numbers of outboxes, or never started: relay inbox consumers "+
				"lists them", o.consumer)
		}
		if partitions, err = c.exec(ctx, sql.AcceptResumes, o.consumer, inbox.CodeNewNumbering, ""); err != nil {
			return err
		}
		return c.audit(ctx, "", "", "", map[string]any{"epoch": epoch, "partitions": partitions})
	})
	return partitions, err
}

// MoveTo is the strategy of a name, of those that [Operator.Move] takes: "watermark" or "offset".
func MoveTo(name string) (to inbox.Dedup, err error) {
	for _, to := range []inbox.Dedup{inbox.ByWatermark, inbox.ByOffset} {
		if name == to.String() {
			return to, nil
		}
	}
	return to, fmt.Errorf("inbox: move consumer: to %q: want watermark or offset", name)
}

// Move has a consumer that goes [inbox.ByID] go by another strategy from now on. Stop its workers first, and start them
// afterwards with that Config.Dedup: those that still go by ids are refused from this moment on. Until the time it
// returns, a window later, the consumer looks at ids as well: what it has applied before is no new event, and what is
// older than its window is quarantined as before. There is no way back, and none between the others, for they leave no
// record of an event by which ids could tell it.
func (o *Operator) Move(ctx context.Context, to inbox.Dedup, reason string) (idsUntil time.Time, err error) {
	if to != inbox.ByWatermark && to != inbox.ByOffset {
		return idsUntil, fmt.Errorf("inbox: move consumer: to %s: want watermark or offset; a consumer that went by "+
			"numbers has no ids to go back to: give it another name", to)
	}
	err = o.ofOne(ctx, "move consumer", reason, func(c change) error {
		if _, err := c.exec(ctx, sql.LockConsumers); err != nil {
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

// ForgetOffsets lets a consumer that goes [inbox.ByOffset] begin the partitions of a topic anew, after the topic was
// deleted and made again: whatever it holds now is applied. Of a topic that was not made again, what its group has not
// committed is applied twice. Halted partitions go on by themselves; it returns how many.
func (o *Operator) ForgetOffsets(ctx context.Context, topic, reason string) (partitions int64, err error) {
	err = o.ofOne(ctx, "forget offsets", reason, func(c change) error {
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

// ofOne is act, for an operator of one consumer.
func (o *Operator) ofOne(ctx context.Context, action, reason string, do func(c change) error) error {
	if o.consumer == "" {
		return fmt.Errorf("inbox: %s: %w", action, errNoConsumer)
	}
	return o.act(ctx, action, reason, do)
}
