package main

import (
	"context"

	"github.com/effectonce/effectonce/inbox"
)

type inboxRetireCommand struct {
	changingInbox
}

// Help is the longer text of --help.
func (*inboxRetireCommand) Help() string {
	return `Days of the inbox are kept for the longest window of all consumers. Stop the workers of one that is gone, and run this: its window does
not count any more. What it has parked stays. When it starts again under this name, it knows what it applied in the days that are left,
and quarantines what is older.`
}

func (c *inboxRetireCommand) run(ctx context.Context, p *program) error {
	if err := c.needed(); err != nil {
		return err
	}
	return c.change(ctx, p, func(ctx context.Context, o *inbox.Operator) error {
		if err := o.Retire(ctx, c.Reason); err != nil {
			return err
		}
		return c.say(p)(map[string]any{"consumer": c.Consumer}, "Consumer %s is retired. Days are kept for the windows of the others.", c.Consumer)
	})
}
