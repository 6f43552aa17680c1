package consumer

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/effectonce/effectonce/event"
)

// Bits of a batch's attributes, and sizes in bytes.
const (
	attrCompression   = 0x07
	attrLogAppendTime = 1 << 3
	attrTransactional = 1 << 4
	attrControl       = 1 << 5
	batchHead         = 61
	minRecord         = 7 // size of the smallest record
)

// Memory of an Event and of one header, in addition to their bytes in the log.
const (
	eventOverhead  = 320
	headerOverhead = 128
)

// Limits of a decoder's cache of header names: entries, and bytes of a name.
const (
	maxNames    = 256
	maxNameSize = 64
)

// chunk is a decoded piece of a partition's log.
type chunk struct {
	events []event.Event
	next   int64 // the offset after the chunk, past control and compacted records
	bytes  int64 // approximate memory: its events, and each whole batch that they are from
	epoch  int32 // the leader epoch of its batches; -1: not known

	begins *beginning // the log begins, or continues elsewhere, at next: the chunk has no events; nil: it does not
}

func (c chunk) empty() bool { return len(c.events) == 0 && c.begins == nil && c.next == 0 }

// decoder decodes the record batches of one partition into events. It is not safe for concurrent use.
type decoder struct {
	topic     string
	partition int32
	idHeader  string
	lacksID   func(offset int64, like string) // nil: ids are not expected
	ownTimes  bool                            // a time that the broker set is not kept
	maxBatch  int
	table     *crc32.Table

	after   int64             // the offset after the last event that was decoded; -1: none was
	names   map[string]string // header names seen so far: a topic has few
	headers []event.Header    // reused: event.Decode copies what it keeps

	zstd *zstd.Decoder // nil until the first zstd batch
	open *openBatch    // the batch that next continues with
}

// openBatch is a batch in progress: it may have more records than fit into a chunk.
type openBatch struct {
	*batchHeader
	records reader
	size    int64 // bytes of all records, uncompressed
	read    int   // number of records read
	seen    int64 // offset of the last record read
	rest    []byte
	err     error // why the next record cannot be decoded
}

func newDecoder(topic string, partition int32, idHeader string, maxBatch int) *decoder {
	return &decoder{
		topic: topic, partition: partition, idHeader: idHeader, maxBatch: maxBatch,
		table: crc32.MakeTable(crc32.Castagnoli), after: -1, names: map[string]string{},
	}
}

// batchHeader is the header of a record batch (format 2).
type batchHeader struct {
	base, last       int64
	epoch            int32 // of the leader that appended it
	attributes       int16
	firstTime, stamp int64
	producer         int64
	count            int
	body             []byte
}

// transactions tracks which producers have an aborted transaction open, while the batches of one fetch are read in
// order.
type transactions struct {
	pending []abortedTxn
	open    map[int64]bool
}

// skip reports whether a batch belongs to an aborted transaction. An aborted transaction begins at the first offset
// that the broker lists for it, and ends at its producer's next control batch.
func (t *transactions) skip(h *batchHeader) bool {
	if len(t.pending) == 0 && len(t.open) == 0 {
		return false
	}
	rest := t.pending[:0]
	for _, a := range t.pending {
		if a.first > h.last {
			rest = append(rest, a)
			continue
		}
		if t.open == nil {
			t.open = map[int64]bool{}
		}
		t.open[a.producer] = true
	}
	t.pending = rest
	if h.attributes&attrControl != 0 {
		delete(t.open, h.producer)
		return false
	}
	return h.attributes&attrTransactional != 0 && t.open[h.producer]
}

// next decodes records from b until the chunk has want bytes or b ends. It leaves out records below from. It returns
// the rest of b, which begins with the batch in progress if the chunk ends within one, and is nil if no whole batch is
// left. If a record cannot be decoded, next returns the events before it; the next call returns the error.
func (d *decoder) next(b []byte, from int64, want int, txns *transactions) (chunk, []byte, error) {
	c := chunk{next: from, epoch: -1}
	if d.after < 0 || d.after > from {
		d.after = from
	}
	for left := int64(want); left > 0; {
		err := d.begin(b, c.next, txns)
		if err == nil && d.open == nil {
			return c, nil, nil
		}
		if err == nil && c.next > from && c.epoch != d.open.epoch {
			return c, b, nil // the epoch is committed with each offset of the chunk
		}
		if err == nil {
			err = d.records(&c, &left)
		}
		if err != nil {
			if c.next > from {
				err = nil // the next call returns it
			}
			return c, b, err
		}
		if c.epoch = d.open.epoch; d.open.read >= d.open.count {
			c.next, b, d.open = max(c.next, d.open.last+1), d.open.rest, nil
		}
	}
	return c, b, nil
}

// begin opens the first batch of b unless a batch is open. It opens none if b holds no whole batch. A batch without
// records for the handler (aborted, control, or all below from) is opened as read.
func (d *decoder) begin(b []byte, from int64, txns *transactions) error {
	if d.open != nil {
		return d.open.err
	}
	h, rest, err := d.head(b)
	if h == nil {
		return err
	}
	d.open = &openBatch{batchHeader: h, rest: rest, read: h.count, seen: h.base - 1}
	if txns.skip(h) || h.attributes&attrControl != 0 || h.last < from {
		return nil
	}
	body, err := d.inflate(h)
	if err != nil {
		d.open = nil
		return err
	}
	d.open.records, d.open.size, d.open.read = reader{b: body}, int64(len(body)), 0
	return nil
}

