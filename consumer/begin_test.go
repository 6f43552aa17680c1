package consumer

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/inbox"
)

// world is a partition, its consumer group and the database of the effects, of which begin sees the facts only.
type world struct {
	log        int // the number of the log: a topic that is made again has the next one
	first, end int64
	group      groupOffset
	db, backup inbox.Progress
	applied    map[record]bool // in the database
	restorable map[record]bool // in its backup

	start Start
	kept  bool  // the handler keeps progress
	sight int64 // where the consumer began the log
	from  int64 // the same, unless a person has moved the group's offset: what is before is none of its business
	// What nothing can know: a person moved the group's offset where no database tells more, or all traces are gone.
	unknown bool

	cut        int64 // where the log was truncated since the consumer worked; -1: it was not
	cutUnknown bool  // the epoch that would tell is gone with the group's metadata
}

// record is a record of a log. A log that was truncated has other records at the same offsets.
type record struct {
	log    int
	offset int64
}

func (w *world) id() uuid.UUID { return uuid.UUID{15: byte(w.log)} }

var nothingKnown = groupOffset{committed: -1, began: -1, epoch: -1}

// changes are the ways in which a log, a group and a database change under a consumer.
var changes = map[string]func(w *world){
	"works":    nil, // see world.works
	"produced": func(w *world) { w.end += 3 },
	"made again, offsets deleted": func(w *world) {
		w.remake()
		w.group = nothingKnown
	},
	"made again, offsets kept": func(w *world) { w.remake() },
	"truncated": func(w *world) {
		w.end = max(w.first, w.end-2)
		gone := func(r record, _ bool) bool { return r.log == w.log && r.offset >= w.end }
		maps.DeleteFunc(w.applied, gone)
		maps.DeleteFunc(w.restorable, gone)
		w.from, w.sight = min(w.from, w.end), min(w.sight, w.end) // what follows is new
		w.cutUnknown = w.cutUnknown || w.group.epoch < 0
		if w.cut < 0 || w.cut > w.end {
			w.cut = w.end
		}
	},
	"retained": func(w *world) { w.first = min(w.end, w.first+4) },
	"offsets deleted": func(w *world) {
		w.group = nothingKnown
		w.cutUnknown = w.cut >= 0
		w.from = w.sight
		w.forgets()
	},
	"moved forward": func(w *world) { w.moved(min(w.end, w.group.committed+2)) },
	"moved back":    func(w *world) { w.moved(max(w.first, min(w.end, w.group.committed-2))) },
	"backed up":     func(w *world) { w.backup, w.restorable = w.db, maps.Clone(w.applied) },
	"restored": func(w *world) {
		if w.kept {
			w.db, w.applied = w.backup, maps.Clone(w.restorable)
			w.forgets()
		}
	},
}

// moved has a person set the group's offset.
func (w *world) moved(to int64) {
	if w.group.committed < 0 {
		return
	}
	w.group = groupOffset{committed: to, began: -1, epoch: -1}
	w.cutUnknown = w.cut >= 0
	w.from = min(w.sight, to)
	if !w.kept { // without a database, that skips
		w.sight, w.from = to, to
	}
	w.forgets()
}

func (w *world) remake() {
	w.log++
	w.first, w.end, w.cut, w.cutUnknown = 0, 0, -1, false
	w.sight, w.from = 0, 0 // if the consumer has seen the topic, all of the new log is new
}

// forgets notes whether the group's metadata and the database are both without a trace of where the consumer began.
func (w *world) forgets() {
	w.unknown = w.unknown || w.group.began < 0 && (w.db.Next < 0 || !w.kept)
}

