package roles

import (
	"context"
	"time"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/verify/history"
)

// maintain creates and drops daily partitions every second: the inbox's as its maintainer, the archive's as the owner
// of the outbox. It retries a failed pass.
func maintain(ctx context.Context, p *process) error {
	owner, err := open(p.OwnerURL, 2)
	if err != nil {
		return err
	}
	defer owner.Close()
	box, err := relay.Open(owner, "")
	if err != nil {
		return err
	}
	for sleep.For(ctx, time.Second) == nil {
		p.pass(ctx, "inbox", func(ctx context.Context) error {
			info, err := inbox.MaintainAll(ctx, p.db, inbox.MaintainConfig{Logger: p.log})
			for _, day := range info.Dropped {
				p.record(history.Entry{Kind: history.KindNote, Verb: history.VerbDropped, Detail: day})
			}
			return err
		})
		p.pass(ctx, "archive", func(ctx context.Context) error {
			_, err := box.MaintainArchive(ctx, 2)
			return err
		})
	}
	return nil
}

func (p *process) pass(ctx context.Context, what string, do func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, 2*transactionLimit)
	defer cancel()
	if err := do(ctx); err != nil && ctx.Err() == nil {
		p.log.Info("maintenance failed; retrying", "what", what, "error", err)
	}
}
