package relay

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// walItem is what the follower knows of an event beside the event itself.
type walItem struct {
	id     int64  // in the outbox
	commit uint64 // LSN of its transaction's commit record
	nth    int32  // among the events of its transaction, from 0
	xid    uint32 // of its transaction
	lane   int16
}

// walBatch is what the reader has for the follower: events in the order of commits.
type walBatch struct {
	events []event.Event
	items  []walItem
	bytes  int
	// pos is the end of the last whole transaction, or a later place up to which the server has nothing for us. Every
	// event of an earlier transaction is in this batch or in an earlier one.
	pos uint64
	due time.Time // the earliest time of what was scheduled; zero: nothing was
	// asked are the transactions in which somebody has changed something that the relay looks at with SQL.
	asked []uint32
}

// full: the reader must wait.
func (b *walBatch) full(cfg *Config) bool {
	return len(b.events) >= cfg.ClaimEvents || b.bytes >= cfg.ClaimBytes
}

// walPrefix marks messages of ours in the WAL.
const walPrefix = "effectonce"

// errWAL: what came over the replication connection is not what pgoutput sends, or not of our tables.
var errWAL = errors.New("relay: the WAL's stream is not understood")

// walDecoder reads pgoutput's protocol, version 1, with binary values: whole transactions, in the order of their
// commits. (https://www.postgresql.org/docs/15/protocol-logicalrep-message-formats.html)
type walDecoder struct {
	relations map[uint32]walRelation
	strings   map[string]string // topics, types and the like: a few come again and again
	slab      []byte            // of small payloads, which live and die together
	inside    bool              // a transaction
	commit    uint64
	xid       uint32
	nth       int32
}

// walRelation is a table of the publication: for each column that comes, what it is.
type walRelation struct {
	scheduled bool
	columns   []walColumn
}

type walColumn int8

const (
	walOther walColumn = iota
	walID
	walMessageID
	walSource
	walTenant
	walTopic
	walKey
	walType
	walContentType
	walHeaders
	walPayload
	walEventTime
	walCreatedAt
	walDue
)

// walColumns are the columns that are read, by name.
func walColumns() map[string]walColumn {
	return map[string]walColumn{
		"id": walID, "message_id": walMessageID, "source": walSource, "tenant": walTenant, "topic": walTopic, "key": walKey, "type": walType,
		"content_type": walContentType, "headers": walHeaders, "payload": walPayload, "event_time": walEventTime, "created_at": walCreatedAt,
		"due": walDue,
	}
}

// mostStrings bounds what is kept of texts that were expected to come again.
const mostStrings = 10_000

func newWALDecoder() *walDecoder {
	return &walDecoder{relations: map[uint32]walRelation{}, strings: make(map[string]string, 16)}
}

// walText is a message that is read from its front. A read beyond its end makes it broken.
type walText struct {
	b      []byte
	broken bool
}

func (t *walText) take(n int) []byte {
	if n < 0 || n > len(t.b) {
		t.broken, t.b = true, nil
		return nil
	}
	v := t.b[:n:n]
	t.b = t.b[n:]
	return v
}

