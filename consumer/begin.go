package consumer

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/inbox"
)

// groupOffset is what the group has of a partition. The beginning is in the metadata of the committed offset, which no
// loss of the handler's database takes.
type groupOffset struct {
	committed int64       // -1: none
	began     int64       // where the group began the log; -1: not known
	log       uuid.UUID   // the log of both; zero: not known
	seen      int         // how many partitions the topic had when the group first saw it; 0: it has not seen it
	topic     int         // how many it has now
	epoch     int32       // the leader epoch of the record before committed; -1: not known
	logs      []uuid.UUID // those of the topic's partitions, as the group knows them
}

const metadataFormat = "effectonce: began at %d in %s of %d, epoch %d"

// newGroupOffset reads a committed offset. Other metadata is another program's, or a person has set the offset.
func newGroupOffset(committed int64, metadata string) groupOffset {
	o := groupOffset{committed: committed, began: -1, epoch: -1}
	var began int64
	var log string
	var seen int
	var epoch int32
	if n, err := fmt.Sscanf(metadata, metadataFormat, &began, &log, &seen, &epoch); n == 4 && err == nil {
		if id, err := uuid.Parse(log); err == nil {
			o.began, o.log, o.seen, o.epoch = began, id, seen, epoch
		}
	}
	return o
}

// is reports whether two answers have the same offset of a partition.
func (o groupOffset) is(other groupOffset) bool {
	return o.committed == other.committed && o.metadata() == other.metadata()
}

func (o groupOffset) metadata() string {
	return fmt.Sprintf(metadataFormat, o.began, o.log, o.seen, o.epoch)
}

// learn adds what the offset of a partition of the topic tells.
func (o *groupOffset) learn(other groupOffset) {
	if other.seen > 0 && (o.seen == 0 || other.seen < o.seen) {
		o.seen = other.seen
	}
	if other.log != uuid.Nil && !slices.Contains(o.logs, other.log) {
		o.logs = append(o.logs, other.log)
	}
}

func (o *groupOffset) setLog(log uuid.UUID) {
	if log != uuid.Nil {
		o.log = log
	}
}

// facts are what Kafka, the group and the handler's database know of a partition when it is assigned.
type facts struct {
	id         int32
	log        uuid.UUID // of the log that is there; zero: not known
	fetch      uuid.UUID // the same, to fetch by; zero: by the topic's name
	first, end int64     // of that log
	diverged   int64     // where it was cut below the group's offset, and grew again; -1: nowhere, as far as is known
	group      groupOffset
	db         inbox.Progress
	start      Start
	absent     bool // this consumer has seen that the topic did not exist
}

// beginning is where a consumer begins a partition.
type beginning struct {
	at int64 // the first offset to read
	// What the group and the handler's database are to know: where the consumer began this log, and why. If write is
	// false, the database knows it. Its progress becomes next, and stays if that is negative.
	group groupOffset
	next  int64
	isCut bool // the log was cut at next
	write bool
	why   string

	commit bool  // the group has no offset of this log: commit at
	reread int64 // [at, reread) is committed, and read again; 0: nothing is
	byHand bool  // a person or another program has set the group's offset
	known  int64 // [at, known) is decided in the handler's database; 0: nothing is, as far as is known
	sure   bool  // known is of this log, which is fetched by its id

	lost      *LostRange // records that are gone, or may be: the database is to know
	lostWhy   string
	goesOn    bool // the group has begun after the loss already: it does not halt the partition
	undecided bool // no policy can go on: the partition halts
}

const (
	whyGroup = "the group's offset"
	whyFirst = "the group sees the topic for the first time"
	whyAdded = "the partition was added after the group had seen the topic"
	whyMade  = "the topic was made while the consumer waited for it"
	// By "if any" doctor finds losses of an unknown number.
	whyRemade    = "the topic was made again, or is another cluster's: unread records of the old log, if any, are gone"
	whyTruncated = "the log was cut below what was decided: unread records, if any, are gone"
	whyGone      = "the group has no offset (any more)"
	whyNoRow     = "the handler's database knows nothing of the partition"
	whyLags      = "the handler's database lags behind the group"
	whyBeyond    = "the group's offset is beyond the end of the log"
	whyUnread    = "retention removed records that were never read"
	whyRemoved   = "retention removed records that the handler's database had decided"
	whyForgotten = "the handler's database lacks records that the group has committed, and retention removed them: " +
		"if it was restored from a backup, their effects are lost"
)

func another(a, b uuid.UUID) bool { return a != b && a != uuid.Nil && b != uuid.Nil }

// same reports whether the database's progress is certainly of the log that is there.
func (f facts) same(d inbox.Progress) bool { return d.Log == f.log && f.log != uuid.Nil }

// refused reports whether the consumer may be another one under a name that is a typo, and does not begin.
func (f facts) refused() bool {
	return f.start == 0 && f.db.Beside != "" && f.db.Next < 0 && f.group.committed < 0
}

