package main

import (
	"context"
	"time"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/service"
)

type inboxAcceptCommand struct {
	inboxChange
	Epoch string `shown:"(required)" help:"The numbering, as events carry it (ce_epoch): relay inbox consumers shows it in the reason of the halt."`
}

// Help is the longer text of --help.
func (*inboxAcceptCommand) Help() string {
	return `An outbox that was fenced, restored or failed over counts anew. A consumer that goes by watermarks cannot tell what is published again
under new numbers from what is new, so each of its partitions halts at the first event of the new numbering. Compare its last
effects with the producers' tables. What comes again and has an effect is applied again after this, unless a business
key stands behind it.`
}

func (c *inboxAcceptCommand) run(ctx context.Context, p *program) error {
	if c.Epoch == "" {
		return service.Usage("--epoch is missing: relay inbox consumers shows which numbering a partition waits for")
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		n, err := o.AcceptNumbering(ctx, c.Epoch, c.Reason)
		if err != nil {
			return err
		}
		return c.report(p, map[string]any{"epoch": c.Epoch, "partitions": n}, "Numbering %s is accepted. %d halted partitions go on within seconds.", c.Epoch, n)
	})
}

type inboxMoveCommand struct {
	inboxChange
	To string `shown:"(required)" enum:",watermark,offset" default:"" help:"watermark or offset."`
}

// Help is the longer text of --help.
func (*inboxMoveCommand) Help() string {
	return `Stop the consumer's workers, run this, and start them with the new setting (inbox.Config.Dedup). For a window from now on the
consumer looks at ids as well, so that what it has applied stays applied. There is no way back: a consumer that goes by numbers
leaves no ids.`
}

func (c *inboxMoveCommand) run(ctx context.Context, p *program) error {
	to := map[string]inbox.Dedup{"watermark": inbox.ByWatermark, "offset": inbox.ByOffset}[c.To]
	if to == inbox.ByID {
		return service.Usage("--to is missing: watermark or offset")
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		until, err := o.Move(ctx, to, c.Reason)
		if err != nil {
			return err
		}
		return c.report(p, map[string]any{"to": c.To, "ids_until": until}, "Consumer %s goes by %s. Start its workers with that setting; until %s they look at ids as well.",
			c.Consumer, c.To, until.UTC().Format(time.DateOnly))
	})
}

type inboxForgetCommand struct {
	inboxChange
	Topic string `shown:"(required)" help:"The topic that was deleted and made again."`
}

// Help is the longer text of --help.
func (*inboxForgetCommand) Help() string {
	return `A topic that is made again begins its offsets again, and a consumer that goes by offsets halts there. After this it applies whatever the
topic holds, from where its group is. For a topic that was not made again that would apply events twice.`
}

func (c *inboxForgetCommand) run(ctx context.Context, p *program) error {
	if c.Topic == "" {
		return service.Usage("--topic is missing")
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		n, err := o.ForgetOffsets(ctx, c.Topic, c.Reason)
		if err != nil {
			return err
		}
		return c.report(p, map[string]any{"topic": c.Topic, "partitions": n}, "The offsets of %s are forgotten. %d halted partitions go on within seconds.", c.Topic, n)
	})
}
