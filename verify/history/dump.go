package history

import (
	"time"

	"github.com/google/uuid"
)

// Dump is the final state of a run. Package dump reads it.
type Dump struct {
	Now      time.Time // by the database's clock
	Business []Event   // committed events
	Effects  []Effect  // in the order in which they were written
	Ledger   []Booking

	Rows     []Row // of the outbox's tables
	Keys     []ParkedKey
	Claims   []Claim
	Lanes    []Lane
	Discards []Discard
	// Mended are events that an operator edited, or released without their key, which changes their content or order.
	Mended []uuid.UUID

	Records []Record // by topic, partition and offset
	Ends    []End

	Consumers   []Consumer
	Inbox       []InboxRow
	InboxParked []InboxParked
	InboxKeys   []InboxKey
	Halted      []Halted
	Offsets     []Offset
	// DroppedBefore is the first day (UTC) whose ids the inbox still has.
	DroppedBefore time.Time
}

// Place is a table of the outbox.
type Place string

// Places of a Row.
const (
	PlaceOutbox    Place = "outbox_event"
	PlaceScheduled Place = "outbox_scheduled"
	PlaceHeld      Place = "outbox_held"
	PlaceParked    Place = "outbox_parked"
	PlaceArchive   Place = "outbox_archive"
)

// Row is an event in a table of the outbox.
type Row struct {
	Place  Place     `json:"place"`
	Lane   int16     `json:"lane"`
	Number int64     `json:"number"` // the outbox id
	ID     uuid.UUID `json:"id"`
	// Of parked events.
	Refused        bool   `json:"refused,omitempty"`   // it was refused; otherwise it waits behind a refused one
	Releasing      bool   `json:"releasing,omitempty"` // alone, and being released
	MaybePublished bool   `json:"maybe,omitempty"`     // an attempt may have written it
	Code           string `json:"code,omitempty"`
}

// ParkedKey is a parked key of the outbox, with the length of its list.
type ParkedKey struct {
	Tenant, Topic, Key string
	Releasing          bool
	Waiting            int64
}

// Claim is an open journal entry.
type Claim struct {
	Lane   int16
	First  int64
	Events int
}

// Lane is the owner of a lane.
type Lane struct {
	Lane  int16
	Owned bool
	Fence int64
	// Overdue says that its owner's lease has expired. A clean drain leaves a lane free.
	Overdue bool
}

// Discard is a discard in the outbox's audit, of one event, of a key's whole list, or of events of a topic.
type Discard struct {
	ID                 uuid.UUID // zero: of a key, or of a topic
	Tenant, Topic, Key string
	AnyKey             bool // of a topic
	Scheduled          bool // only events that were scheduled
	Events             int64
	MaybePublished     bool
}

// Record is a record in Kafka, with the values of its headers. An ID that is missing or not a UUID is zero.
type Record struct {
	Topic          string    `json:"topic"`
	Partition      int32     `json:"partition"`
	Offset         int64     `json:"offset"`
	ID             uuid.UUID `json:"id"`
	Tenant         string    `json:"tenant,omitempty"`
	Key            string    `json:"key,omitempty"`
	Epoch          string    `json:"epoch,omitempty"`
	Lane           int16     `json:"lane"`
	Seq            int64     `json:"seq"`
	MaybePublished bool      `json:"maybe,omitempty"`
	Version        int64     `json:"version,omitempty"` // 0: missing
	Digest         int64     `json:"digest,omitempty"`
}

// End has the first and the end offset of a partition.
type End struct {
	Topic      string
	Partition  int32
	First, End int64
}

// Consumer is a consumer and its topics.
type Consumer struct {
	Name       string
	Topics     []string
	WindowDays int
	// ByNumber says that it has no row per event; see Dump.Imply.
	ByNumber bool
}

// Imply adds the rows that a consumer by number would have by id, so that the same checks apply: its effect is written
// in the transaction that advances the watermark past the event. An event that an operator discarded because it was
// applied counts as done.
func (d *Dump) Imply() {
	for _, c := range d.Consumers {
		if !c.ByNumber {
			continue
		}
		effects := map[uuid.UUID]bool{}
		for i := range d.Effects {
			if d.Effects[i].Consumer == c.Name {
				effects[d.Effects[i].ID] = true
			}
		}
		for i := range d.Inbox {
			if row := &d.Inbox[i]; row.Consumer == c.Name && effects[row.ID] {
				row.Status = "done"
				delete(effects, row.ID)
			}
		}
		for id := range effects {
			d.Inbox = append(d.Inbox, InboxRow{Consumer: c.Name, ID: id, Status: "done"})
		}
	}
}

// InboxRow is an id that a consumer has decided. Its status is "done" or "discarded".
type InboxRow struct {
	Consumer string
	ID       uuid.UUID
	Status   string
	Any      bool // in inbox_message_any
}

// InboxParked is a parked event of the inbox.
type InboxParked struct {
	Consumer  string
	ID        uuid.UUID
	Kind      string // failed, behind, quarantined
	Code      string
	Alone     bool
	Releasing bool
}

// InboxKey is a blocked key of the inbox, with the length of its list.
type InboxKey struct {
	Consumer, Topic, Key string
	Releasing            bool
	Waiting              int64
}

// Halted is a halted partition.
type Halted struct {
	Consumer, Topic string
	Partition       int32
	Offset          int64
	Error           string
}

// Offset is a group's committed offset: that of the next event to handle, or -1.
type Offset struct {
	Consumer, Topic string
	Partition       int32
	Committed       int64
}

// Effect is one effect of an event.
type Effect struct {
	Consumer  string
	ID        uuid.UUID
	Version   int64
	Business  string
	Partition int32
	Offset    int64
}

// Booking is a row of the ledger.
type Booking struct {
	Consumer, Business string
	ID                 uuid.UUID
}