func (t *walText) u8() byte {
	if v := t.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (t *walText) u16() int {
	if v := t.take(2); v != nil {
		return int(binary.BigEndian.Uint16(v))
	}
	return 0
}

func (t *walText) u32() uint32 {
	if v := t.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (t *walText) u64() uint64 {
	if v := t.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (t *walText) name() string {
	end := bytes.IndexByte(t.b, 0)
	if end < 0 {
		t.broken = true
		return ""
	}
	v := string(t.b[:end])
	t.b = t.b[end+1:]
	return v
}

// message takes one message into a batch.
func (d *walDecoder) message(b []byte, to *walBatch) error {
	t := &walText{b: b}
	kind := t.u8()
	switch kind {
	case 'B':
		commit, _, xid := t.u64(), t.u64(), t.u32()
		d.inside, d.commit, d.xid, d.nth = true, commit, xid, 0
	case 'C':
		_, _, end := t.u8(), t.u64(), t.u64()
		if !t.broken {
			d.inside, to.pos = false, max(to.pos, end)
		}
	case 'R':
		d.relation(t)
	case 'I':
		if err := d.insert(t, to); err != nil {
			return err
		}
	case 'M':
		// In a transaction: somebody has changed something. Beside one: a heartbeat, whose work is done.
		flags, _, prefix, _ := t.u8(), t.u64(), t.name(), t.take(int(t.u32()))
		if flags&1 != 0 && !t.broken && prefix == walPrefix {
			to.asked = append(to.asked, d.xid)
		}
	}
	if t.broken {
		return fmt.Errorf("%w: message %q of %d bytes ends early", errWAL, kind, len(b))
	}
	return nil
}

func (d *walDecoder) relation(t *walText) {
	id := t.u32()
	_, name, _ := t.name(), t.name(), t.u8()
	known := walColumns()
	rel := walRelation{scheduled: name == "outbox_scheduled"}
	for range t.u16() {
		if t.broken {
			return
		}
		t.u8()
		rel.columns = append(rel.columns, known[t.name()])
		t.u32()
		t.u32()
	}
	d.relations[id] = rel
}

// insert takes a row: an event, or news of a scheduled one.
func (d *walDecoder) insert(t *walText, to *walBatch) error {
	rel, known := d.relations[t.u32()]
	if tuple := t.u8(); !known || tuple != 'N' || !d.inside {
		return fmt.Errorf("%w: an insert without its table, its row or its transaction", errWAL)
	}
	n := t.u16()
	if n != len(rel.columns) {
		return fmt.Errorf("%w: a row of %d columns in a table of %d", errWAL, n, len(rel.columns))
	}
	var e event.Event
	it := walItem{commit: d.commit, xid: d.xid, nth: d.nth}
	var created, due time.Time
	size := 0
	for _, column := range rel.columns {
		var v []byte
		switch kind := t.u8(); {
		case kind == 'n':
		case kind == 'b':
			v = t.take(int(t.u32()))
			size += len(v)
		case kind == 't' && column == walOther: // of somebody's own column, whose type has no binary form
			t.take(int(t.u32()))
		default:
			return fmt.Errorf("%w: a value in format %q", errWAL, kind)
		}
		if t.broken {
			return fmt.Errorf("%w: a row ends early", errWAL)
		}
		if err := d.value(column, v, &e, &it, &created, &due); err != nil {
			return err
		}
	}
	if rel.scheduled {
		if !due.IsZero() && (to.due.IsZero() || due.Before(to.due)) {
			to.due = due
		}
		return nil
	}
	if e.Time.IsZero() {
		e.Time = created
	}
	it.lane = laneOf([]byte(e.Key), e.ID)
	d.nth++
	to.events, to.items, to.bytes = append(to.events, e), append(to.items, it), to.bytes+size+eventOverhead
	return nil
}

// value takes one column of a row; v is nil for null.
func (d *walDecoder) value(column walColumn, v []byte, e *event.Event, it *walItem, created, due *time.Time) (err error) {
	if v == nil {
		return nil
	}
	switch column {
	case walID:
		if len(v) != 8 {
			return fmt.Errorf("%w: an id of %d bytes", errWAL, len(v))
		}
		it.id = int64(binary.BigEndian.Uint64(v))
	case walMessageID:
		e.ID, err = uuid.FromBytes(v)
	case walSource:
		e.Source = d.text(v)
	case walTenant:
		e.Tenant = d.text(v)
	case walTopic:
		e.Topic = d.text(v)
	case walType:
		e.Type = d.text(v)
	case walContentType:
		e.ContentType = d.text(v)
	case walKey:
		e.Key = string(v)
	case walHeaders:
		if len(v) == 0 || v[0] != 1 { // the version of jsonb's binary format
			return fmt.Errorf("%w: headers in another format", errWAL)
		}
		err = json.Unmarshal(v[1:], &e.Headers)
	case walPayload:
		e.Payload = d.payload(v)
	case walEventTime:
		e.Time, err = walTime(v)
	case walCreatedAt:
		*created, err = walTime(v)
	case walDue:
		*due, err = walTime(v)
	case walOther:
	}
	if err != nil {
		return fmt.Errorf("%w: event %s: %w", errWAL, e.ID, err)
	}
	return nil
}

// walTime is a timestamptz: microseconds since 2000.
func walTime(v []byte) (time.Time, error) {
	if len(v) != 8 {
		return time.Time{}, fmt.Errorf("a time of %d bytes", len(v))
	}
	const epoch = 946684800
	micros := int64(binary.BigEndian.Uint64(v))
	return time.Unix(epoch+micros/1_000_000, micros%1_000_000*1000).UTC(), nil
}

func (d *walDecoder) text(v []byte) string {
	s, ok := d.strings[string(v)]
	if !ok {
		if len(d.strings) >= mostStrings {
			clear(d.strings)
		}
		s = string(v)
		d.strings[s] = s
	}
	return s
}

// payload copies a payload out of the connection's buffer. Empty does not become nil.
func (d *walDecoder) payload(v []byte) []byte {
	if len(v) > slabSize/4 {
		return bytes.Clone(v)
	}
	if len(v) > cap(d.slab)-len(d.slab) || d.slab == nil {
		d.slab = make([]byte, 0, slabSize)
	}
	at := len(d.slab)
	d.slab = append(d.slab, v...)
	return d.slab[at:len(d.slab):len(d.slab)]
}
