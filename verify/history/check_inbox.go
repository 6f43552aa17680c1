package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"
)

// inboxState is a consumer's state of a committed event.
type inboxState struct {
	status  inboxStatus
	effects int16
}

type inboxStatus uint8

const (
	done inboxStatus = 1 << iota
	discarded
	open        // it failed, or waits behind a failed one
	quarantined // it may have been applied
)

// consumers returns each consumer's state of each committed event.
func (r *run) consumers() map[string][]inboxState {
	all := map[string][]inboxState{}
	for _, c := range r.dump.Consumers {
		all[c.Name] = make([]inboxState, len(r.events))
	}
	for i := range r.dump.Inbox {
		row := &r.dump.Inbox[i]
		if s := r.inboxState(all, row.Consumer, row.ID); s != nil {
			if row.Status == "discarded" {
				s.status |= discarded
				r.counts.InboxDropped++
			} else {
				s.status |= done
			}
		}
	}
	for i := range r.dump.InboxParked {
		p := &r.dump.InboxParked[i]
		r.counts.InboxParked++
		if p.Kind == "quarantined" {
			r.counts.Quarantined++
		}
		if p.Kind != "behind" && p.Code == "" {
			r.found.add(ParkedWithoutReason, one(p.ID), "%s is %s at %s and does not say why", p.ID, p.Kind, p.Consumer)
		}
		if e, _, ok := r.event(p.ID); ok && p.Kind == "failed" && e.Poison != "effect" && p.Code != "maybe_published" {
			r.found.add(InnocentParked, one(p.ID), "%s is parked at %s as %s, and nothing is wrong with it", p.ID,
				p.Consumer, p.Code)
		}
		if s := r.inboxState(all, p.Consumer, p.ID); s != nil {
			if p.Kind == "quarantined" {
				s.status |= quarantined
			} else {
				s.status |= open
			}
		}
	}
	return all
}

func (r *run) inboxState(all map[string][]inboxState, consumer string, id uuid.UUID) *inboxState {
	i, ok := r.at[id]
	if states := all[consumer]; ok && states != nil {
		return &states[i]
	}
	return nil
}

// checkConsumers checks inboxes and effects.
func (r *run) checkConsumers() {
	all := r.consumers()
	booked := r.effects(all)
	for _, c := range r.dump.Consumers {
		states := all[c.Name]
		for i := range r.dump.Business {
			e := &r.dump.Business[i]
			if r.at[e.ID] == int32(i) && slices.Contains(c.Topics, e.Topic) {
				r.applied(c.Name, e, &r.events[i], states[i], booked)
			}
		}
		for _, id := range r.decided[c.Name] {
			if s := r.inboxState(all, c.Name, id); s != nil && s.status == 0 && !r.dropped(id) {
				r.found.add(DedupForgotten, one(id), "%s had decided %s, and knows nothing of it now", c.Name, id)
			}
		}
		today := r.dump.Now.UTC().Truncate(24 * time.Hour)
		if first := today.AddDate(0, 0, -c.WindowDays); c.WindowDays > 0 && r.dump.DroppedBefore.After(first) {
			r.found.add(DroppedInsideWindow, nil, "days before %s are dropped; the window of %s goes back to %s",
				r.dump.DroppedBefore.Format(time.DateOnly), c.Name, first.Format(time.DateOnly))
		}
	}
	for _, b := range r.dump.Ledger {
		if _, ok := booked[booking{b.Consumer, b.Business}]; !ok {
			r.found.add(EffectMissing, one(b.ID), "the ledger of %s has %q, and its effect is not there", b.Consumer,
				b.Business)
		}
	}
	r.counts.LedgerRows = len(r.dump.Ledger)
}

// applied checks one event at one consumer of its topic.
func (r *run) applied(consumer string, e *Event, s *eventState, at inboxState, booked map[booking]uuid.UUID) {
	forgotten := r.dropped(e.ID)
	say := func(name Name, format string) { r.found.add(name, one(e.ID), format, e.ID, consumer) }
	if at.status == 0 && !forgotten {
		switch {
		case at.effects > 0:
			say(EffectWithoutRow, "%s has an effect at %s, and no inbox row")
		case s.records > 0 && !r.in.Allowed.Unfinished:
			say(Unapplied, "%s is in Kafka, and neither applied nor parked at %s")
		}
		return
	}
	switch {
	case at.status&discarded != 0:
		if at.effects > 0 {
			say(EffectOfDiscarded, "%s was discarded, and has an effect at %s")
		}
	case at.status&open != 0 && at.status&done != 0:
		say(ParkedAndDecided, "%s is done and waits at %s")
	case at.status&open != 0 && at.effects > 0:
		say(EffectWithoutRow, "%s waits, and has its effect already, at %s")
	case e.Skipped && at.effects > 0:
		say(EffectOfSkipped, "%s was to be skipped, and has an effect at %s")
	case at.status&done != 0 && !e.Skipped && at.effects == 0:
		// Another event may have had the effect of the business key.
		if _, ok := booked[booking{consumer, e.Business}]; !ok || e.Business == "" {
			say(EffectMissing, "%s is done at %s, and has no effect")
		}
	case forgotten && at.status == 0 && at.effects == 0 && !e.Skipped && s.records > 0:
		say(Unapplied, "%s is in Kafka, its day is dropped, and it was neither applied nor parked at %s")
	}
}