// inOrder checks the offsets of the whole batches in b, which no checksum covers: they rise, and are below end, the
// high watermark; -1: not known. A leader notes it before it reads: what was appended in between follows without a gap,
// from the offset of the fetch on.
func inOrder(b []byte, from, end int64) error {
	be := binary.BigEndian
	for next := int64(0); len(b) >= batchHead && b[16] == 2; {
		base, length := int64(be.Uint64(b)), int64(int32(be.Uint32(b[8:])))
		if length < batchHead-12 || length+12 > int64(len(b)) {
			break // the decoder says so
		}
		last := base + int64(int32(be.Uint32(b[23:])))
		if base < next || last < base || end >= 0 && last >= end && base > from {
			return fmt.Errorf("the record batch at offset %d is before offset %d, or beyond the end of the log, %d",
				base, next, end)
		}
		next, b = last+1, b[length+12:]
		from = max(from, next)
	}
	return nil
}

// head splits the first batch off b. It returns nil if b holds no whole batch.
func (d *decoder) head(b []byte) (*batchHeader, []byte, error) {
	if len(b) < 17 {
		return nil, nil, nil
	}
	be := binary.BigEndian
	base, length := int64(be.Uint64(b)), int64(int32(be.Uint32(b[8:])))
	if magic := b[16]; magic != 2 {
		return nil, nil, fmt.Errorf("the records at offset %d have format %d: only format 2 (Kafka 0.11 and newer) "+
			"is read", base, magic)
	}
	if length < batchHead-12 {
		return nil, nil, fmt.Errorf("the record batch at offset %d has an impossible length", base)
	}
	if length+12 > int64(len(b)) {
		return nil, nil, nil
	}
	batch, rest := b[:length+12], b[length+12:]
	if crc32.Checksum(batch[21:], d.table) != be.Uint32(batch[17:]) {
		return nil, nil, fmt.Errorf("the record batch at offset %d has a wrong checksum", base)
	}
	h := &batchHeader{
		base: base, last: base + int64(int32(be.Uint32(batch[23:]))), epoch: int32(be.Uint32(batch[12:])),
		attributes: int16(be.Uint16(batch[21:])),
		firstTime:  int64(be.Uint64(batch[27:])), stamp: int64(be.Uint64(batch[35:])),
		producer: int64(be.Uint64(batch[43:])), count: int(int32(be.Uint32(batch[57:]))),
		body: batch[batchHead:len(batch):len(batch)],
	}
	if h.last < h.base {
		return nil, nil, fmt.Errorf("the record batch at offset %d ends before it begins", base)
	}
	return h, rest, nil
}

// records appends the open batch's events at or above c.next, until they have used the bytes left.
func (d *decoder) records(c *chunk, left *int64) error {
	o := d.open
	from := c.next
	if o.read < o.count {
		c.bytes += o.size
	}
	for ; o.read < o.count && *left > 0; o.read++ {
		raw := o.records.bytes()
		rec := event.Record{Topic: d.topic, Partition: d.partition}
		if o.err = d.record(raw, &rec); o.err != nil {
			return o.err
		}
		o.seen = rec.Offset
		if rec.Offset < from {
			continue
		}
		e := event.Decode(&rec, d.idHeader)
		if d.lacksID != nil {
			if lacks, like := lacksID(&e, &rec, d.idHeader); lacks {
				d.lacksID(rec.Offset, like)
			}
		}
		if d.ownTimes && o.attributes&attrLogAppendTime != 0 {
			e.Position.Timestamp = time.Time{}
		}
		e.Raw, e.Position.Absent = raw, rec.Offset-d.after
		d.after = rec.Offset + 1
		if c.events == nil {
			c.events = make([]event.Event, 0, min(o.count-o.read, len(o.records.b)/minRecord+1,
				int(*left)/eventOverhead+1))
		}
		c.events = append(c.events, e)
		c.next = rec.Offset + 1
		cost := cost(&e, &rec)
		c.bytes += cost
		*left -= cost + int64(len(raw))
	}
	return nil
}

// cost returns the memory of an event in addition to its record.
func cost(e *event.Event, rec *event.Record) int64 {
	n := eventOverhead + len(e.Key) + len(e.Source) + len(e.Tenant) + len(e.Type) + len(e.ContentType) +
		len(e.Position.Epoch)
	for name, value := range e.Headers {
		n += headerOverhead + len(name) + len(value)
	}
	if len(e.Payload) > 0 && &e.Payload[0] != &rec.Value[0] {
		n += len(e.Payload) // the payload of a structured CloudEvent is a copy
	}
	return int64(n)
}

// record decodes a record of the open batch.
func (d *decoder) record(raw []byte, rec *event.Record) error {
	o, r := d.open, reader{b: raw}
	r.skip(1) // attributes: unused
	stamp := o.firstTime + r.varint()
	if o.attributes&attrLogAppendTime != 0 {
		stamp = o.stamp
	}
	rec.Time = time.UnixMilli(stamp)
	rec.Offset = o.base + r.varint()
	rec.Key, rec.Value = r.bytes(), r.bytes()
	headers := r.varint()
	if headers > event.MaxHeaders {
		return fmt.Errorf("the record at offset %d has %d headers: at most %d are read; nothing but moving the group "+
			"past it helps",
			rec.Offset, headers, event.MaxHeaders)
	}
	d.headers = d.headers[:0]
	for ; headers > 0 && !r.short; headers-- {
		name := r.bytes()
		d.headers = append(d.headers, event.Header{Key: d.name(name), Value: r.bytes()})
	}
	rec.Headers = d.headers
	if o.records.short || r.short || rec.Offset <= o.seen || rec.Offset > o.last {
		return fmt.Errorf("the record batch at offset %d cannot be parsed", o.base)
	}
	return nil
}

// name returns string(b), without an allocation for a cached name.
func (d *decoder) name(b []byte) string {
	if s, ok := d.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(d.names) < maxNames && len(s) <= maxNameSize {
		d.names[s] = s
	}
	return s
}
