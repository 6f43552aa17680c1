package history

import "time"

func inboxMutations() map[string]mutation {
	return map[string]mutation{
		"effect and row dropped": {func(x *mutant) bool {
			f := *x.applied()
			x.dropRow(f.Consumer, f.ID)
			x.dropEffect(f.Consumer, f.ID)
			x.Dump.Ledger = without(x.Dump.Ledger, func(b Booking) bool {
				return b.Consumer == f.Consumer &&
					b.ID == f.ID
			})
			return true
		}, []Name{Unapplied, OffsetPassedWork, DedupForgotten}, nil},
		"effect twice": {func(x *mutant) bool {
			x.Dump.Effects = append(x.Dump.Effects, *x.applied())
			return true
		}, []Name{SecondEffect}, nil},
		"business key twice": {func(x *mutant) bool {
			f := x.applied()
			g := pick(x, x.Dump.Effects, func(g *Effect) bool { return g.Consumer == f.Consumer && g.ID != f.ID })
			if g == nil {
				return false
			}
			// Two ids of one business key, both committed as such.
			x.event(g.ID).Business = f.Business
			for i := range x.Dump.Effects {
				if h := &x.Dump.Effects[i]; h.ID == x.event(g.ID).ID {
					h.Business = f.Business
				}
			}
			return true
		}, []Name{SecondEffect}, []Name{EffectMissing}},
		"effect dropped": {func(x *mutant) bool {
			f := *x.applied()
			x.dropEffect(f.Consumer, f.ID)
			return true
		}, []Name{EffectMissing}, nil},
		"row dropped": {func(x *mutant) bool {
			f := x.applied()
			x.dropRow(f.Consumer, f.ID)
			return true
		}, []Name{EffectWithoutRow, DedupForgotten, OffsetPassedWork}, nil},
		"effect of a parked event": {func(x *mutant) bool {
			p := pick(x, x.Dump.InboxParked, nil)
			if p == nil {
				return false
			}
			e := x.event(p.ID)
			x.Dump.Effects = append(x.Dump.Effects, Effect{
				Consumer: p.Consumer, ID: p.ID, Version: e.Version,
				Business: e.Business,
			})
			return true
		}, []Name{EffectWithoutRow}, []Name{AppliedOutOfOrder}},
		"effect of nobody": {func(x *mutant) bool {
			x.Dump.Effects = append(x.Dump.Effects, Effect{Consumer: consumers[0], ID: other()})
			return true
		}, []Name{PhantomEffect}, nil},
		"effect altered": {func(x *mutant) bool {
			x.applied().Business += "x"
			return true
		}, []Name{Altered, EffectMissing}, nil},
		"effect of a discarded event": {func(x *mutant) bool {
			r := pick(x, x.Dump.Inbox, func(r *InboxRow) bool { return r.Status == "discarded" })
			if r == nil {
				return false
			}
			e := x.event(r.ID)
			x.Dump.Effects = append(x.Dump.Effects, Effect{
				Consumer: r.Consumer, ID: r.ID, Version: e.Version,
				Business: e.Business,
			})
			return true
		}, []Name{EffectOfDiscarded}, []Name{AppliedOutOfOrder}},
		"effect of a skipped event": {func(x *mutant) bool {
			f := x.applied()
			x.event(f.ID).Skipped = true
			return true
		}, []Name{EffectOfSkipped}, nil},
		"done and parked": {func(x *mutant) bool {
			f := x.applied()
			x.Dump.InboxParked = append(x.Dump.InboxParked, InboxParked{Consumer: f.Consumer, ID: f.ID, Kind: "behind"})
			return true
		}, []Name{ParkedAndDecided}, nil},
		"innocent parked": {func(x *mutant) bool {
			p := pick(x, x.Dump.InboxParked, func(p *InboxParked) bool { return p.Kind == "failed" })
			if p == nil {
				return false
			}
			x.event(p.ID).Poison = ""
			return true
		}, []Name{InnocentParked}, nil},
		"inbox parked without a reason": {func(x *mutant) bool {
			p := pick(x, x.Dump.InboxParked, func(p *InboxParked) bool { return p.Kind == "failed" })
			if p == nil {
				return false
			}
			p.Code = ""
			return true
		}, []Name{ParkedWithoutReason}, nil},
		"effects of a key swapped": {func(x *mutant) bool {
			a, b := x.effects(func(*Effect) bool { return true })
			if a == nil {
				return false
			}
			*a, *b = *b, *a
			return true
		}, []Name{AppliedOutOfOrder}, nil},
		"a day dropped inside the window": {func(x *mutant) bool {
			x.Dump.DroppedBefore = now.AddDate(0, 0, -3).Truncate(24 * time.Hour)
			return true
		}, []Name{DroppedInsideWindow}, nil},
	}
}

func restMutations() map[string]mutation {
	rest := func(name Name, change func(d *Dump)) mutation {
		return mutation{func(x *mutant) bool {
			change(&x.Dump)
			return true
		}, []Name{name}, nil}
	}
	return map[string]mutation{
		"offset behind the log": rest(Lag, func(d *Dump) { d.Offsets[0].Committed-- }),
		"nothing committed":     rest(Lag, func(d *Dump) { d.Offsets[0].Committed = -1 }),
		"offset beyond the log": rest(OffsetBeyondLog, func(d *Dump) { d.Offsets[0].Committed++ }),
		"row in the outbox": rest(Undrained,
			func(d *Dump) { d.Rows = append(d.Rows, Row{Place: PlaceOutbox, ID: d.Business[0].ID}) }),
		"row held": rest(StillHeld,
			func(d *Dump) { d.Rows = append(d.Rows, Row{Place: PlaceHeld, ID: d.Business[0].ID}) }),
		"open claim":    rest(OpenClaim, func(d *Dump) { d.Claims = []Claim{{1, 5, 2}} }),
		"overdue lease": rest(OverdueLease, func(d *Dump) { d.Lanes[1].Overdue = true }),
		"release without an end": rest(StuckKey,
			func(d *Dump) { d.Keys = append(d.Keys, ParkedKey{Key: "k", Releasing: true, Waiting: 3}) }),
		"empty mark": rest(StuckKey,
			func(d *Dump) { d.InboxKeys = append(d.InboxKeys, InboxKey{Key: "k"}) }),
		"event being released": rest(StuckKey, func(d *Dump) {
			d.InboxParked = append(d.InboxParked, InboxParked{
				ID: other(), Kind: "quarantined", Code: "old",
				Alone: true, Releasing: true,
			})
		}),
		"halted": rest(HaltedPartition, func(d *Dump) { d.Halted = []Halted{{Topic: topics[0]}} }),
		"audit found work": {func(x *mutant) bool {
			e := pick(x, x.Histories[3].Entries, nil)
			part := &e.Audit.Partitions[0]
			part.Undecided = append(part.Undecided, AuditRecord{part.Committed - 1, x.Dump.Records[0].ID})
			return true
		}, []Name{OffsetPassedWork}, nil},
	}
}