// works lets a consumer begin and read all that there is. It returns what it did wrong.
func (w *world) works() (wrong string) {
	db := inbox.Progress{} // a HandlerFunc's
	if db.Kept = w.kept; w.kept {
		db = w.db
		db.Kept = true
	}
	f := facts{log: w.id(), first: w.first, end: w.end, group: w.group, db: db, start: w.start, diverged: -1}
	if w.group.epoch >= 0 && w.group.log == f.log && 0 <= w.cut && w.cut < w.group.committed {
		f.diverged = w.cut
	}
	f.group.topic = 1
	b := f.begin()
	if b.lost != nil && b.write != w.kept {
		return fmt.Sprintf("%s: the database, if there is one, is not told", b.lostWhy)
	}
	if b.lost != nil && (b.lost.From == b.lost.To) != strings.Contains(b.lostWhy, ", if any, are gone") {
		return fmt.Sprintf("%s: doctor takes a number for known, or a known one for not (%+v)", b.lostWhy, *b.lost)
	}
	if fresh := w.group.committed < 0 && w.db.Next < 0; fresh && w.start == StartLatest {
		w.from = w.end
	}
	if w.sight = w.from; w.unknown {
		w.sight, w.from = b.at, b.at
	}
	if b.at < 0 || b.at < w.first && b.at != w.db.Next && b.at != w.group.committed {
		return fmt.Sprintf("begins at %d, the log has %d to %d", b.at, w.first, w.end)
	}
	if b.at > w.end { // the fetch finds that out
		r := beginning{group: b.group, next: -1}
		f.truncated(&r, -1, b.group.began, b.at)
		b = r
	}
	if b.at < w.first {
		b.loses(whyUnread, b.at, w.first)
		b.at = w.first
	}
	for o := max(w.first, w.from); o < b.at; o++ {
		if !w.applied[record{w.log, o}] && b.lost == nil && !w.unknown && !w.cutUnknown {
			return fmt.Sprintf("skips offset %d without a word (%s)", o, b.why)
		}
	}
	if b.at < w.from && b.lost == nil && !w.unknown {
		return fmt.Sprintf("runs history from %d on, before %d (%s)", b.at, w.from, b.why)
	}
	if b.undecided {
		return ""
	}
	for o := b.at; o < w.end; o++ {
		w.applied[record{w.log, o}] = true
	}
	b.group.epoch = 1
	w.group = newGroupOffset(w.end, b.group.metadata())
	if w.kept {
		w.db = inbox.Progress{Next: w.end, Beginning: inbox.Beginning{
			Log: b.group.log, Offset: b.group.began, Partitions: int32(b.group.seen),
		}}
	}
	w.unknown, w.cut, w.cutUnknown = false, -1, false
	return ""
}

// Every sequence of changes under a consumer: each record is read, or the jump is reported.
func TestBeginEnumerated(t *testing.T) {
	t.Parallel()
	names := slices.Sorted(maps.Keys(changes))
	length := 4
	if os.Getenv("EFFECTONCE_NIGHTLY") != "" {
		length = 5
	}
	cells, failed := 0, map[string]int{}
	for _, start := range []Start{StartEarliest, StartLatest} {
		for _, kept := range []bool{true, false} {
			for turn := range pow(len(names), length) {
				w := &world{
					group: nothingKnown, db: inbox.Progress{Next: -1}, backup: inbox.Progress{Next: -1}, end: 5,
					applied: map[record]bool{}, restorable: map[record]bool{}, start: start, kept: kept, log: 1,
					cut: -1,
				}
				story := []string{fmt.Sprintf("start %d, kept %t", start, kept)}
				for range length {
					name := names[turn%len(names)]
					turn /= len(names)
					story = append(story, name)
					if do := changes[name]; do != nil {
						do(w)
					} else if wrong := w.works(); wrong != "" {
						failed[wrong]++
						if failed[wrong] == 1 {
							t.Errorf("%s: %s", strings.Join(story, "; "), wrong)
						}
						break
					}
				}
				cells++
			}
		}
	}
	if cells < 4*pow(10, length) {
		t.Errorf("only %d sequences", cells)
	}
}

func pow(n, e int) int {
	out := 1
	for range e {
		out *= n
	}
	return out
}

// TestForgottenLossIsKept: of records that the database has forgotten, and Kafka has deleted, the database is told.
func TestForgottenLossIsKept(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	f := facts{
		log: id, first: 5, end: 10, diverged: -1, group: groupOffset{committed: 9, log: id, epoch: -1},
		db: inbox.Progress{Kept: true, Next: 2, Beginning: inbox.Beginning{Log: id}},
	}
	if b := f.begin(); b.lost == nil || *b.lost != (LostRange{From: 2, To: 5}) || !b.write || b.next >= 0 {
		t.Errorf("%+v, lost %+v", b, b.lost)
	}
}
