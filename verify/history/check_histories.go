package history

import (
	"cmp"
	"strings"

	"github.com/google/uuid"
)

// readHistories reads all histories once.
func (r *run) readHistories() {
	taken := map[laneFence]string{}
	for i := range r.in.Histories {
		p := &r.in.Histories[i]
		r.counts.Processes++
		if p.Torn {
			r.counts.Torn++
		}
		for j := range p.Entries {
			e := &p.Entries[j]
			switch e.Kind {
			case KindAppend:
				r.mark(e.Events, seenAppend)
			case KindAppended:
				r.appended(p, e)
			case KindPublish:
				r.publish(e)
			case KindPublished:
				r.published(p, e)
			case KindLaneTaken:
				r.laneTaken(taken, p, e)
			case KindHandled:
				r.handled(p, e)
			case KindEffect:
				r.counts.EffectRuns += len(e.IDs)
			case KindOperate:
				r.operated(e)
			case KindFault:
				r.counts.Faults++
			case KindNote:
				if e.Verb == VerbBelowFloor {
					r.found.add(BelowFloor, nil, "%s met an event of lane %d below its floor", e.Process, e.Lane)
				}
			case KindAudit:
				r.audit(p, e)
			}
		}
	}
}

func (r *run) mark(events []Event, as seen) {
	for i := range events {
		if _, s, ok := r.event(events[i].ID); ok {
			s.seen |= as
		}
	}
}

// begun returns the entry that e ends, or nil if the history lacks it.
func begun(p *Process, e *Entry) *Entry {
	if e.Op < 1 || e.Op >= e.N {
		return nil
	}
	return &p.Entries[e.Op-1]
}

// appended compares the outcome that a producer got with the database.
func (r *run) appended(p *Process, e *Entry) {
	begin := begun(p, e)
	if begin == nil {
		return
	}
	switch e.Outcome {
	case OK:
		r.mark(begin.Events, seenOK)
		for i := range begin.Events {
			if _, ok := r.at[begin.Events[i].ID]; !ok {
				ev := &begin.Events[i]
				r.found.add(OKAppendLost, one(ev.ID), "%s was told that %s (key %q, version %d) is committed; there "+
					"is no business row", e.Process, ev.ID, ev.Key, ev.Version)
			}
		}
	case Failed:
		r.counts.RolledBack += len(begin.Events)
		r.mark(begin.Events, seenFailed)
	}
}

// checkAppends checks that producers have recorded all committed events, and their outcomes.
func (r *run) checkAppends() {
	produced := false
	for i := range r.in.Histories {
		p := &r.in.Histories[i]
		open := map[int64]*Entry{}
		for j := range p.Entries {
			e := &p.Entries[j]
			switch e.Kind {
			case KindAppend:
				produced, open[e.N] = true, e
			case KindAppended:
				if e.Outcome != Unknown {
					delete(open, e.Op)
				}
			}
		}
		for _, e := range open { // no outcome, or an unknown one
			r.counts.Unknown += len(e.Events)
			for i := range e.Events {
				if _, ok := r.at[e.Events[i].ID]; ok {
					r.counts.UnknownThere++
				}
			}
		}
	}
	for id, i := range r.at {
		s := r.events[i].seen
		if s&seenFailed != 0 && s&seenOK == 0 && !r.again(id) {
			r.found.add(FailedCommitted, one(id), "%s is committed; its producer was told for certain that it is not",
				id)
		}
		if produced && s&seenAppend == 0 {
			r.found.add(Unrecorded, one(id), "%s is committed; no producer wrote down that it would", id)
		}
	}
}

// again reports whether an event was appended more often than it failed, so that another attempt may have committed it.
func (r *run) again(id uuid.UUID) bool {
	tries, failures := 0, 0
	for i := range r.in.Histories {
		p := &r.in.Histories[i]
		for j := range p.Entries {
			e := &p.Entries[j]
			switch {
			case e.Kind == KindAppend && holds(e.Events, id):
				tries++
			case e.Kind == KindAppended && e.Outcome == Failed:
				if b := begun(p, e); b != nil && holds(b.Events, id) {
					failures++
				}
			}
		}
	}
	return tries > failures
}

func holds(events []Event, id uuid.UUID) bool {
	for i := range events {
		if events[i].ID == id {
			return true
		}
	}
	return false
}

// publish records the events that a relay sends, and checks that no two events have the same number.
func (r *run) publish(e *Entry) {
	r.relayed = true
	r.counts.Attempts += len(e.Sent)
	epoch := ""
	for _, s := range e.Sent {
		epoch = cmp.Or(s.Epoch, epoch)
		if _, state, ok := r.event(s.ID); ok {
			state.seen |= seenSent
		}
		n := r.number(epoch, s.Lane, s.Seq)
		if other, ok := r.given[n]; ok && other.id != s.ID {
			r.found.add(NumberReused, []uuid.UUID{other.id, s.ID}, "%s sends %s under number %d of lane %d, "+
				"which %s had", e.Process, s.ID, s.Seq, s.Lane, other.id)
		}
		r.given[n] = use{id: s.ID}
	}
}

func (r *run) published(p *Process, e *Entry) {
	begin := begun(p, e)
	if begin == nil {
		return
	}
	refused := make(map[uuid.UUID]bool, len(e.Refused))
	for _, v := range e.Refused {
		refused[v.ID] = true
		if !v.Certain {
			r.counts.UnknownSends++
			continue
		}
		r.counts.RefusedSends++
		if _, s, ok := r.event(v.ID); ok {
			s.seen |= seenRefused
		}
	}
	for _, s := range begin.Sent {
		if _, state, ok := r.event(s.ID); ok && !refused[s.ID] {
			state.seen |= seenAcked
		}
	}
}

type laneFence struct {
	lane  int16
	fence int64
}

func (r *run) laneTaken(taken map[laneFence]string, p *Process, e *Entry) {
	r.counts.LanesTaken++
	at := laneFence{e.Lane, e.Fence}
	if other, ok := taken[at]; ok && other != p.File {
		r.found.add(FenceShared, nil, "%s takes lane %d under fence %d, as %s did", p.File, e.Lane, e.Fence, other)
	}
	taken[at] = p.File
}

// handled collects the events that an inbox has decided, which it must still know.
func (r *run) handled(p *Process, e *Entry) {
	begin := begun(p, e)
	if begin == nil {
		return
	}
	for i, o := range e.Outcomes {
		if i < len(begin.IDs) && o != "undecided" {
			r.decided[begin.Consumer] = append(r.decided[begin.Consumer], begin.IDs[i])
		}
	}
}

// operated records events that an operator discarded: they may appear once, late (P10).
func (r *run) operated(e *Entry) {
	if strings.Contains(e.Verb, "discard") {
		for _, id := range e.IDs {
			r.maybePublished[id] = true
		}
	}
}

func (r *run) audit(p *Process, e *Entry) {
	if e.Audit == nil {
		return
	}
	for _, a := range e.Audit.Partitions {
		r.counts.Audits += int(a.Checked)
		for _, u := range a.Undecided {
			r.found.add(OffsetPassedWork, one(u.ID), "%s: the group of %s had committed offset %d of %s/%d when %s "+
				"at %d was not decided",
				p.Entries[0].Process, e.Audit.Consumer, a.Committed, a.Topic, a.Partition, u.ID, u.Offset)
		}
	}
}
