package history

import "github.com/google/uuid"

// checkOffsets compares the committed offsets of groups with the decided events.
func (r *run) checkOffsets() {
	known := r.knownIDs()
	type at struct {
		topic     string
		partition int32
	}
	groups, ends := map[at][]Offset{}, map[at]End{}
	for _, o := range r.dump.Offsets {
		groups[at{o.Topic, o.Partition}] = append(groups[at{o.Topic, o.Partition}], o)
	}
	for _, e := range r.dump.Ends {
		ends[at{e.Topic, e.Partition}] = e
		for _, o := range groups[at{e.Topic, e.Partition}] {
			switch {
			case o.Committed > e.End:
				r.found.add(OffsetBeyondLog, nil, "%s has committed offset %d of %s/%d, which ends at %d", o.Consumer,
					o.Committed, o.Topic, o.Partition, e.End)
			case o.Committed < e.End && e.First < e.End && !r.in.Allowed.Unfinished:
				r.found.add(Lag, nil, "%s has committed offset %d of %s/%d, which ends at %d", o.Consumer, o.Committed,
					o.Topic, o.Partition, e.End)
			}
		}
	}
	for i := range r.dump.Records {
		rec := &r.dump.Records[i]
		for _, o := range groups[at{rec.Topic, rec.Partition}] {
			if rec.Offset >= o.Committed || r.dropped(rec.ID) {
				continue
			}
			if !known[o.Consumer][rec.ID] {
				r.found.add(OffsetPassedWork, one(rec.ID), "%s has committed offset %d of %s/%d; %s at %d is not "+
					"decided", o.Consumer, o.Committed, rec.Topic, rec.Partition, rec.ID, rec.Offset)
			}
		}
	}
	r.auditOffsets()
}

// knownIDs returns the ids that each consumer has decided, those without a committed event included.
func (r *run) knownIDs() map[string]map[uuid.UUID]bool {
	known := map[string]map[uuid.UUID]bool{}
	for _, c := range r.dump.Consumers {
		known[c.Name] = make(map[uuid.UUID]bool, len(r.dump.Inbox)/len(r.dump.Consumers))
	}
	put := func(consumer string, id uuid.UUID) {
		if ids := known[consumer]; ids != nil {
			ids[id] = true
		}
	}
	for i := range r.dump.Inbox {
		put(r.dump.Inbox[i].Consumer, r.dump.Inbox[i].ID)
	}
	for i := range r.dump.InboxParked {
		put(r.dump.InboxParked[i].Consumer, r.dump.InboxParked[i].ID)
	}
	return known
}

// auditOffsets counts how often a group's offset went back between audits, as it does when a consumer finds its
// database behind. One process audits, so its entries are in order.
func (r *run) auditOffsets() {
	type at struct {
		file, consumer, topic string
		partition             int32
	}
	last := map[at]int64{}
	for i := range r.in.Histories {
		p := &r.in.Histories[i]
		for j := range p.Entries {
			a := p.Entries[j].Audit
			if a == nil {
				continue
			}
			for _, part := range a.Partitions {
				where := at{p.File, a.Consumer, part.Topic, part.Partition}
				if part.Committed < last[where] {
					r.counts.OffsetsBack++
				}
				last[where] = part.Committed
			}
		}
	}
}

// checkRest checks that the system is drained.
func (r *run) checkRest() {
	for i := range r.dump.Rows {
		row := &r.dump.Rows[i]
		switch {
		case row.Place == PlaceOutbox:
			r.found.add(Undrained, one(row.ID), "%s is still in the outbox (number %d of lane %d)", row.ID, row.Number,
				row.Lane)
		case row.Place == PlaceHeld:
			r.found.add(StillHeld, one(row.ID), "%s is still held (number %d of lane %d)", row.ID, row.Number, row.Lane)
		case row.Place == PlaceParked && row.Releasing:
			r.found.add(StuckKey, one(row.ID), "the release of %s does not end", row.ID)
		}
	}
	for _, c := range r.dump.Claims {
		r.found.add(OpenClaim, nil, "the journal of lane %d has an open entry of %d events from number %d on", c.Lane,
			c.Events, c.First)
	}
	for _, l := range r.dump.Lanes {
		if l.Overdue {
			r.found.add(OverdueLease, nil, "lane %d has an owner (fence %d) whose lease has run out", l.Lane, l.Fence)
		}
	}
	for _, k := range r.dump.Keys {
		r.stuck("the outbox", k.Topic, k.Key, k.Releasing, k.Waiting)
	}
	for _, k := range r.dump.InboxKeys {
		r.stuck(k.Consumer, k.Topic, k.Key, k.Releasing, k.Waiting)
	}
	for i := range r.dump.InboxParked {
		if p := &r.dump.InboxParked[i]; p.Alone && p.Releasing {
			r.found.add(StuckKey, one(p.ID), "%s does not end the release of %s", p.Consumer, p.ID)
		}
	}
	for _, h := range r.dump.Halted {
		r.found.add(HaltedPartition, nil, "%s waits at %s/%d offset %d: %s", h.Consumer, h.Topic, h.Partition, h.Offset,
			h.Error)
	}
}

func (r *run) stuck(where, topic, key string, releasing bool, waiting int64) {
	switch {
	case releasing:
		r.found.add(StuckKey, nil, "%s does not end the release of key %q of %s: %d wait", where, key, topic, waiting)
	case waiting == 0:
		r.found.add(StuckKey, nil, "%s has a mark on key %q of %s, and nothing waits there: what comes will", where,
			key, topic)
	}
}
