package history

import "github.com/google/uuid"

// readOutbox records the table of each event in the outbox.
func (r *run) readOutbox() {
	for i := range r.dump.Rows {
		row := &r.dump.Rows[i]
		e, s, ok := r.event(row.ID)
		if !ok {
			r.found.add(PhantomRow, one(row.ID), "%s has %s (number %d of lane %d), which no business row knows",
				row.Place, row.ID, row.Number, row.Lane)
			continue
		}
		switch row.Place {
		case PlaceOutbox:
			s.place |= inOutbox
		case PlaceScheduled:
			s.place |= inScheduled
			r.counts.Scheduled++
		case PlaceHeld:
			s.place |= inHeld
			r.counts.Held++
		case PlaceArchive:
			s.place |= inArchive
		case PlaceParked:
			s.place |= inParked
			r.counts.Parked++
			r.parked(row, e)
		}
	}
	for _, d := range r.dump.Discards {
		if d.ID != uuid.Nil {
			r.maybePublished[d.ID] = true
		}
	}
}

func (r *run) parked(row *Row, e *Event) {
	if row.MaybePublished {
		r.maybePublished[row.ID] = true
	}
	if !row.Refused {
		return // it waits behind a refused one
	}
	if row.Code == "" {
		r.found.add(ParkedWithoutReason, one(row.ID), "%s is parked in the outbox and does not say why", row.ID)
	}
	if e.Poison != "broker" {
		r.found.add(InnocentParked, one(row.ID), "%s is parked in the outbox as %s, and nothing is wrong with it",
			row.ID, row.Code)
	}
}

// checkAccounts checks that each committed event was published, or is in a table or discarded.
func (r *run) checkAccounts() {
	discarded := map[uuid.UUID]bool{}
	keys := map[listKey]int64{}   // remaining discarded events by key
	topics := map[Discard]int64{} // and by topic
	for _, d := range r.dump.Discards {
		switch {
		case d.ID != uuid.Nil:
			discarded[d.ID] = true
		case d.AnyKey:
			topics[Discard{Topic: d.Topic, Scheduled: d.Scheduled}] += d.Events
		default:
			keys[listKey{d.Tenant, d.Topic, d.Key}] += d.Events
		}
	}
	for i := range r.dump.Business {
		e, s := &r.dump.Business[i], &r.events[i]
		if r.at[e.ID] != int32(i) || s.records > 0 {
			continue
		}
		key, whole := listKey{e.Tenant, e.Topic, e.Key}, Discard{Topic: e.Topic, Scheduled: true}
		if !e.Scheduled || topics[whole] == 0 {
			whole.Scheduled = false
		}
		switch {
		case s.place&inArchive != 0 && !r.in.Allowed.Gone[e.Topic]:
			r.found.add(ArchivedUnpublished, one(e.ID), "%s (key %q, version %d) is in the archive and not in Kafka",
				e.ID, e.Key, e.Version)
		case s.place&(inOutbox|inScheduled|inHeld|inParked) != 0 || r.in.Allowed.Gone[e.Topic]:
		case discarded[e.ID]:
			r.counts.Discarded++
		case keys[key] > 0:
			keys[key]--
			r.counts.Discarded++
		case topics[whole] > 0:
			topics[whole]--
			r.counts.Discarded++
		case r.relayed && s.seen&seenSent == 0:
			r.found.add(RetentionUnpublished, one(e.ID), "%s (key %q, version %d) is committed, gone from the "+
				"outbox, and no relay ever handed it over", e.ID, e.Key, e.Version)
		default:
			r.found.add(Lost, one(e.ID), "%s (key %q, version %d) is committed, and neither in the outbox nor in Kafka",
				e.ID, e.Key, e.Version)
		}
		if s.seen&seenAcked != 0 && !r.in.Allowed.Gone[e.Topic] {
			r.found.add(AckedRecordMissing, one(e.ID), "a relay was told that %s is written to %s, and it is not there",
				e.ID, e.Topic)
		}
	}
}

// checkFences compares the lanes with the fences under which they were taken.
func (r *run) checkFences() {
	highest := map[int16]int64{}
	for i := range r.in.Histories {
		for j := range r.in.Histories[i].Entries {
			if e := &r.in.Histories[i].Entries[j]; e.Kind == KindLaneTaken {
				highest[e.Lane] = max(highest[e.Lane], e.Fence)
			}
		}
	}
	for _, l := range r.dump.Lanes {
		if l.Fence < highest[l.Lane] {
			r.found.add(FenceWentBack, nil, "lane %d has fence %d; it was taken under %d", l.Lane, l.Fence,
				highest[l.Lane])
		}
	}
}