// dropped reports whether the inbox has dropped the day of an id.
func (r *run) dropped(id uuid.UUID) bool {
	if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
		return false
	}
	sec, nsec := id.Time().UnixTime()
	return time.Unix(sec, nsec).UTC().Before(r.dump.DroppedBefore)
}

// renumbered returns the events that are in Kafka under more than one numbering. For topics whose records may be gone
// it uses the relays' histories.
func (r *run) renumbered() map[uuid.UUID]bool {
	first, again := map[uuid.UUID]string{}, map[uuid.UUID]bool{}
	for i := range r.dump.Records {
		rec := &r.dump.Records[i]
		if epoch, seen := first[rec.ID]; !seen {
			first[rec.ID] = rec.Epoch
		} else if epoch != rec.Epoch {
			again[rec.ID] = true
		}
	}
	for i := range r.in.Histories {
		for j := range r.in.Histories[i].Entries {
			epoch := ""
			for _, s := range r.in.Histories[i].Entries[j].Sent {
				epoch = cmp.Or(s.Epoch, epoch)
				if e, _, ok := r.event(s.ID); !ok || !r.in.Allowed.Gone[e.Topic] {
					continue
				}
				if before, seen := first[s.ID]; !seen {
					first[s.ID] = epoch
				} else if before != epoch {
					again[s.ID] = true
				}
			}
		}
	}
	return again
}

func (r *run) byNumber(consumer string) bool {
	return slices.ContainsFunc(r.dump.Consumers, func(c Consumer) bool { return c.Name == consumer && c.ByNumber })
}

type booking struct{ consumer, business string }

// effects counts effects, and checks their order.
func (r *run) effects(all map[string][]inboxState) map[booking]uuid.UUID {
	type last struct {
		version   int64
		partition int32
		id        uuid.UUID
	}
	renumbered := r.renumbered()
	booked := make(map[booking]uuid.UUID, len(r.dump.Effects))
	lists := map[string][]last{}
	for name := range all {
		lists[name] = make([]last, len(r.lists))
	}
	r.counts.Effects = len(r.dump.Effects)
	for i := range r.dump.Effects {
		f := &r.dump.Effects[i]
		e, s, ok := r.event(f.ID)
		if !ok {
			r.found.add(PhantomEffect, one(f.ID), "%s has an effect of %s, which was never committed", f.Consumer, f.ID)
			booked[booking{f.Consumer, f.Business}] = f.ID
			continue
		}
		if f.Version != e.Version || f.Business != e.Business {
			r.found.add(Altered, one(f.ID), "%s was appended as version %d of %q; its effect at %s is of version "+
				"%d of %q", f.ID, e.Version, e.Business, f.Consumer, f.Version, f.Business)
		}
		state := r.inboxState(all, f.Consumer, f.ID)
		if state == nil {
			continue
		}
		state.effects++
		key := booking{f.Consumer, f.Business}
		if state.effects > 1 && renumbered[f.ID] && r.byNumber(f.Consumer) {
			continue // an operator accepted the new numbering
		}
		if state.effects > 1 {
			r.found.add(SecondEffect, one(f.ID), "%s had effect %d at %s", f.ID, state.effects, f.Consumer)
			continue
		}
		if other, again := booked[key]; again && f.Business != "" {
			r.found.add(SecondEffect, []uuid.UUID{other, f.ID}, "%q had its effect at %s under %s and under %s",
				f.Business, f.Consumer, other, f.ID)
		}
		booked[key] = f.ID
		if s.list < 0 || !r.ordered(e) {
			continue
		}
		before := &lists[f.Consumer][s.list]
		moved := r.in.Allowed.Grown[e.Topic] && before.partition != f.Partition
		if e.Version <= before.version && !moved {
			r.found.add(AppliedOutOfOrder, []uuid.UUID{before.id, f.ID}, "%s applied version %d of key %q after "+
				"version %d", f.Consumer, e.Version, e.Key, before.version)
			continue
		}
		*before = last{e.Version, f.Partition, f.ID}
	}
	return booked
}
