package wal

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
)

// item is what is known of an event beside the event itself.
type item struct {
	ID     int64  // in the outbox
	Commit uint64 // LSN of its transaction's commit record
	Nth    int32  // among the events of its transaction, from 0
	XID    uint32 // of its transaction
	Lane   int16
}

// batch is what was read: events in the order of commits.
type batch struct {
	Events []event.Event
	Items  []item
	// Pos is the end of the last whole transaction, or a later place up to which the server has nothing for us. Every
	// event of an earlier transaction is in this batch or in an earlier one.
	Pos uint64
	Due time.Time // the earliest time of what was scheduled; zero: nothing was
	// Changed are the transactions in which somebody has changed something that the relay looks at with SQL.
	Changed []uint32

	bytes int
}

// prefix marks messages of ours in the WAL.
const prefix = "effectonce"

// errUnread: what came over the replication connection is not what pgoutput sends, or not of our tables.
var errUnread = errors.New("relay: the WAL's stream is not understood")

// decoder reads pgoutput's protocol, version 1, with binary values: whole transactions, in the order of their
// commits. (https://www.postgresql.org/docs/15/protocol-logicalrep-message-formats.html)
type decoder struct {
	overhead int // of an event in memory, beside its values
	tables   map[uint32]table
	values   pg.Copier
	inside   bool // a transaction
	commit   uint64
	xid      uint32
	nth      int32
	row      row // that is being read
}

// table is one of the publication, with what reads each column that comes; nil: nothing does.
type table struct {
	scheduled bool
	columns   []column
}

// column reads a value that is not null into the decoder's row.
type column func(d *decoder, v []byte) error

// row is one that was inserted.
type row struct {
	item
	event.Event
	created, due time.Time
}

// columns are those that are read, by name.
func columns() map[string]column {
	text := func(to func(d *decoder) *string) column {
		return func(d *decoder, v []byte) error { *to(d) = d.values.Text(v); return nil }
	}
	at := func(to func(d *decoder) *time.Time) column {
		return func(d *decoder, v []byte) (err error) { *to(d), err = timestamp(v); return err }
	}
	return map[string]column{
		"id":           func(d *decoder, v []byte) (err error) { d.row.item.ID, err = bigint(v); return err },
		"message_id":   func(d *decoder, v []byte) (err error) { d.row.Event.ID, err = uuid.FromBytes(v); return err },
		"source":       text(func(d *decoder) *string { return &d.row.Source }),
		"tenant":       text(func(d *decoder) *string { return &d.row.Tenant }),
		"topic":        text(func(d *decoder) *string { return &d.row.Topic }),
		"type":         text(func(d *decoder) *string { return &d.row.Type }),
		"content_type": text(func(d *decoder) *string { return &d.row.ContentType }),
		"key":          func(d *decoder, v []byte) error { d.row.Key = string(v); return nil },
		"headers":      func(d *decoder, v []byte) error { return headers(v, &d.row.Headers) },
		"payload":      func(d *decoder, v []byte) error { d.row.Payload = d.values.Bytes(v); return nil },
		"event_time":   at(func(d *decoder) *time.Time { return &d.row.Time }),
		"created_at":   at(func(d *decoder) *time.Time { return &d.row.created }),
		"due":          at(func(d *decoder) *time.Time { return &d.row.due }),
	}
}

func newDecoder(overhead int) *decoder {
	return &decoder{overhead: overhead, tables: map[uint32]table{}}
}

// message is read from its front. A read beyond its end makes it broken.
type message struct {
	b      []byte
	broken bool
}

func (m *message) take(n int) []byte {
	if n < 0 || n > len(m.b) {
		m.broken, m.b = true, nil
		return nil
	}
	v := m.b[:n:n]
	m.b = m.b[n:]
	return v
}

