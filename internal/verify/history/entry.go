package history

import (
	"hash/fnv"
	"time"

	"github.com/google/uuid"
)

// Kind says what an entry tells.
type Kind string

// The kinds of entries, by who writes them. Those that end something name its beginning in Entry.Op.
const (
	// Any process: it has started (with Detail as its settings), it ends in order, or something worth telling.
	KindStart Kind = "start"
	KindStop  Kind = "stop"
	KindNote  Kind = "note"

	// A producer. Append is written when the events, their versions and the business rows are in the transaction and
	// before its COMMIT (or Rollback) is sent; Appended is what came of that: ok, failed for certain, or unknown.
	KindAppend   Kind = "append"
	KindAppended Kind = "appended"

	// A relay. Publish and Published surround Publisher.Publish, with Sent; the others are what its Observer tells.
	KindLaneTaken Kind = "lane-taken" // Lane, Fence
	KindLaneLeft  Kind = "lane-left"  // Lane, Lost
	KindClaimed   Kind = "claimed"    // Count
	KindPublish   Kind = "publish"    // Sent
	KindPublished Kind = "published"  // Op; Refused: what was not acked, and why
	KindSettled   Kind = "settled"    // Count
	KindHeld      Kind = "held"       // Topic, Partition, Count
	KindDrained   Kind = "drained"    // Count
	KindParked    Kind = "parked"     // Count in a relay; IDs and Detail in a worker
	KindReleased  Kind = "released"   // Count in a relay; IDs and Detail in a worker
	KindOutage    Kind = "outage"     // Detail; Err empty: over

	// A worker. Handle and Handled surround Handler.Handle; Effect is a run of the effect, in a transaction that may
	// yet roll back.
	KindAssigned  Kind = "assigned"  // Generation, Detail: the partitions
	KindHandle    Kind = "handle"    // Consumer, Topic, Partition, Offset of the first, Count
	KindHandled   Kind = "handled"   // Op, Outcomes, Err
	KindEffect    Kind = "effect"    // Consumer, IDs
	KindCommitted Kind = "committed" // Group, Topic, Partition, Offset: of the next event to handle
	KindHalted    Kind = "halted"    // Consumer, Topic, Partition, Offset

	// A person: Verb (release, discard, resume, ...) on IDs or Key, before and after.
	KindOperate  Kind = "operate"
	KindOperated Kind = "operated"

	// The harness. A fault's name stands in Verb, whom it meets in Detail; Audit is a look at committed offsets and
	// inbox.
	KindFault      Kind = "fault"
	KindFaultEnded Kind = "fault-ended"
	KindAudit      Kind = "audit"
)

// What stands in Verb of a note.
const (
	VerbBelowFloor = "below-floor" // a relay found a row where none can be: a bug, see relay.Observer
	VerbRetried    = "retried"     // an inbox rolled back and runs again: Detail is the reason
	VerbDropped    = "dropped"     // an inbox dropped a day: Detail
	VerbForgotten  = "forgotten"   // a consumer met events below its offset that its inbox did not know
	VerbLost       = "lost"        // a consumer met offsets whose records are gone
)

// Outcome is what came of an operation, as far as its process knows.
type Outcome string

// The outcomes. One that was never written counts as Unknown: the process died, or its line is torn.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"  // for certain: nothing happened
	Unknown Outcome = "unknown" // it may have happened, or happen yet
)

