package roles

import (
	"context"
	"time"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/internal/verify/history"
	"github.com/effectonce/effectonce/relay"
)

// maintain makes and drops days all the time, as the owners of the tables: of the inbox as its maintainer, of the
// archive as the owner of the outbox. A pass that fails is done again.
func maintain(ctx context.Context, p *process) error {
	owner, err := open(p.OwnerURL, 2)
	if err != nil {
		return err
	}
	defer owner.Close()
	for sleep.For(ctx, time.Second) == nil {
		p.pass(ctx, "inbox", func(ctx context.Context) error {
			info, err := inbox.MaintainAll(ctx, p.db, inbox.Config{Logger: p.log}, false)
			for _, day := range info.Dropped {
				p.note(history.Entry{Kind: history.KindNote, Verb: history.VerbDropped, Detail: day})
			}
			return err
		})
		p.pass(ctx, "archive", func(ctx context.Context) error {
			_, err := relay.MaintainArchive(ctx, owner, "", 2)
			return err
		})
	}
	return nil
}

func (p *process) pass(ctx context.Context, what string, do func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, 2*transactionLimit)
	defer cancel()
	if err := do(ctx); err != nil && ctx.Err() == nil {
		p.log.Info("the maintainer tries again", "what", what, "err", err)
	}
}
