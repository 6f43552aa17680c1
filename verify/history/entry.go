package history

import (
	"hash/fnv"
	"time"

	"github.com/google/uuid"
)

// Kind is the kind of an entry.
type Kind string

// Kinds of entries by their writers. An entry that ends an operation refers to its start by Entry.Op.
const (
	// Any process: its start (Detail: settings), its orderly end, or a note.
	KindStart Kind = "start"
	KindStop  Kind = "stop"
	KindNote  Kind = "note"

	// A producer. Append is written after the events and business rows, before COMMIT or ROLLBACK; Appended has the
	// outcome: ok, failed, or unknown.
	KindAppend   Kind = "append"
	KindAppended Kind = "appended"

	// A relay. Publish and Published surround Publisher.Publish, with Sent; the others come from its Observer.
	KindLaneTaken Kind = "lane-taken" // Lane, Fence
	KindLaneLeft  Kind = "lane-left"  // Lane, Lost
	KindClaimed   Kind = "claimed"    // Count
	KindPublish   Kind = "publish"    // Sent
	KindPublished Kind = "published"  // Op; Refused: events without an ack, with their errors
	KindSettled   Kind = "settled"    // Count
	KindHeld      Kind = "held"       // Topic, Partition, Count
	KindDrained   Kind = "drained"    // Count
	KindParked    Kind = "parked"     // Count in a relay; IDs and Detail in a worker
	KindReleased  Kind = "released"   // Count in a relay; IDs and Detail in a worker
	KindOutage    Kind = "outage"     // Detail; Err empty: over

	// A worker. Handle and Handled surround Handler.Handle; Effect is a run of the effect, in a transaction that may
	// roll back.
	KindAssigned  Kind = "assigned"  // Generation, Detail: the partitions
	KindHandle    Kind = "handle"    // Consumer, Topic, Partition, Offset of the first, Count
	KindHandled   Kind = "handled"   // Op, Outcomes, Err
	KindEffect    Kind = "effect"    // Consumer, IDs
	KindCommitted Kind = "committed" // Group, Topic, Partition, Offset: of the next event to handle
	KindHalted    Kind = "halted"    // Consumer, Topic, Partition, Offset

	// An operator: Verb (release, discard, resume, ...) on IDs or Key, before and after.
	KindOperate  Kind = "operate"
	KindOperated Kind = "operated"

	// The harness. Verb is a fault's name, Detail its target; Audit is a check of committed offsets and inbox.
	KindFault      Kind = "fault"
	KindFaultEnded Kind = "fault-ended"
	KindAudit      Kind = "audit"
)

// Verbs of notes.
const (
	VerbBelowFloor = "below-floor" // a relay found a row below its floor: a bug, see relay.Observer
	VerbRetried    = "retried"     // an inbox rolled back and retries; Detail is the reason
	VerbDropped    = "dropped"     // an inbox dropped a day: Detail
	VerbForgotten  = "forgotten"   // a consumer found events below its offset that its inbox did not know
	VerbLost       = "lost"        // a consumer found offsets whose records are gone
)

// Outcome is the outcome of an operation, as its process knows it.
type Outcome string

// Outcomes. A missing one counts as Unknown: the process died, or its line is torn.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"  // certainly without an effect
	Unknown Outcome = "unknown" // it may have happened, or still happen
)

// Entry is one line of a history. Kind defines which fields are set.
type Entry struct {
	N       int64     `json:"n"` // counts the entries of one file from 1; set by the Writer
	At      time.Time `json:"at"`
	Process string    `json:"process"` // set by the Writer
	Kind    Kind      `json:"kind"`
	Op      int64     `json:"op,omitempty"` // the N of the entry, in the same file, that this one ends
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

// Event is an appended event. The business row of the same transaction has the same values.
type Event struct {
	ID     uuid.UUID `json:"id"`
	Tenant string    `json:"tenant,omitempty"`
	Topic  string    `json:"topic"`
	Key    string    `json:"key,omitempty"` // empty: no order is promised
	// Version is the version of the aggregate Key, assigned under its row lock. It defines the causal order of a key.
	Version int64 `json:"version,omitempty"`
	// Business is the business key: its effect must happen once, whatever the ids of its events. Empty: the id counts.
	Business string `json:"business,omitempty"`
	// Scheduled events are ordered by the time at which they are moved; Version does not define their order.
	Scheduled bool `json:"scheduled,omitempty"`
	// Poison is "broker" or "effect", which refuses the event. Only such an event may be refused; others may wait
	// behind it.
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

// Sent is an event that a relay passes to the publisher, with its number.
type Sent struct {
	ID    uuid.UUID `json:"i"`
	Lane  int16     `json:"l"`
	Seq   int64     `json:"s"`
	Epoch string    `json:"e,omitempty"` // only on the first of an entry, and where it changes
}

// Refused is an event without an ack.
type Refused struct {
	ID  uuid.UUID `json:"i"`
	Err string    `json:"error"`
	// Certain says that the broker refused the record, so it will not appear. Otherwise the outcome is unknown.
	Certain bool `json:"certain,omitempty"`
}

// Audit is a check of one consumer during a run. The committed offsets were read first, the decided events after them.
type Audit struct {
	Consumer   string           `json:"consumer"`
	Group      string           `json:"group"`
	Partitions []AuditPartition `json:"partitions"`
}

// AuditPartition is the part of an audit for one partition.
type AuditPartition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Committed int64  `json:"committed"` // the offset of the next event to handle; -1: none
	Checked   int64  `json:"checked"`   // number of checked records below Committed
	// Undecided are the records below Committed that the inbox did not know.
	Undecided []AuditRecord `json:"undecided,omitempty"`
}

// AuditRecord identifies a record.
type AuditRecord struct {
	Offset int64     `json:"offset"`
	ID     uuid.UUID `json:"id"`
}
