package operator

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// FoundEvent is where an event is, without its content.
type FoundEvent struct {
	// Where is "waiting", "claimed" by a relay, "held", "parked", "scheduled" or "archived": published.
	Where     string    `json:"where"`
	Lane      int16     `json:"lane"`
	ID        int64     `json:"id"`         // in the outbox; the seq of a scheduled event
	MessageID uuid.UUID `json:"message_id"` // zero: it gets one when it is due
	Tenant    string    `json:"tenant"`
	Topic     string    `json:"topic"`
	Key       string    `json:"key"`
	Type      string    `json:"type"`
	Bytes     int       `json:"bytes"` // of the payload; -1: a tombstone
	CreatedAt time.Time `json:"created_at"`
	// At is when it was held, parked or published, or when it is due; nil: it waits.
	At *time.Time `json:"at"`
	// Seq is the number that it is or was published under, 0: none yet, and Epoch the numbering of that number; empty:
	// this outbox's current one.
	Seq   int64  `json:"seq"`
	Epoch string `json:"epoch,omitempty"`
	Code  string `json:"code,omitempty"` // the reason why it is parked
	Error string `json:"error,omitempty"`
}

// Found is the result of Find.
type Found struct {
	Events []FoundEvent `json:"events"`
	// Unsearched names, one sentence each, the tables that were not searched completely, because they have no index for
	// it.
	Unsearched []string `json:"unsearched"`
}

// How many rows of each table Find reads and returns at most.
const (
	findRows = 10_000
	findMost = 100
)

// Trace returns where the events of a message id are parked or archived, by indexes only.
func (o *Operator) Trace(ctx context.Context, messageID uuid.UUID) ([]FoundEvent, error) {
	return o.found(ctx, sql.FindMessage, messageID, findMost)
}

// Find looks for events by a text that may be a key, a message id or an id, and tries all that it can be. It reads no
// table completely. A published event is found by its message id, if the outbox has an archive.
func (o *Operator) Find(ctx context.Context, text string) (f Found, err error) {
	defer f.more()
	if text == "" || !event.Storable(text) {
		return f, nil
	}
	if f.Events, err = o.found(ctx, sql.FindWaiting, nil, text, findRows, findMost); err == nil {
		err = o.unsearched(ctx, &f, &text, findRows)
	}
	if id, parseErr := strconv.ParseInt(text, 10, 64); err == nil && parseErr == nil && id > 0 {
		err = f.add(o.found(ctx, sql.FindID, id))
	}
	id, parseErr := uuid.Parse(text)
	if parseErr != nil {
		f.Unsearched = append(f.Unsearched,
			"What is published is found by its message id alone: the archive has no index "+
				"of ids and keys.")
		return f, err
	}
	const each = findRows / 32 // of a lane
	if err == nil {
		err = f.add(o.Trace(ctx, id))
	}
	if err == nil {
		err = f.add(o.found(ctx, sql.FindWaiting, id, nil, each, findMost))
	}
	if err == nil {
		err = o.unsearched(ctx, &f, nil, each)
	}
	return f, err
}

func (o *Operator) found(ctx context.Context, statement string, args ...any) ([]FoundEvent, error) {
	return audit.List(ctx, o.person, "looking for events", pgx.RowToStructByPos[FoundEvent], o.q(statement), args...)
}

// add keeps each event once: a text may be its key and its id.
func (f *Found) add(list []FoundEvent, err error) error {
	for _, e := range list {
		if !slices.ContainsFunc(f.Events, func(k FoundEvent) bool {
			return k.Where == e.Where && k.ID == e.ID && k.Lane == e.Lane && k.Epoch == e.Epoch && k.Seq == e.Seq
		}) {
			f.Events = append(f.Events, e)
		}
	}
	return err
}

// more names the tables that may have more events than are returned.
func (f *Found) more() {
	n := map[string]int{}
	for _, e := range f.Events {
		n[strings.Replace(e.Where, "claimed", "waiting", 1)]++
	}
	for _, table := range slices.Sorted(maps.Keys(n)) {
		if n[table] >= findMost {
			f.Unsearched = append(f.Unsearched, "Of what is "+table+", no more than "+strconv.Itoa(findMost)+
				" events are shown: there may be more.")
		}
	}
}

// unsearched names the tables of which FindWaiting has not read all rows of each lane.
func (o *Operator) unsearched(ctx context.Context, f *Found, key *string, rows int) error {
	tables, err := audit.List(ctx, o.person, "looking for events", pgx.RowTo[string], o.q(sql.FindMore), key, rows)
	by := "their key"
	if key == nil {
		by = "their message id"
	}
	for _, table := range tables {
		f.Unsearched = append(f.Unsearched, "Of what is "+table+", only the first "+strconv.Itoa(findRows)+
			" events were looked at for "+by+", of which there is no index.")
	}
	return err
}
