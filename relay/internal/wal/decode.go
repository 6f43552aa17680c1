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

// item has the data of an event that are not part of the event.
type item struct {
	ID     int64  // in the outbox
	Commit uint64 // LSN of its transaction's commit record
	Nth    int32  // among the events of its transaction, from 0
	XID    uint32 // of its transaction
	Lane   int16
}

// batch has the read events, in the order of commits.
type batch struct {
	Events []event.Event
	Items  []item
	// Pos is the end of the last complete transaction, or a later position up to which the server has no events. Every
	// event of an earlier transaction is in this batch or in an earlier one.
	Pos uint64
	Due time.Time // the earliest due time of scheduled events; zero: none
	// Changed are the transactions of operators whose changes the relay must read.
	Changed []uint32

	bytes int
}

// prefix marks the relay's own messages in the WAL.
const prefix = "effectonce"

// errUnread: a message on the replication connection is not valid pgoutput, or not of the outbox's tables.
var errUnread = errors.New("relay: the WAL's stream is not understood")

// decoder reads pgoutput's protocol, version 1, with binary values: whole transactions, in the order of their
// commits. (https://www.postgresql.org/docs/15/protocol-logicalrep-message-formats.html)
type decoder struct {
	overhead int // of an event in memory, beside its values
	tables   map[uint32]table
	values   pg.Copier
	inside   bool // inside a transaction
	commit   uint64
	xid      uint32
	nth      int32
	row      row // the row that is being read
}

// table is a table of the publication, with a reader for each column; nil: the column is ignored.
type table struct {
	scheduled bool
	columns   []column
}

// column decodes a non-null value into the decoder's row.
type column func(d *decoder, v []byte) error

// row is an inserted row.
type row struct {
	item
	event.Event
	created, due time.Time
}

// columns are the decoded columns by name.
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

// message is read from its front. A read beyond its end marks it as broken.
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

// decode adds one message to a batch.
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
		// Inside a transaction: an operator's change. Outside of one: a heartbeat, which needs no action.
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

// insert decodes a row: an event, or the due time of a scheduled one.
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
		case kind == 't' && read == nil: // an added column, whose type has no binary form
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

// timestamp decodes a timestamptz: microseconds since 2000.
func timestamp(v []byte) (time.Time, error) {
	micros, err := bigint(v)
	const epoch = 946684800
	return time.Unix(epoch+micros/1_000_000, micros%1_000_000*1000).UTC(), err
}

// headers decodes a jsonb object, which begins with the version of its binary format.
func headers(v []byte, to *map[string]string) error {
	if len(v) == 0 || v[0] != 1 {
		return errors.New("headers in another format")
	}
	return json.Unmarshal(v[1:], to)
}
