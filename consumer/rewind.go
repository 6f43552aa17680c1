package consumer

import (
	"context"
	"errors"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/sleep"
)

// compare is where to begin when the group has committed an offset: there, or where the handler's database is when that
// is earlier. A database that was restored from a backup has forgotten effects whose offsets the group has committed;
// reading them again costs duplicates, and not reading them would lose them. Usually the account is some seconds
// behind, which is read again too.
func (p *partition) compare(ctx context.Context, committed int64) (at int64) {
	if p.c.cfg.OnBehind == BehindIgnore {
		return committed
	}
	next, known, ok := p.account(ctx)
	if !ok || !known || next == committed {
		return committed
	}
	first, end, ok := p.bounds(ctx)
	switch {
	case !ok, committed > end: // fetching says so, and asks once more
		return committed
	case end < next:
		// The group has begun in the new log already. There is nothing to halt for: its offset is the place to go on
		// at.
		_ = p.replaced(next, first, end, false)
		return committed
	case next > committed:
		p.repeats(max(committed, first), next)
		return committed
	}
	if at = max(next, first); at >= committed {
		return committed
	}
	if next < first {
		p.c.cfg.Logger.Warn("the handler's database is behind the group's offset, and some of what is between is no "+
			"longer in the topic: "+
			"if the database was restored from a backup, those events are lost to it", "topic", p.Topic, "partition",
			p.ID, "from", next, "to", first)
	}
	p.again = ForgottenRange{Partition: p.Partition, From: at, To: committed}
	p.c.cfg.Logger.Debug("reading again from where the handler's database is", "topic", p.Topic, "partition", p.ID,
		"from", at, "committed", committed)
	return at
}

// repeats notes that what stands in [from, next) was decided already, by the handler's database.
func (p *partition) repeats(from, next int64) {
	if p.known = next; from < next {
		p.c.cfg.Logger.Info("the group is behind what the handler's database has decided: reading that again, to "+
			"drop it",
			"topic", p.Topic, "partition", p.ID, "from", from, "to", next)
	}
}

// repeated counts what came of events that the handler's database had decided already. Each is a duplicate; of one that
// is not, the database has the account and has lost the id, which makes its effect a second one.
func (p *partition) repeated(events []event.Event, outcomes []inbox.Outcome) {
	var dropped, applied int
	for i, o := range outcomes {
		if events[i].Position.Offset >= p.known {
			break
		}
		switch o {
		case inbox.Duplicate:
			dropped++
		case inbox.Applied, inbox.Skipped:
			if applied++; applied == 1 && !p.saidAbsent {
				p.saidAbsent = true
				p.c.cfg.Logger.Error("an event was applied that the handler's database had decided already, for "+
					"its id is "+
					"not there: rows were deleted from the inbox, or the topic was made again; effects may be doubled",
					"topic", p.Topic, "partition", p.ID, "offset", events[i].Position.Offset, "decided_before", p.known,
					"event", events[i].ID)
			}
		case inbox.Undecided, inbox.Parked, inbox.Quarantined: // no effect ran
		}
	}
	if dropped+applied > 0 && p.c.cfg.Observer.Repeated != nil {
		p.c.cfg.Observer.Repeated(p.Partition, dropped, applied)
	}
}

// account asks the handler how far its database is until it is told; not ok: ctx ended.
func (p *partition) account(ctx context.Context) (next int64, known, ok bool) {
	wait := newBackOff()
	for ctx.Err() == nil {
		next, known, err := p.c.handler.Progress(ctx, p.Topic, p.ID)
		if err == nil {
			return next, known, true
		}
		p.c.cfg.Logger.Warn("cannot read how far the handler's database is; waiting for it", "topic", p.Topic,
			"partition", p.ID, "error", err)
		_ = sleep.For(ctx, wait.NextBackOff())
	}
	return 0, false, false
}

// remembered counts what was applied of the range that is read again, and says at its end when anything was: whoever
// restored a database wants to know what has come back, and whoever did not must know that something is wrong.
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
	p.again = ForgottenRange{}
	if done.Applied == 0 {
		return
	}
	p.c.cfg.Logger.Error("events were applied that the group had committed already: the database was restored from a "+
		"backup, or the group's offset was moved forward by hand; "+
		"nothing is doubled, see docs/restore.md", "topic", p.Topic, "partition", p.ID, "from", done.From, "to",
		done.To, "applied", done.Applied)
	if p.c.cfg.Observer.Forgotten != nil {
		p.c.cfg.Observer.Forgotten(done)
	}
}

// isMoved: the handler's database may be behind the group's offset, as it may be at an assignment.
func isMoved(err error) bool {
	_, ok := errors.AsType[*inbox.MovedError](err)
	return ok
}
