package inbox

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/outcome"
)

// numbering identifies a sequence of numbers that only rises: those of an outbox within one incarnation, for each lane.
// The zero numbering stands for the offsets of the partition.
type numbering struct {
	outbox      uuid.UUID
	incarnation int32
}

// numberingOf parses a ce_epoch.
func numberingOf(epoch string) (n numbering, ok bool) {
	n.outbox, n.incarnation, ok = sql.Epoch(epoch)
	return n, ok
}

func (n numbering) String() string { return fmt.Sprintf("%s.%d", n.outbox, n.incarnation) }

func (n numbering) compare(m numbering) int {
	return cmp.Or(bytes.Compare(n.outbox[:], m.outbox[:]), cmp.Compare(n.incarnation, m.incarnation))
}

// watermark holds the highest decided number of each lane, for a numbering in a partition. All events in the log up to
// that number are decided: a number first appears in the log after all lower numbers of its lane, and events are
// decided in log order.
type watermark struct {
	numbering
	version int64           // the version of its row; 0: no row yet
	lanes   map[int16]int64 // the highest decided number of each lane
	latest  int64           // the latest time of a decided record, Unix milliseconds
}

// watermarks holds the watermarks of a partition, sorted by numbering, and the known incarnations of each outbox. It is
// never modified, so that a transaction that is rolled back changes nothing.
type watermarks struct {
	of       []watermark
	accepted map[uuid.UUID]int32 // the latest incarnation that an operator accepted
	first    map[uuid.UUID]int32 // the earliest incarnation that any partition of the topic has had
	read     bool                // nothing was committed since they were read
}

// lostIn returns the first number that is lower in now, or gone, with what it is there.
func (m *watermarks) lostIn(now *watermarks) (was, is int64) {
	if m == nil {
		return 0, 0
	}
	for i := range m.of {
		var there map[int16]int64
		if at := slices.IndexFunc(now.of, func(n watermark) bool { return n.numbering == m.of[i].numbering }); at >= 0 {
			there = now.of[at].lanes
		}
		for lane, number := range m.of[i].lanes {
			if number > there[lane] {
				return number, there[lane]
			}
		}
	}
	return 0, 0
}

// verdict is the decision on an event by its number.
type verdict uint8

const (
	verdictNew            verdict = iota
	verdictRepeat                 // decided already
	verdictMaybePublished         // it may be decided, under another number
	verdictReplayed               // it was published under another number
	verdictOld                    // of an old numbering, and above its decided numbers
	verdictUnknown                // it has no number
	verdictForeign                // it has no number, and no event of the partition has one
	verdictLater                  // of a numbering that no operator has accepted
	verdictRelay                  // by offset: a relay wrote it
	verdictBackward               // by offset: the topic was created again
)

// judge decides on a transaction's events in log order, and advances a copy of the watermarks.
type judge struct {
	watermarks
	replaced []bool // by index in watermarks.of: the judge has its own copy of the watermark
	offset   bool   // offsets serve as numbers
	epoch    string // the ce_epoch of the last event
	last     int    // the index of its watermark; -1: it has no numbering
}

func newJudge(m *watermarks, offset bool) *judge {
	return &judge{
		watermarks: watermarks{of: slices.Clone(m.of), accepted: m.accepted, first: m.first},
		replaced:   make([]bool, len(m.of)), offset: offset, last: -1,
	}
}

// judge decides on the next event. It advances the watermark for every verdict except verdictUnknown and those that
// halt the partition.
func (j *judge) judge(e *event.Event) verdict {
	if j.offset {
		return j.byOffset(e)
	}
	hasNumber := e.Position.Seq > 0
	if hasNumber && e.Position.Epoch != j.epoch {
		j.epoch, j.last = e.Position.Epoch, -1
		if n, ok := numberingOf(j.epoch); ok {
			j.last = j.find(n)
		}
	}
	if !hasNumber || j.last < 0 {
		if len(j.of) == 0 {
			return verdictForeign
		}
		return verdictUnknown
	}
	m := &j.of[j.last]
	if m.version == 0 && !j.replaced[j.last] && j.newer(m.numbering) && j.accepted[m.outbox] < m.incarnation {
		j.of, j.replaced = slices.Delete(j.of, j.last, j.last+1), slices.Delete(j.replaced, j.last, j.last+1)
		j.epoch, j.last = "", -1
		return verdictLater
	}
	passed := e.Position.Seq <= m.lanes[e.Position.Lane]
	j.advance(e.Position.Lane, e.Position.Seq, e)
	switch {
	case passed:
		return verdictRepeat
	case j.older(m.numbering):
		return verdictOld
	case e.Position.MaybePublished:
		return verdictMaybePublished
	case e.Position.Replayed:
		return verdictReplayed
	}
	return verdictNew
}

// byOffset decides on an event by its offset.
func (j *judge) byOffset(e *event.Event) verdict {
	if e.Position.Epoch != "" {
		return verdictRelay
	}
	j.last = j.find(numbering{})
	m := &j.of[j.last]
	// Numbers begin at one, offsets at zero.
	passed := e.Position.Offset < m.lanes[0]
	if passed && writtenAt(e).UnixMilli() > m.latest {
		return verdictBackward
	}
	j.advance(0, e.Position.Offset+1, e)
	if passed {
		return verdictRepeat
	}
	return verdictNew
}

