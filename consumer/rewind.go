package consumer

import (
	"context"
	"errors"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// compare returns where to begin when the group has committed an offset: there, or where the handler's database is when
// that is earlier. A database that was restored from a backup has forgotten effects whose offsets the group has
// committed; reading them again costs duplicates, and not reading them would lose them. Usually the progress is some
// seconds behind, and those are read again, too.
func (p *partition) compare(ctx context.Context, committed int64) (at int64) {
	if p.c.cfg.OnBehind == BehindIgnore {
		return committed
	}
	next, known, ok := p.handlerProgress(ctx)
	if !ok || !known || next == committed {
		return committed
	}
	first, end, ok := p.bounds(ctx)
	switch {
	case !ok, committed > end: // the fetch reports it, and asks once more
		return committed
	case end < next:
		// The group has begun in the new log already, and goes on at its offset: nothing to halt for.
		_ = p.reportReplaced(next, first, end, false)
		return committed
	case next > committed:
		p.expectRepeats(max(committed, first), next)
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
	p.reread = ForgottenRange{Partition: p.Partition, From: at, To: committed}
	p.c.cfg.Logger.Debug("reading again from where the handler's database is", "topic", p.Topic, "partition", p.ID,
		"from", at, "committed", committed)
	return at
}

// expectRepeats notes that the handler's database has decided the offsets in [from, next) already.
func (p *partition) expectRepeats(from, next int64) {
	if p.decidedBefore = next; from < next {
		p.c.cfg.Logger.Info("the group is behind what the handler's database has decided: reading that again, to "+
			"drop it",
			"topic", p.Topic, "partition", p.ID, "from", from, "to", next)
	}
}

// countRepeated counts the outcomes of events that the handler's database had decided already. Each should be a
// duplicate; of one that is applied, the database has the progress and has lost the id: its effect is a second one.
func (p *partition) countRepeated(events []event.Event, outcomes []inbox.Outcome) {
	var dropped, applied int
	for i, o := range outcomes {
		if events[i].Position.Offset >= p.decidedBefore {
			break
		}
		switch o {
		case inbox.Duplicate:
			dropped++
		case inbox.Applied, inbox.Skipped:
			if applied++; applied == 1 && !p.loggedDoubled {
				p.loggedDoubled = true
				p.c.cfg.Logger.Error("an event was applied that the handler's database had decided already, for "+
					"its id is not there: rows were deleted from the inbox, or the topic was made again; "+
					"effects may be doubled",
					"topic", p.Topic, "partition", p.ID, "offset", events[i].Position.Offset, "decided_before",
					p.decidedBefore, "event", events[i].ID)
			}
		case inbox.Undecided, inbox.Parked, inbox.Quarantined: // no effect ran
		}
	}
	if dropped+applied > 0 && p.c.cfg.Observer.Repeated != nil {
		p.c.cfg.Observer.Repeated(p.Partition, dropped, applied)
	}
}

// handlerProgress asks the handler how far its database is until it gets an answer; not ok: ctx ended.
func (p *partition) handlerProgress(ctx context.Context) (next int64, known, ok bool) {
	ok = retry(ctx, func() bool {
		var err error
		if next, known, err = p.c.handler.Progress(ctx, p.Topic, p.ID); err != nil {
			p.c.cfg.Logger.Warn("cannot read how far the handler's database is; waiting for it", "topic", p.Topic,
				"partition", p.ID, "error", err)
		}
		return err == nil
	})
	return next, known, ok
}

// countReread counts what was applied of the range that is read again, and logs at its end when anything was: after a
// restore people want to know what has come back; without one, something is wrong.
func (p *partition) countReread(events []event.Event, outcomes []inbox.Outcome) {
	if p.reread.To == 0 {
		return
	}
	end := false
	for i, o := range outcomes {
		if events[i].Position.Offset >= p.reread.To {
			end = true
			break
		}
		if o != inbox.Duplicate {
			p.reread.Applied++
		}
		end = events[i].Position.Offset == p.reread.To-1
	}
	if !end {
		return
	}
	done := p.reread
	p.reread = ForgottenRange{}
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
