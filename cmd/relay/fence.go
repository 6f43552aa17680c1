package main

import (
	"context"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/relay/operator"
)

type fenceCommand struct {
	database
	auditFlags
	jsonFlag
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

// Help is the longer text of --help.
func (*fenceCommand) Help() string {
	return `Run it after the outbox's database was restored from a backup, before the relays start; docs/restore.md has all of it. What
was published since the backup has numbers that the restored database would give out again. This begins a new numbering, takes
the lanes from their owners, and advances the sequence of ids if it is behind its table.`
}

func (c *fenceCommand) run(ctx context.Context, p *program) error {
	var f operator.FenceResult
	err := c.change(ctx, p, c.Timeout, c.auditFlags, func(ctx context.Context, o *operator.Operator) (err error) {
		f, err = o.Fence(ctx, c.Reason)
		return err
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.stdout, f)
	}
	fmt.Fprintf(p.stdout, "A new numbering has begun: %s (before: %s). Every lane is free; running relays take them "+
		"again.\n", f.Epoch, f.Before)
	if f.Forwarded {
		fmt.Fprintf(p.stdout, "The sequence of ids was behind its table, at %d, and was advanced to %d.\n",
			f.LastID, f.KnownID)
	}
	fmt.Fprintf(p.stdout,
		`%d events wait, %d of them were being published. After a restore many of them are in Kafka already: they are published again
with the same ids. Workers with an inbox drop the repeats, and nothing is to be done. Consumers without deduplication see them
twice. Consumers in watermark mode halt at the first event of the new numbering until an operator accepts it for them (relay
inbox accept), because they cannot tell repeated events from new ones.
`, f.Waiting, f.Claimed)
	return nil
}