// Entry is one line of a history. Which fields count follows from Kind; the others are zero.
type Entry struct {
	N       int64     `json:"n"` // counts the entries of one file from 1; set by the Writer
	At      time.Time `json:"at"`
	Process string    `json:"process"` // set by the Writer
	Kind    Kind      `json:"kind"`
	Op      int64     `json:"op,omitempty"` // the N of the entry, in the same file, whose end this is
	Outcome Outcome   `json:"outcome,omitempty"`
	Err     string    `json:"err,omitempty"`

	Events   []Event     `json:"events,omitempty"`
	Sent     []Sent      `json:"sent,omitempty"`
	Refused  []Refused   `json:"refused,omitempty"`
	IDs      []uuid.UUID `json:"ids,omitempty"`
	Outcomes []string    `json:"outcomes,omitempty"` // of inbox.Outcome, by the order of the events handed over

	Lane       int16  `json:"lane,omitempty"`
	Fence      int64  `json:"fence,omitempty"`
	Lost       bool   `json:"lost,omitempty"`
	Count      int    `json:"count,omitempty"`
	Consumer   string `json:"consumer,omitempty"`
	Group      string `json:"group,omitempty"`
	Generation int32  `json:"generation,omitempty"`
	Topic      string `json:"topic,omitempty"`
	Partition  int32  `json:"partition,omitempty"`
	Offset     int64  `json:"offset,omitempty"`
	Tenant     string `json:"tenant,omitempty"`
	Key        string `json:"key,omitempty"`
	Verb       string `json:"verb,omitempty"`
	Detail     string `json:"detail,omitempty"`
	Audit      *Audit `json:"audit,omitempty"`
}

// Event is what a producer appended; the same values stand in the business row of the same transaction.
type Event struct {
	ID     uuid.UUID `json:"id"`
	Tenant string    `json:"tenant,omitempty"`
	Topic  string    `json:"topic"`
	Key    string    `json:"key,omitempty"` // empty: no order is promised
	// Version counts the changes of the aggregate that Key names, drawn under its row lock: along a key it is causal
	// order.
	Version int64 `json:"version,omitempty"`
	// Business names the effect that must happen once, whatever ids the event is sent under. Empty: the id alone
	// counts.
	Business string `json:"business,omitempty"`
	// Scheduled events take their place when they come due: Version says nothing about their order.
	Scheduled bool `json:"scheduled,omitempty"`
	// Poison says who cannot take it: "broker" or "effect". Only such an event may be refused; others may wait behind
	// it.
	Poison string `json:"poison,omitempty"`
	// Skipped events are those whose effect returns inbox.Skip: they leave an inbox row and no effect.
	Skipped bool `json:"skipped,omitempty"`
	// Digest is Digest(payload). 0: not compared.
	Digest int64 `json:"digest,omitempty"`
}

// Digest is a fingerprint of a payload, never 0.
func Digest(payload []byte) int64 {
	h := fnv.New64a()
	_, _ = h.Write(payload)
	return int64(h.Sum64() | 1)
}

// Sent is an event with the number under which a relay hands it to the publisher.
type Sent struct {
	ID    uuid.UUID `json:"i"`
	Lane  int16     `json:"l"`
	Seq   int64     `json:"s"`
	Epoch string    `json:"e,omitempty"` // only on the first of an entry, and where it changes
}

// Refused is a verdict that is not an ack.
type Refused struct {
	ID  uuid.UUID `json:"i"`
	Err string    `json:"err"`
	// Certain: the broker refused the record, it will not appear. Otherwise the outcome is unknown.
	Certain bool `json:"certain,omitempty"`
}

// Audit is a look at one consumer during a run: the committed offsets were read first, what is decided afterwards.
type Audit struct {
	Consumer   string           `json:"consumer"`
	Group      string           `json:"group"`
	Partitions []AuditPartition `json:"partitions"`
}

// AuditPartition is what an audit saw of a partition.
type AuditPartition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Committed int64  `json:"committed"` // the offset of the next event to handle; -1: none
	Checked   int64  `json:"checked"`   // how many records below Committed were looked up this time
	// Undecided are the records below Committed that the inbox did not know: work that the offset passed.
	Undecided []AuditRecord `json:"undecided,omitempty"`
}

// AuditRecord names a record.
type AuditRecord struct {
	Offset int64     `json:"offset"`
	ID     uuid.UUID `json:"id"`
}
