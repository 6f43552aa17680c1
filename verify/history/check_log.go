package history

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// checkLog checks that each record belongs to an event, and that first occurrences of a key are in order.
func (r *run) checkLog() {
	type last struct {
		version   int64
		partition int32
		id        uuid.UUID
		seen      bool
	}
	lists := make([]last, len(r.lists))
	r.counts.Records = len(r.dump.Records)
	for i := range r.dump.Records {
		rec := &r.dump.Records[i]
		e, s, ok := r.event(rec.ID)
		if !ok {
			if rec.Epoch != "" || !r.in.Allowed.Foreign {
				r.found.add(Phantom, one(rec.ID), "%s at %s/%d offset %d was never committed", rec.ID, rec.Topic,
					rec.Partition, rec.Offset)
			}
			continue
		}
		s.records++
		if !r.mended[rec.ID] {
			r.compare(rec, e)
		}
		if s.first >= 0 {
			r.counts.Duplicates++
			first := &r.dump.Records[s.first]
			if rec.Lane != first.Lane || rec.Seq != first.Seq || rec.Epoch != first.Epoch {
				if !s.several {
					r.counts.FirstAgain++
				}
				s.several = true
				if rec.Epoch == first.Epoch && rec.Epoch != "" && !rec.MaybePublished && !first.MaybePublished {
					r.found.add(Renumbered, one(rec.ID), "%s is number %d of lane %d at %s/%d offset %d, and number "+
						"%d at offset %d",
						rec.ID, first.Seq, first.Lane, rec.Topic, rec.Partition, first.Offset, rec.Seq, rec.Offset)
				}
			}
			if rec.Partition != first.Partition && !r.in.Allowed.Grown[rec.Topic] {
				r.found.add(KeyMoved, one(rec.ID), "%s is at %s/%d and %s/%d", rec.ID, first.Topic, first.Partition,
					rec.Topic, rec.Partition)
			}
			continue
		}
		s.first = int32(i)
		if s.list < 0 || !r.ordered(e) {
			continue
		}
		before := &lists[s.list]
		if before.seen && before.partition != rec.Partition {
			if !r.in.Allowed.Grown[rec.Topic] {
				r.found.add(KeyMoved, []uuid.UUID{before.id, rec.ID}, "key %q is in %s/%d and in %d", e.Key, rec.Topic,
					before.partition, rec.Partition)
			}
			before.seen = false // there is no order across partitions
		}
		if before.seen && e.Version <= before.version {
			r.found.add(Inversion, []uuid.UUID{before.id, rec.ID}, "%s/%d offset %d: version %d of key %q first "+
				"occurs after version %d",
				rec.Topic, rec.Partition, rec.Offset, e.Version, e.Key, before.version)
			continue
		}
		*before = last{e.Version, rec.Partition, rec.ID, true}
	}
}

// compare checks that a record has the appended values.
func (r *run) compare(rec *Record, e *Event) {
	switch {
	case rec.Topic != e.Topic:
		r.found.add(Altered, one(e.ID), "%s was appended for topic %s and is in %s", e.ID, e.Topic, rec.Topic)
	case rec.Key != e.Key || rec.Tenant != e.Tenant:
		r.found.add(Altered, one(e.ID), "%s was appended with tenant %q and key %q; its record has %q and %q", e.ID,
			e.Tenant, e.Key, rec.Tenant, rec.Key)
	case rec.Version != 0 && rec.Version != e.Version:
		r.found.add(Altered, one(e.ID), "%s was appended with version %d; its record has %d", e.ID, e.Version,
			rec.Version)
	case e.Digest != 0 && rec.Digest != 0 && rec.Digest != e.Digest:
		r.found.add(Altered, one(e.ID), "%s has another payload at %s/%d offset %d", e.ID, rec.Topic, rec.Partition,
			rec.Offset)
	}
}

// checkNumbers checks the numbers of the records.
func (r *run) checkNumbers() {
	type at struct {
		topic     string
		partition int32
		lane      int16
	}
	type inEpoch struct {
		at
		epoch int32
	}
	highest, newest, incarnations := map[inEpoch]int64{}, map[at]int{}, map[string]int{}
	for i := range r.dump.Records {
		rec := &r.dump.Records[i]
		if rec.Epoch == "" {
			continue
		}
		incarnation, ok := incarnations[rec.Epoch]
		if !ok {
			incarnation = incarnationOf(rec.Epoch)
			incarnations[rec.Epoch] = incarnation
		}
		place, n := at{rec.Topic, rec.Partition, rec.Lane}, r.number(rec.Epoch, rec.Lane, rec.Seq)
		known, ok := r.given[n]
		if ok && known.id != rec.ID {
			r.found.add(NumberReused, []uuid.UUID{known.id, rec.ID}, "number %d of lane %d is that of %s and, at "+
				"%s/%d offset %d, of %s",
				rec.Seq, rec.Lane, known.id, rec.Topic, rec.Partition, rec.Offset, rec.ID)
		}
		r.given[n] = use{rec.ID, true}
		_, s, committed := r.event(rec.ID)
		if known.inLog || !committed || r.maybePublished[rec.ID] {
			continue // a duplicate, or a gap after a refusal
		}
		if s.first == int32(i) && incarnation < newest[place] {
			r.found.add(StaleIncarnation, one(rec.ID), "%s/%d offset %d: %s first occurs in incarnation %d, after "+
				"incarnation %d of its lane",
				rec.Topic, rec.Partition, rec.Offset, rec.ID, incarnation, newest[place])
		}
		newest[place] = max(newest[place], incarnation)
		where := inEpoch{place, n.epoch}
		if rec.Seq < highest[where] && !s.several && !r.in.Allowed.Grown[rec.Topic] {
			r.found.add(SequenceWentBack, one(rec.ID), "%s/%d offset %d: number %d of lane %d first occurs after "+
				"number %d",
				rec.Topic, rec.Partition, rec.Offset, rec.Seq, rec.Lane, highest[where])
		}
		highest[where] = max(highest[where], rec.Seq)
	}
	r.counts.Incarnations = len(incarnations)
}

// incarnationOf returns the number after the last dot of an epoch, or 0.
func incarnationOf(epoch string) int {
	n, _ := strconv.Atoi(epoch[strings.LastIndexByte(epoch, '.')+1:])
	return n
}
