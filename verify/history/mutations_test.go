package history

import (
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"
)

// mutation is one change to a correct run.
type mutation struct {
	apply   func(*mutant) bool // false: the run has nothing to change
	found   []Name             // the check must find all of these
	allowed []Name             // it may find these too
}

type mutant struct {
	*Input
	*rand.Rand
}

// pick draws one element that fits; nil: none does.
func pick[T any](x *mutant, from []T, fits func(*T) bool) *T {
	var all []*T
	for i := range from {
		if fits == nil || fits(&from[i]) {
			all = append(all, &from[i])
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[x.IntN(len(all))]
}

func (x *mutant) event(id uuid.UUID) *Event {
	i := slices.IndexFunc(x.Dump.Business, func(e Event) bool { return e.ID == id })
	if i < 0 {
		return nil
	}
	return &x.Dump.Business[i]
}

// applied picks an effect.
func (x *mutant) applied() *Effect { return pick(x, x.Dump.Effects, nil) }

func without[T any](from []T, drop func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(from), drop)
}

func (x *mutant) dropRow(consumer string, id uuid.UUID) {
	x.Dump.Inbox = without(x.Dump.Inbox, func(r InboxRow) bool { return r.Consumer == consumer && r.ID == id })
}

func (x *mutant) dropEffect(consumer string, id uuid.UUID) {
	x.Dump.Effects = without(x.Dump.Effects, func(f Effect) bool { return f.Consumer == consumer && f.ID == id })
}

// pair finds two records of first occurrence in one partition, the first before the second.
func (x *mutant) pair(fits func(a, b *Event, ra, rb *Record) bool) (a, b *Record) {
	first := map[uuid.UUID]bool{}
	var firsts []*Record
	for i := range x.Dump.Records {
		if r := &x.Dump.Records[i]; !first[r.ID] {
			first[r.ID] = true
			firsts = append(firsts, r)
		}
	}
	var found [][2]*Record
	for i, a := range firsts {
		for _, b := range firsts[i+1:] {
			if a.Topic == b.Topic && a.Partition == b.Partition && fits(x.event(a.ID), x.event(b.ID), a, b) {
				found = append(found, [2]*Record{a, b})
				break
			}
		}
	}
	if p := pick(x, found, nil); p != nil {
		return p[0], p[1]
	}
	return nil, nil
}

// swap exchanges the places of two records; their repetitions stay where they are.
func swap(a, b *Record) {
	*a, *b = *b, *a
	a.Offset, b.Offset = b.Offset, a.Offset
}

// effects are two that follow each other of one key, nil: there are none; the first of them fits.
func (x *mutant) effects(fits func(first *Effect) bool) (first, second *Effect) {
	for i := range x.Dump.Effects {
		a := &x.Dump.Effects[i]
		for j := i + 1; j < len(x.Dump.Effects); j++ {
			b := &x.Dump.Effects[j]
			ea, eb := x.event(a.ID), x.event(b.ID)
			if a.Consumer == b.Consumer && plain(ea) && plain(eb) && ea.Tenant == eb.Tenant && ea.Key == eb.Key &&
				ea.Topic == eb.Topic {
				if fits(a) {
					return a, b
				}
				break
			}
		}
	}
	return nil, nil
}

// sends are the entries by which relays handed an event over.
func (x *mutant) sends(id uuid.UUID) (all []Entry) {
	for i := range x.Histories {
		for _, e := range x.Histories[i].Entries {
			if e.Kind == KindPublish && slices.ContainsFunc(e.Sent, func(s Sent) bool { return s.ID == id }) {
				all = append(all, e)
			}
		}
	}
	return all
}

func plain(e *Event) bool { return e.Key != "" && !e.Scheduled }

func (x *mutant) add(file int, e Entry) {
	p := &x.Histories[file]
	e.N, e.Process = int64(len(p.Entries))+1, p.File
	p.Entries = append(p.Entries, e)
}

func mutations() map[string]mutation {
	all := map[string]mutation{}
	for _, some := range []map[string]mutation{outboxMutations(), logMutations(), inboxMutations(), restMutations()} {
		for name, m := range some {
			all[name] = m
		}
	}
	return all
}

func outboxMutations() map[string]mutation {
	return map[string]mutation{
		"records dropped": {func(x *mutant) bool {
			r := pick(x, x.Dump.Records, nil)
			if r == nil {
				return false
			}
			id := r.ID
			x.Dump.Records = without(x.Dump.Records, func(r Record) bool { return r.ID == id })
			return true
		}, []Name{Lost, AckedRecordMissing}, nil},
		"records dropped, relays wrote nothing": {func(x *mutant) bool {
			r := pick(x, x.Dump.Records, nil)
			if r == nil {
				return false
			}
			id := r.ID
			x.Dump.Records = without(x.Dump.Records, func(r Record) bool { return r.ID == id })
			x.Histories[1].Entries = nil
			return true
		}, []Name{Lost}, nil},
		"parked event vanishes": {func(x *mutant) bool {
			r := pick(x, x.Dump.Rows, func(r *Row) bool { return !r.Refused })
			if r == nil {
				return false
			}
			id := r.ID
			x.Dump.Rows = without(x.Dump.Rows, func(r Row) bool { return r.ID == id })
			return true
		}, []Name{RetentionUnpublished}, nil},
		"refused event vanishes": {func(x *mutant) bool {
			r := pick(x, x.Dump.Rows, func(r *Row) bool { return r.Refused })
			if r == nil {
				return false
			}
			id := r.ID
			x.Dump.Rows = without(x.Dump.Rows, func(r Row) bool { return r.ID == id })
			return true
		}, []Name{Lost}, nil},
		"business row dropped": {func(x *mutant) bool {
			f := x.applied()
			if f == nil {
				return false
			}
			id := f.ID
			x.Dump.Business = without(x.Dump.Business, func(e Event) bool { return e.ID == id })
			return true
		}, []Name{Phantom, PhantomEffect}, []Name{OKAppendLost}},
		"acknowledged append dropped": {func(x *mutant) bool {
			end := pick(x, x.Histories[0].Entries, func(e *Entry) bool {
				return e.Kind == KindAppended &&
					e.Outcome == OK
			})
			if end == nil {
				return false
			}
			id := x.Histories[0].Entries[end.Op-1].Events[0].ID
			x.Dump.Business = without(x.Dump.Business, func(e Event) bool { return e.ID == id })
			return true
		}, []Name{OKAppendLost}, []Name{Phantom, PhantomEffect, PhantomRow}},
		"rolled back append is there": {func(x *mutant) bool {
			end := pick(x, x.Histories[0].Entries, func(e *Entry) bool {
				return e.Kind == KindAppended &&
					e.Outcome == Failed
			})
			if end == nil {
				return false
			}
			x.Dump.Business = append(x.Dump.Business, x.Histories[0].Entries[end.Op-1].Events[0])
			return true
		}, []Name{FailedCommitted, RetentionUnpublished}, nil},
		"append unrecorded": {func(x *mutant) bool {
			begin := pick(x, x.Histories[0].Entries, func(e *Entry) bool {
				return e.Kind == KindAppend &&
					x.event(e.Events[0].ID) != nil
			})
			if begin == nil {
				return false
			}
			begin.Events = nil
			return true
		}, []Name{Unrecorded}, nil},
		"row of nobody": {func(x *mutant) bool {
			x.Dump.Rows = append(x.Dump.Rows, Row{Place: PlaceArchive, ID: other()})
			return true
		}, []Name{PhantomRow}, nil},
		"archived, not published": {func(x *mutant) bool {
			r := pick(x, x.Dump.Records, nil)
			if r == nil {
				return false
			}
			id := r.ID
			x.Dump.Rows = append(x.Dump.Rows, Row{Place: PlaceArchive, ID: id})
			x.Dump.Records = without(x.Dump.Records, func(r Record) bool { return r.ID == id })
			return true
		}, []Name{ArchivedUnpublished, AckedRecordMissing}, nil},
		"parked without a reason": {func(x *mutant) bool {
			r := pick(x, x.Dump.Rows, func(r *Row) bool { return r.Refused })
			if r == nil {
				return false
			}
			r.Code = ""
			return true
		}, []Name{ParkedWithoutReason}, nil},
		"innocent refused": {func(x *mutant) bool {
			r := pick(x, x.Dump.Rows, func(r *Row) bool { return r.Refused })
			if r == nil {
				return false
			}
			x.event(r.ID).Poison = ""
			return true
		}, []Name{InnocentParked}, nil},
	}
}

func logMutations() map[string]mutation {
	return map[string]mutation{
		"record of nobody": {func(x *mutant) bool {
			at := x.Dump.Ends[0]
			x.Dump.Records = append(x.Dump.Records, Record{
				Topic: at.Topic, Partition: at.Partition, Offset: at.End,
				ID: other(), Epoch: epoch,
			})
			return true
		}, []Name{Phantom}, nil},
		"record altered": {func(x *mutant) bool {
			r := pick(x, x.Dump.Records, nil)
			switch x.IntN(4) {
			case 0:
				r.Key += "x"
			case 1:
				r.Version += 1000
			case 2:
				r.Digest = 2
			case 3:
				r.Tenant = "another"
			}
			return true
		}, []Name{Altered}, nil},
		"two of a key swapped": {func(x *mutant) bool {
			a, b := x.pair(func(a, b *Event, _, _ *Record) bool { return plain(a) && plain(b) && a.Key == b.Key })
			if a == nil {
				return false
			}
			// Every repetition goes, so that nothing but these two says in which order they came.
			ids := []uuid.UUID{a.ID, b.ID}
			swap(a, b)
			seen := map[uuid.UUID]bool{}
			x.Dump.Records = without(x.Dump.Records, func(r Record) bool {
				again := seen[r.ID] && slices.Contains(ids, r.ID)
				seen[r.ID] = true
				return again
			})
			return true
		}, []Name{Inversion, SequenceWentBack}, nil},
		"two of a lane swapped": {func(x *mutant) bool {
			a, b := x.pair(func(a, b *Event, ra, rb *Record) bool { return a.Key != b.Key && ra.Lane == rb.Lane })
			if a == nil {
				return false
			}
			ids := []uuid.UUID{a.ID, b.ID}
			swap(a, b)
			seen := map[uuid.UUID]bool{}
			x.Dump.Records = without(x.Dump.Records, func(r Record) bool {
				again := seen[r.ID] && slices.Contains(ids, r.ID)
				seen[r.ID] = true
				return again
			})
			return true
		}, []Name{SequenceWentBack}, []Name{Inversion}},
		"key in two partitions": {func(x *mutant) bool {
			a, b := x.pair(func(a, b *Event, _, _ *Record) bool { return plain(a) && plain(b) && a.Key == b.Key })
			if a == nil {
				return false
			}
			b.Partition += partitions
			slices.SortStableFunc(x.Dump.Records, func(a, b Record) int { return int(a.Partition - b.Partition) })
			return true
		}, []Name{KeyMoved}, []Name{SequenceWentBack, Inversion}},
		"number used twice": {func(x *mutant) bool {
			a, b := x.pair(func(a, b *Event, ra, rb *Record) bool { return ra.Lane == rb.Lane })
			if a == nil {
				return false
			}
			b.Seq = a.Seq
			return true
		}, []Name{NumberReused}, []Name{SequenceWentBack, Renumbered}},
		"renumbered": {func(x *mutant) bool {
			r := pick(x, x.Dump.Records, nil)
			if r == nil {
				return false
			}
			again := *r
			for i := range x.Dump.Records {
				if o := &x.Dump.Records[i]; o.Lane == r.Lane {
					again.Seq = max(again.Seq, o.Seq+1000)
				}
				if o := &x.Dump.Records[i]; o.Topic == r.Topic && o.Partition == r.Partition {
					again.Offset = max(again.Offset, o.Offset+1)
				}
			}
			x.Dump.Records = append(x.Dump.Records, again)
			return true
		}, []Name{Renumbered}, nil},
		"number handed out twice": {func(x *mutant) bool {
			p := pick(x, x.Histories[1].Entries, func(e *Entry) bool { return len(e.Sent) > 1 })
			if p == nil {
				return false
			}
			p.Sent[1].Seq = p.Sent[0].Seq
			return true
		}, []Name{NumberReused}, nil},
		"old incarnation": {func(x *mutant) bool {
			a, _ := x.pair(func(_, _ *Event, ra, rb *Record) bool { return ra.Lane == rb.Lane })
			if a == nil {
				return false
			}
			a.Epoch = epoch[:len(epoch)-1] + "2"
			return true
		}, []Name{StaleIncarnation}, nil},
		"fence shared": {func(x *mutant) bool {
			x.Histories = append(x.Histories, Process{File: "relay-2"})
			x.add(len(x.Histories)-1, Entry{Kind: KindLaneTaken, Lane: 2, Fence: 4})
			return true
		}, []Name{FenceShared}, nil},
		"fence went back": {func(x *mutant) bool {
			x.Dump.Lanes[3].Fence--
			return true
		}, []Name{FenceWentBack}, nil},
		"below the floor": {func(x *mutant) bool {
			x.add(1, Entry{Kind: KindNote, Verb: VerbBelowFloor, Lane: 1})
			return true
		}, []Name{BelowFloor}, nil},
	}
}