// begin decides where to begin. A case that it cannot decide either loses nothing, or is reported.
func (f facts) begin() beginning {
	if !f.db.Kept {
		f.db = inbox.Progress{Next: -1}
	}
	g, d := f.group, f.db
	gone := int64(-1) // the offset in an earlier log up to which events are decided
	if g.committed >= 0 && another(g.log, f.log) {
		gone, g.committed, g.began, g.epoch = g.committed, -1, -1, -1
	}
	if d.Next >= 0 && another(d.Log, f.log) {
		gone, d.Next = max(gone, d.Next), -1
	}
	b := beginning{group: g, next: -1, byHand: g.committed >= 0 && g.began < 0}
	b.group.setLog(f.log)
	switch {
	case g.committed < 0 && d.Next < 0 && gone >= 0:
		f.remade(&b, gone)
	case g.committed < 0 && d.Next < 0:
		f.beginsAnew(&b)
	case g.committed < 0:
		f.hasNoOffset(&b, d)
	default:
		if gone >= 0 { // the database is from before the topic was made again
			b.loses(whyRemade, gone, gone)
			b.goesOn = true
		}
		if f.compare(&b, g, d); f.diverged >= 0 && f.diverged < g.committed {
			f.truncated(&b, min(b.at, f.diverged), b.group.began, g.committed)
			b.reread, b.known = 0, 0
		}
	}
	b.commit = b.commit || g.committed < 0
	if b.group.began < 0 && f.db.Next >= 0 && !another(f.db.Log, f.log) {
		b.group.began = d.Offset // a person has set the group's offset
	}
	if b.group.began < 0 {
		if b.group.began = b.at; g.committed >= 0 {
			b.group.began = g.committed // another program's, or set by a person
		}
	}
	b.group.began = min(b.group.began, b.at)
	if b.group.seen == 0 {
		b.group.seen = max(f.group.topic, int(f.id)+1)
	}
	if d.Next < 0 {
		b.next = b.at
	}
	// A row from before the log was known gets its id.
	b.write = f.db.Kept && (b.next >= 0 || b.lost != nil || f.log != uuid.Nil && d.Log != f.log)
	return b
}

func (b *beginning) loses(why string, from, to int64) {
	b.lost, b.lostWhy = &LostRange{From: from, To: to}, why
}

// remade begins a log that has taken the place of the one that was decided up to an offset.
func (f facts) remade(b *beginning, decided int64) {
	b.at, b.group.began, b.why = f.first, f.first, whyRemade
	b.next, b.commit, b.group.epoch = b.at, true, -1
	b.loses(whyRemade, decided, decided)
}

// truncated begins a log again that was cut below the offset up to which it was decided: what follows the cut is new.
// Where the brokers do not tell where that is (-1), the log is read from where the consumer began it.
func (f facts) truncated(b *beginning, cut, began, decided int64) {
	b.undecided = cut < 0 && began > f.end
	if b.isCut = cut >= f.first && cut <= f.end; cut < 0 {
		cut = began
	}
	b.at, b.why = min(max(cut, f.first), f.end), whyTruncated
	b.next, b.commit, b.group.epoch = b.at, true, -1
	b.loses(whyTruncated, decided, decided)
}

// beginsAnew begins a partition of which neither the group nor the database knows anything.
func (f facts) beginsAnew(b *beginning) {
	seen := f.group.seen
	if n := int(f.db.Partitions); n > 0 && (seen == 0 || n < seen) {
		seen = n
	}
	b.group.seen = seen
	switch {
	case another(f.db.Log, f.log),
		slices.ContainsFunc(f.group.logs, func(id uuid.UUID) bool { return another(id, f.log) }):
		b.at, b.why = f.first, whyRemade
	case seen > 0 && int(f.id) >= seen:
		b.at, b.why = f.first, whyAdded
	case f.start == StartLatest && f.absent && f.first == 0: // all of it was written while this consumer waited for it
		b.at, b.why = f.first, whyMade
	case f.start == StartLatest:
		b.at, b.why = f.end, whyFirst
	default:
		b.at, b.why = f.first, whyFirst
	}
}

// hasNoOffset begins a partition of which only the database knows: Kafka deletes the offsets of a group that was
// inactive for long, and those of a deleted topic.
func (f facts) hasNoOffset(b *beginning, d inbox.Progress) {
	b.group.began, b.why = d.Offset, whyGone
	if d.Partitions > 0 {
		b.group.seen = int(d.Partitions)
	}
	same := f.same(d)
	switch {
	case d.Next > f.end && same:
		f.truncated(b, -1, d.Offset, d.Next)
	case d.Next > f.end:
		f.remade(b, d.Next)
	case same, f.start == StartLatest:
		b.at = d.Next // if the log no longer has this offset, the fetch reports it
	default:
		b.at, b.known = f.first, d.Next // the log may be another one
	}
}

// compare begins at the group's offset, or where the database is, if that is lower. A database that was restored from a
// backup lacks effects of offsets that the group has committed. Reading them again costs duplicates; skipping them
// would lose them. Usually the progress is only some seconds old, and those events are read again, too. A database
// without any progress has decided nothing since the group began.
func (f facts) compare(b *beginning, g groupOffset, d inbox.Progress) {
	if b.at, b.why = g.committed, whyGroup; !d.Kept {
		return
	}
	same, next := f.same(d), d.Next
	b.why = whyLags
	if next < 0 {
		b.why = whyNoRow
		if next = g.began; next < 0 {
			next = g.committed
		}
	}
	switch {
	case next == g.committed:
	case d.Next > f.end && g.committed <= f.end:
		b.loses(whyTruncated, d.Next, d.Next)
		b.goesOn, b.next, b.why = true, b.at, whyTruncated
	case g.committed > f.end && next <= f.end && (same || d.Next < 0):
		b.at, b.why, b.commit, b.group.epoch = next, whyBeyond, true, -1
	case g.committed > f.end: // the fetch reports it, after it has read the bounds again
	case next > g.committed:
		b.known, b.sure = next, same && f.fetch == f.log && f.diverged < 0
	default:
		b.group.epoch = -1
		at := min(max(next, f.first), g.committed)
		if next < at && next < f.first {
			b.loses(whyForgotten, next, at)
		}
		if at < g.committed {
			b.at, b.reread = at, g.committed
		}
	}
}
