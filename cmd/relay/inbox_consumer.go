package main

import (
	"context"

	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/service"
)

type inboxRetireCommand struct {
	inboxChange
}

// Help is the longer text of --help.
func (*inboxRetireCommand) Help() string {
	return `Days of the inbox are kept for the longest window of all consumers. Stop the workers of one that is gone, and run this: its window does
not count any more. What it has parked stays. When it starts again under this name, it knows what it applied in the days that are left,
and quarantines what is older.`
}

func (c *inboxRetireCommand) run(ctx context.Context, p *program) error {
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		if err := o.Retire(ctx, c.Reason); err != nil {
			return err
		}
		return c.report(p, map[string]any{"consumer": c.Consumer}, "Consumer %s is retired. Days are kept for the windows of the others.", c.Consumer)
	})
}

type inboxSkipCommand struct {
	inboxChange
	Topic     string `shown:"(required)" help:"Topic of the partition."`
	Partition int32  `default:"-1" shown:"(required)" help:"Its number."`
	To        int64  `default:"-1" shown:"(required)" help:"The first offset that is handled again: behind the record that halts it."`
}

// Help is the longer text of --help.
func (*inboxSkipCommand) Help() string {
	return `For a record that halts its partition and can be neither decided nor parked. Its effect never runs. Stop the consumer's workers, run this,
set the group to the same offset, and start the workers:
  kafka-consumer-groups.sh --group G --topic T:P --reset-offsets --to-offset N --execute
A group that is moved without this goes back to where the inbox is.`
}

func (c *inboxSkipCommand) run(ctx context.Context, p *program) error {
	if c.Topic == "" || c.Partition < 0 || c.To < 0 {
		return service.Usage("--topic, --partition and --to say what is skipped; relay inbox consumers shows where each partition is")
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		from, err := o.SkipTo(ctx, c.Topic, c.Partition, c.To, c.Reason)
		if err != nil {
			return err
		}
		return c.report(p, map[string]any{"topic": c.Topic, "partition": c.Partition, "from": from, "to": c.To},
			"The account of %s/%d has moved from %d to %d. Set the group to offset %d now, before its workers start.", c.Topic, c.Partition, from, c.To, c.To)
	})
}
