package consumer

import (
	"context"
	"errors"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// behind is where to begin when the group has committed an offset: there, or where the handler's database is when that is
// earlier. A database that was restored from a backup has forgotten effects whose offsets the group has committed; reading
// them again costs duplicates, and not reading them would lose them. Usually the account is some seconds behind, which is
// read again too. False: ctx ended.
func (p *partition) behind(ctx context.Context, committed int64) (at int64, ok bool) {
	if p.c.cfg.Behind == BehindIgnore {
		return committed, true
	}
	next, known, ok := p.account(ctx)
	if !ok || !known || next >= committed {
		return committed, ok
	}
	first, _, ok := p.bounds(ctx)
	if !ok {
		return committed, false
	}
	if at = max(next, first); at >= committed {
		return committed, true
	}
	if next < first {
		p.c.cfg.Logger.Warn("the handler's database is behind the group's offset, and some of what is between is no longer in the topic: "+
			"if the database was restored from a backup, those events are lost to it", "topic", p.Topic, "partition", p.ID, "from", next, "to", first)
	}
	p.again = Forgotten{Partition: p.Partition, From: at, To: committed}
	p.c.cfg.Logger.Debug("reading again from where the handler's database is", "topic", p.Topic, "partition", p.ID, "from", at, "committed", committed)
	return at, true
}

// account asks the handler how far its database is until it is told; not ok: ctx ended.
func (p *partition) account(ctx context.Context) (next int64, known, ok bool) {
	wait := newBackOff()
	for ctx.Err() == nil {
		next, known, err := p.c.handler.Progress(ctx, p.Topic, p.ID)
		if err == nil {
			return next, known, true
		}
		p.c.cfg.Logger.Warn("cannot read how far the handler's database is; waiting for it", "topic", p.Topic, "partition", p.ID, "error", err)
		sleep(ctx, wait.NextBackOff())
	}
	return 0, false, false
}

// remembered counts what was applied of the range that is read again, and says at its end when anything was: whoever restored
// a database wants to know what has come back, and whoever did not must know that something is wrong.
func (p *partition) remembered(events []event.Event, outcomes []inbox.Outcome) {
	if p.again.To == 0 {
		return
	}
	end := false
	for i, o := range outcomes {
		if events[i].Position.Offset >= p.again.To {
			end = true
			break
		}
		if o != inbox.Duplicate {
			p.again.Applied++
		}
		end = events[i].Position.Offset == p.again.To-1
	}
	if !end {
		return
	}
	done := p.again
	p.again = Forgotten{}
	if done.Applied == 0 {
		return
	}
	p.c.cfg.Logger.Error("events were applied that the group had committed already: the database was restored from a backup, or the group's offset was moved forward by hand; "+
		"nothing is doubled, see docs/restore.md", "topic", p.Topic, "partition", p.ID, "from", done.From, "to", done.To, "applied", done.Applied)
	if p.c.cfg.Observer.Forgotten != nil {
		p.c.cfg.Observer.Forgotten(done)
	}
}

// isMoved: the handler's database may be behind the group's offset, as it may be at an assignment.
func isMoved(err error) bool {
	_, ok := errors.AsType[*inbox.MovedError](err)
	return ok
}