func (m *message) u8() byte {
	if v := m.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (m *message) u16() int {
	if v := m.take(2); v != nil {
		return int(binary.BigEndian.Uint16(v))
	}
	return 0
}

func (m *message) u32() uint32 {
	if v := m.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (m *message) u64() uint64 {
	if v := m.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (m *message) name() string {
	end := bytes.IndexByte(m.b, 0)
	if end < 0 {
		m.broken = true
		return ""
	}
	v := string(m.b[:end])
	m.b = m.b[end+1:]
	return v
}

// decode takes one message into a batch.
func (d *decoder) decode(b []byte, to *batch) error {
	m := &message{b: b}
	kind := m.u8()
	switch kind {
	case 'B':
		commit, _, xid := m.u64(), m.u64(), m.u32()
		d.inside, d.commit, d.xid, d.nth = true, commit, xid, 0
	case 'C':
		_, _, end := m.u8(), m.u64(), m.u64()
		if !m.broken {
			d.inside, to.Pos = false, max(to.Pos, end)
		}
	case 'R':
		d.relation(m)
	case 'I':
		if err := d.insert(m, to); err != nil {
			return fmt.Errorf("%w: %w", errUnread, err)
		}
	case 'M':
		// In a transaction: somebody has changed something. Beside one: a heartbeat, whose work is done.
		flags, _, whose, _ := m.u8(), m.u64(), m.name(), m.take(int(m.u32()))
		if flags&1 != 0 && !m.broken && whose == prefix {
			to.Changed = append(to.Changed, d.xid)
		}
	}
	if m.broken {
		return fmt.Errorf("%w: message %q of %d bytes ends early", errUnread, kind, len(b))
	}
	return nil
}

func (d *decoder) relation(m *message) {
	id := m.u32()
	_, name, _ := m.name(), m.name(), m.u8()
	known, t := columns(), table{scheduled: name == "outbox_scheduled"}
	for n := m.u16(); n > 0 && !m.broken; n-- {
		m.u8()
		t.columns = append(t.columns, known[m.name()])
		m.u32()
		m.u32()
	}
	if !m.broken {
		d.tables[id] = t
	}
}

// insert takes a row: an event, or news of a scheduled one.
func (d *decoder) insert(m *message, to *batch) error {
	t, known := d.tables[m.u32()]
	if tuple := m.u8(); !known || tuple != 'N' || !d.inside {
		return errors.New("an insert without its table, its row or its transaction")
	}
	if n := m.u16(); m.broken || n != len(t.columns) {
		return fmt.Errorf("a row of %d columns in a table of %d", n, len(t.columns))
	}
	r, size := &d.row, 0
	*r = row{item: item{Commit: d.commit, XID: d.xid, Nth: d.nth}}
	for _, read := range t.columns {
		var v []byte
		switch kind := m.u8(); {
		case kind == 'n':
		case kind == 'b':
			v = m.take(int(m.u32()))
			size += len(v)
		case kind == 't' && read == nil: // of somebody's own column, whose type has no binary form
			m.take(int(m.u32()))
		default:
			return fmt.Errorf("a value in format %q", kind)
		}
		if m.broken {
			return errors.New("a row ends early")
		}
		if v == nil || read == nil {
			continue
		}
		if err := read(d, v); err != nil {
			return fmt.Errorf("event %s: %w", r.Event.ID, err)
		}
	}
	if t.scheduled {
		if !r.due.IsZero() && (to.Due.IsZero() || r.due.Before(to.Due)) {
			to.Due = r.due
		}
		return nil
	}
	if r.Time.IsZero() {
		r.Time = r.created
	}
	r.Lane = int16(hash(&r.Event) & (lanes.Count - 1))
	d.nth++
	to.Events, to.Items, to.bytes = append(to.Events, r.Event), append(to.Items, r.item), to.bytes+size+d.overhead
	return nil
}

func bigint(v []byte) (int64, error) {
	if len(v) != 8 {
		return 0, fmt.Errorf("a number of %d bytes", len(v))
	}
	return int64(binary.BigEndian.Uint64(v)), nil
}

// timestamp is a timestamptz: microseconds since 2000.
func timestamp(v []byte) (time.Time, error) {
	micros, err := bigint(v)
	const epoch = 946684800
	return time.Unix(epoch+micros/1_000_000, micros%1_000_000*1000).UTC(), err
}

// headers is a jsonb object, which begins with the version of its binary format.
func headers(v []byte, to *map[string]string) error {
	if len(v) == 0 || v[0] != 1 {
		return errors.New("headers in another format")
	}
	return json.Unmarshal(v[1:], to)
}
