package consumer

import (
	"context"
	"errors"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// compare returns the offset to begin at if the group has committed one: that offset, or the progress of the handler's
// database if it is lower. A database that was restored from a backup lacks effects of offsets that the group has
// committed. Reading them again costs duplicates; skipping them would lose them. Usually the progress is only some
// seconds old, and those events are read again, too. A database without any progress has decided nothing since the
// group began.
func (p *partition) compare(ctx context.Context, committed int64) (at int64) {
	if p.c.cfg.OnBehind == BehindIgnore {
		return committed
	}
	next, known, ok := p.handlerProgress(ctx)
	switch {
	case !ok:
		return committed
	case !known && next == inbox.NoProgress:
		p.begins(-1)
		return committed
	case !known:
		next = p.began // the database is from before the group began, or is another one
	}
	if next == committed {
		return committed
	}
	first, end, ok := p.bounds(ctx)
	switch {
	case !ok, committed > end: // the fetch reports it, after it has read the bounds again
		return committed
	case end < next:
		// The group has begun in the new log already and continues at its offset. There is no reason to halt.
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
		p.c.cfg.Logger.Warn("the handler's database is behind the group's offset, and the topic no longer has some "+
			"of the events between them: if the database was restored from a backup, it has lost these events",
			"topic", p.Topic, "partition", p.ID, "from", next, "to", first)
	}
	p.reread = ForgottenRange{Partition: p.Partition, From: at, To: committed}
	if known {
		p.c.cfg.Logger.Debug("reading again from where the handler's database is", "topic", p.Topic, "partition", p.ID,
			"from", at, "committed", committed)
	} else {
		p.c.cfg.Logger.Warn("the handler's database knows nothing of this partition: reading again from where the "+
			"group began", "topic", p.Topic, "partition", p.ID, "from", at, "committed", committed)
	}
	return at
}

// expectRepeats records that the handler's database has already decided the offsets in [from, next).
func (p *partition) expectRepeats(from, next int64) {
	if p.decidedBefore = next; from < next {
		p.c.cfg.Logger.Info("the group is behind what the handler's database has decided: reading that again, to "+
			"drop it",
			"topic", p.Topic, "partition", p.ID, "from", from, "to", next)
	}
}

// countRepeated counts the outcomes of events that the handler's database had already decided. Each should be a
// duplicate. If one is applied, the database has the progress but has lost the id, and the effect has run a second
// time.
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

// handlerProgress asks for the progress of the handler's database until it gets an answer. ok is false if ctx ended.
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

// countReread counts the events of the reread range that were applied, and logs the number at the end of the range
// unless it is zero. After a restore, it shows which effects came back. Without a restore, it indicates an error.
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

// isMoved reports whether the handler's database may be behind the group's offset again, as at an assignment.
func isMoved(err error) bool {
	_, ok := errors.AsType[*inbox.MovedError](err)
	return ok
}
