package history

import (
	"github.com/google/uuid"
)

// Input is the input of Check.
type Input struct {
	Histories []Process
	Dump      Dump
	Allowed   Allowed
}

// Allowed are the violations that the faults of a run explain. The zero value allows none.
type Allowed struct {
	// Names are violations that are counted but do not fail the run, each with the reason.
	Names map[Name]string
	// Unfinished says that the dump was taken during the run: events in flight, open claims and lag are no violations.
	Unfinished bool
	// Foreign says that the topics have records of other producers, without our headers.
	Foreign bool
	// Gone are topics whose records Kafka may have removed: deleted, created again, or expired. What is there must be
	// applied all the same.
	Gone map[string]bool
	// Grown are topics whose partition count was changed and accepted: keys may move and lose their order, and held
	// events go to other partitions under their old numbers.
	Grown map[string]bool
}

// Check checks the invariants of a run. It is a pure function. A million events take seconds, and some hundred bytes of
// memory each.
func Check(in Input) Verdict {
	r := newRun(&in)
	r.readHistories()
	r.checkAppends()
	r.readOutbox()
	r.checkLog()
	r.checkAccounts()
	r.checkNumbers()
	r.checkFences()
	r.checkConsumers()
	r.checkOffsets()
	if !in.Allowed.Unfinished {
		r.checkRest()
	}
	r.tell()
	v := r.found.verdict(in.Allowed.Names)
	v.Counts = r.counts
	return v
}

// run is the state of one Check.
type run struct {
	in     *Input
	dump   *Dump
	found  findings
	counts Counts

	at     map[uuid.UUID]int32 // index of a committed event in events
	events []eventState        // parallel to dump.Business
	lists  map[listKey]int32   // numbers of (tenant, topic, key)
	// mended are events whose order or content an operator changed.
	mended map[uuid.UUID]bool
	// maybePublished are events that were discarded after an attempt: they may appear once more, late.
	maybePublished map[uuid.UUID]bool
	relayed        bool // relays have written histories
	decided        map[string][]uuid.UUID
	epochs         map[string]int32
	given          map[number]use // numbers that relays used, written or not
}

type listKey struct{ tenant, topic, key string }

// number is a lane's number in one numbering.
type number struct {
	seq   int64
	epoch int32
	lane  int16
}

// use is the event of a number, and whether the log has it.
type use struct {
	id    uuid.UUID
	inLog bool
}

// eventState is the state of a committed event.
type eventState struct {
	list    int32 // its key's number; -1: keyless, no order
	records int32
	first   int32 // its first record; -1: none
	place   place
	seen    seen
	several bool // the log has it under more than one number
}

// place is a set of tables of the outbox.
type place uint8

const (
	inOutbox place = 1 << iota
	inScheduled
	inHeld
	inParked
	inArchive
)

// seen are flags of the entries about an event.
type seen uint8

const (
	seenAppend  seen = 1 << iota // a producer was about to commit it
	seenOK                       // and its COMMIT succeeded
	seenFailed                   // or certainly failed
	seenSent                     // a relay handed it to the publisher
	seenAcked                    // and it was acknowledged
	seenRefused                  // or refused
)

func newRun(in *Input) *run {
	r := &run{
		in: in, dump: &in.Dump, found: findings{}, at: make(map[uuid.UUID]int32, len(in.Dump.Business)),
		events: make([]eventState, len(in.Dump.Business)), lists: map[listKey]int32{}, mended: map[uuid.UUID]bool{},
		maybePublished: map[uuid.UUID]bool{}, given: map[number]use{}, epochs: map[string]int32{},
		decided: map[string][]uuid.UUID{},
	}
	for i := range r.dump.Business {
		e := &r.dump.Business[i]
		if _, again := r.at[e.ID]; !again { // producers may append an id twice on purpose
			r.at[e.ID] = int32(i)
		}
		r.events[i] = eventState{list: -1, first: -1}
		if e.Key != "" {
			k := listKey{e.Tenant, e.Topic, e.Key}
			n, ok := r.lists[k]
			if !ok {
				n = int32(len(r.lists))
				r.lists[k] = n
			}
			r.events[i].list = n
		}
	}
	for _, id := range r.dump.Mended {
		r.mended[id] = true
	}
	r.counts.Events = len(r.at)
	return r
}

// event finds a committed event.
func (r *run) event(id uuid.UUID) (*Event, *eventState, bool) {
	i, ok := r.at[id]
	if !ok {
		return nil, nil, false
	}
	return &r.dump.Business[i], &r.events[i], true
}

// ordered reports whether an event's version defines its order within its key.
func (r *run) ordered(e *Event) bool {
	return e.Key != "" && e.Version > 0 && !e.Scheduled && !r.mended[e.ID] && !r.maybePublished[e.ID]
}

// number makes a number with an interned epoch.
func (r *run) number(epoch string, lane int16, seq int64) number {
	n, ok := r.epochs[epoch]
	if !ok {
		n = int32(len(r.epochs))
		r.epochs[epoch] = n
	}
	return number{seq, n, lane}
}

func one(id uuid.UUID) []uuid.UUID { return []uuid.UUID{id} }
