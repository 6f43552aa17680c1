package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/sleep"
)

// begins records where the consumer begins the log: before the first event of it is handled, in the handler's database,
// and with the group's offset. It returns false if the partition cannot begin.
func (p *partition) begins(ctx context.Context, b *beginning) bool {
	log := p.c.cfg.Logger.With("topic", p.Topic, "partition", p.ID, "at", b.at, "why", b.why)
	switch {
	case b.lost != nil: // it is said already
	case b.reread > 0 && b.why == whyNoRow:
		log.Warn("reading again from where the group began", "committed", b.reread)
	case b.reread > 0 && b.byHand:
		log.Warn("the group's offset was set ahead of where the handler's database is: reading from there all the "+
			"same; `relay inbox skip` moves the database, if these records are to be skipped", "committed", b.reread)
	case b.reread > 0:
		log.Debug("reading again from where the handler's database is", "committed", b.reread)
	case b.known > 0:
		log.Info("the group lags behind what the handler's database has decided: reading that again, to drop it",
			"decided", b.known)
	case b.why == whyGone, b.why == whyBeyond:
		log.Warn("beginning where the handler's database is")
	case b.why != whyGroup && b.why != whyLags:
		log.Info("beginning a partition")
	}
	p.setPosition(b.at)
	p.reread, p.decidedBefore = ForgottenRange{}, b.known
	if b.reread > 0 {
		p.reread = ForgottenRange{Partition: p.Partition, From: b.at, To: b.reread}
	}
	p.group = b.group
	if (b.write || b.sure) && !p.record(ctx, b) {
		return false
	}
	if b.commit {
		p.commits.decided(p, b.at, p.group.metadata())
	}
	return true
}

// record writes the beginning into the handler's database, until it succeeds. It returns false if ctx ended, or if the
// database is another one now.
func (p *partition) record(ctx context.Context, b *beginning) bool {
	changed := false
	begins := inbox.Beginning{
		Log: b.group.log, Offset: b.group.began, Partitions: int32(b.group.seen), Reason: b.why, Cut: b.isCut,
	}
	if b.lost != nil {
		begins.Lost = b.lostWhy
		if n := b.lost.To - b.lost.From; n > 0 {
			begins.Lost += fmt.Sprintf(" (%d, from offset %d on)", n, b.lost.From)
		}
	} else if b.sure {
		begins.Decided = b.known
	}
	ok := retry(ctx, func() bool {
		err := p.c.handler.Begin(ctx, p.Topic, p.ID, b.next, begins)
		if changed = isDatabaseChanged(err); changed {
			p.databaseChanged(err)
			return true
		}
		if err != nil && ctx.Err() == nil {
			p.c.cfg.Logger.Warn("cannot write where the partition begins; waiting for the handler's database", "topic",
				p.Topic, "partition", p.ID, "error", err)
		}
		return err == nil
	})
	return ok && !changed
}

// quietEvery is how many times Config.ResumeEvery pass until all partitions ask the handler again.
const quietEvery = 4

// watchHandler asks the handler, until ctx ends, whether its database has forgotten what was decided: without an event
// nothing else does.
func (s *session) watchHandler(ctx context.Context) {
	for sleep.For(ctx, quietEvery*s.c.cfg.ResumeEvery) == nil {
		for _, p := range s.all() {
			if s.lostWhy() != nil {
				break // the group is joined again already
			}
			// An outage is reported by who needs the database.
			if _, err := s.c.handler.Resumed(ctx, p.Topic, p.ID); isDatabaseChanged(err) {
				p.databaseChanged(err)
			}
		}
	}
}

// databaseChanged joins the group again, to begin where the handler's database is now.
func (p *partition) databaseChanged(err error) {
	p.c.cfg.Logger.Warn("the handler's database has changed: joining the group again, to begin where it is", "topic",
		p.Topic, "partition", p.ID, "error", err)
	p.commits.fenced(err)
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
		p.c.cfg.Observer.Repeated(RepeatedInfo{Partition: p.Partition, Dropped: dropped, Applied: applied})
	}
}

// handlerProgress asks for the progress of the handler's database until it gets an answer. ok is false if ctx ended.
func (p *partition) handlerProgress(ctx context.Context) (at inbox.Progress, ok bool) {
	ok = retry(ctx, func() bool {
		var err error
		if at, err = p.c.handler.Progress(ctx, p.Topic, p.ID); err != nil {
			p.c.cfg.Logger.Warn("cannot read how far the handler's database is; waiting for it", "topic", p.Topic,
				"partition", p.ID, "error", err)
		}
		return err == nil
	})
	return at, ok
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
		"backup, or the group's offset was set forward by hand; "+
		"nothing is doubled, see docs/restore.md", "topic", p.Topic, "partition", p.ID, "from", done.From, "to",
		done.To, "applied", done.Applied)
	if p.c.cfg.Observer.Forgotten != nil {
		p.c.cfg.Observer.Forgotten(done)
	}
}

// isDatabaseChanged reports whether the handler's database may lag behind the group's offset again, as at an
// assignment.
func isDatabaseChanged(err error) bool {
	_, ok := errors.AsType[*inbox.DatabaseChangedError](err)
	return ok
}