// find returns the index of a numbering's watermark. It inserts a new watermark if there is none.
func (j *judge) find(n numbering) int {
	i, found := slices.BinarySearchFunc(j.of, n, func(m watermark, n numbering) int { return m.compare(n) })
	if !found {
		j.of = slices.Insert(j.of, i, watermark{numbering: n, lanes: map[int16]int64{}})
		j.replaced = slices.Insert(j.replaced, i, false)
	}
	return i
}

// advance advances the watermark for an event that this transaction decides. The row is written even if its content
// does not change: the decision holds only if no other transaction has advanced the watermark.
func (j *judge) advance(lane int16, number int64, e *event.Event) {
	m := &j.of[j.last]
	if !j.replaced[j.last] {
		j.replaced[j.last] = true
		m.lanes = maps.Clone(m.lanes)
		m.version++
	}
	m.lanes[lane] = max(m.lanes[lane], number)
	if at := writtenAt(e); !at.IsZero() {
		m.latest = max(m.latest, at.UnixMilli())
	}
}

// writtenAt returns the time when an event's record was written. The event's own time (ce_time) may differ from it.
func writtenAt(e *event.Event) time.Time {
	if e.Position.Timestamp.IsZero() {
		return e.Time
	}
	return e.Position.Timestamp
}

// newer reports whether the partition, or another partition of the topic, has had earlier incarnations of the outbox,
// and the partition none this late. The other partitions count because events may move to an added partition.
func (j *judge) newer(n numbering) bool {
	first, met := j.first[n.outbox]
	met = met && first < n.incarnation
	for i := range j.of {
		if m := &j.of[i]; m.outbox == n.outbox && m.version > 0 {
			met = true
			if m.incarnation >= n.incarnation {
				return false
			}
		}
	}
	return met
}

// older reports whether the partition has had a later incarnation of the outbox.
func (j *judge) older(n numbering) bool {
	return slices.ContainsFunc(j.of, func(m watermark) bool {
		return m.outbox == n.outbox && m.version > 0 &&
			m.incarnation > n.incarnation
	})
}

// route returns the route of an event with that verdict. If ok is false, the event halts its partition.
func (v verdict) route() (where route, ok bool) {
	switch v {
	case verdictNew, verdictRepeat, verdictMaybePublished:
		return numbered, true
	case verdictReplayed:
		return replayed, true
	case verdictOld:
		return oldNumbering, true
	case verdictUnknown:
		return unnumbered, true
	}
	return 0, false
}

// halt returns the cause for which the event halts its partition.
func (v verdict) halt(e *event.Event) error {
	switch v {
	case verdictLater:
		return outcome.Terminal(CodeNewNumbering, fmt.Errorf("its numbering %s is newer than its partition's: the "+
			"outbox was fenced, restored or failed over, and what was published before may come again under new "+
			"numbers; compare the last effects with the producers' tables, then run `relay inbox accept --epoch %s`",
			e.Position.Epoch, e.Position.Epoch))
	case verdictRelay:
		return outcome.Terminal(CodeNumbered, errors.New("a relay wrote it, and repeats events under new offsets: a "+
			"consumer of its topic goes ByID or ByWatermark"))
	case verdictBackward:
		return outcome.Terminal(CodeOffsetsBack, fmt.Errorf("its offset is decided already, and its record is later "+
			"than everything decided: the topic was made again; then run `relay inbox forget-offsets --topic %s`, "+
			"which has everything applied that the topic holds now", e.Topic))
	}
	return outcome.Terminal(CodeNoNumber, errors.New("it carries no number (ce_epoch, ce_lane, ce_laneseq), and "+
		"nothing else in its partition does: no relay writes this topic; a consumer of it goes ByID, or ByOffset "+
		"where its one writer never repeats a record"))
}

var errMaybePublished = outcome.Terminal(CodeMaybePublished, errors.New("the relay released it after an attempt of "+
	"unknown outcome, under a new number, so a consumer that goes by numbers cannot tell whether it was applied: look "+
	"at its business row, then release its key to apply it, or skip it"))

// plan judges each event by its number, in log order. New events with one id are two events, of which an effect could
// name only one: they have a transaction each. giveUp: the single event is to be parked.
func (m *watermarks) plan(events []event.Event, offset, halt, giveUp bool) (*planned, *failure) {
	j := newJudge(m, offset)
	p := &planned{ids: make([]planID, len(events)), name: partitionName{events[0].Topic, events[0].Position.Partition}}
	seen := make(map[uuid.UUID]bool, len(events))
	for i := range events {
		e := &events[i]
		if e.ID == uuid.Nil {
			return nil, &failure{kind: undecidable, index: i, err: errNoID}
		}
		v := j.judge(e)
		where, ok := v.route()
		if !ok {
			return nil, &failure{kind: undecidable, index: i, err: v.halt(e)}
		}
		if v == verdictMaybePublished {
			if !giveUp {
				return nil, &failure{kind: unsure, index: i, err: errMaybePublished}
			}
			v = verdictNew
		}
		if v == verdictNew {
			if seen[e.ID] {
				return nil, &failure{kind: bounded, index: i}
			}
			seen[e.ID] = true
		}
		if where.undecidable() {
			if halt {
				return nil, &failure{
					kind: undecidable, index: i,
					err: outcome.Terminal(quarantineCode(where), whyUndecidable(where, e, state{}, 0)),
				}
			}
			p.undecidable++
		}
		p.ids[i] = planID{id: e.ID, index: int32(i), route: where, isNew: v == verdictNew}
		if p.ids[i].isNew {
			p.inserted++
		}
	}
	p.watermarks = &j.watermarks
	for i, replaced := range j.replaced {
		if replaced {
			p.replaced = append(p.replaced, i)
		}
	}
	return p, nil
}
