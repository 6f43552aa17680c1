package consumer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/segmentio/kafka-go/compress"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/seeded"
)

// Bits of a batch's attributes, and the length of its head.
const (
	attrCompression   = 0x07
	attrLogAppendTime = 1 << 3
	attrTransactional = 1 << 4
	attrControl       = 1 << 5
	batchHead         = 61
)

// eventOverhead is what an Event costs beside its bytes, for the memory bound.
const eventOverhead = 512

// maxNames bounds the header names that a decoder remembers.
const maxNames = 256

// chunk is a piece of a partition's log that was fetched and decoded.
type chunk struct {
	events []event.Event
	next   int64 // the offset after it, which may lie behind control records and compacted ones
	bytes  int64 // memory that it holds, about
}

// decoder makes events of one partition's record batches. It is not safe for concurrent use.
type decoder struct {
	topic     string
	partition int32
	idHeader  string
	maxBatch  int
	table     *crc32.Table

	names   map[string]string // header names seen: a topic repeats few
	headers []event.Header    // reused: event.Decode copies what it keeps
}

func newDecoder(topic string, partition int32, idHeader string, maxBatch int) *decoder {
	return &decoder{
		topic: topic, partition: partition, idHeader: idHeader, maxBatch: maxBatch,
		table: crc32.MakeTable(crc32.Castagnoli), names: map[string]string{},
	}
}

// batchHeader is the head of a record batch (format 2).
type batchHeader struct {
	base, last       int64
	attributes       int16
	firstTime, stamp int64
	producer         int64
	count            int
	body             []byte
}

// transactions follows which producers' records are aborted while the batches of one fetch are read in order.
type transactions struct {
	pending []abortedTxn
	open    map[int64]bool
}

// skip reports whether a batch belongs to an aborted transaction, by the rules of the broker's answer: a transaction is open
// from its first offset until its producer's next marker.
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
		if !seeded.On(seeded.ConsumerSkipsAborted) {
			delete(t.open, h.producer)
		}
		return false
	}
	return h.attributes&attrTransactional != 0 && t.open[h.producer]
}

// next decodes whole batches from b until the chunk has want bytes or b ends, leaving out records below from. It returns what is
// left of b: nil when nothing whole is. An error speaks of the first batch in b; batches before a bad one are returned first.
func (d *decoder) next(b []byte, from int64, want int, txns *transactions) (chunk, []byte, error) {
	c := chunk{next: from}
	for int(c.bytes) < want {
		h, rest, err := d.head(b)
		if err != nil {
			if c.next > from {
				return c, b, nil
			}
			return c, b, err
		}
		if h == nil {
			return c, nil, nil
		}
		if !txns.skip(h) && h.attributes&attrControl == 0 && h.last >= c.next {
			before := len(c.events)
			if err := d.records(h, &c); err != nil {
				c.events = c.events[:before]
				if c.next > from {
					return c, b, nil
				}
				return c, b, err
			}
		}
		c.next = max(c.next, h.last+1)
		b = rest
	}
	return c, b, nil
}

// head splits the first batch off b; nil when b holds no whole one.
func (d *decoder) head(b []byte) (*batchHeader, []byte, error) {
	if len(b) < 17 {
		return nil, nil, nil
	}
	be := binary.BigEndian
	base, length := int64(be.Uint64(b)), int64(int32(be.Uint32(b[8:])))
	if magic := b[16]; magic != 2 {
		return nil, nil, fmt.Errorf("the records at offset %d have format %d: only format 2 (Kafka 0.11 and newer) is read", base, magic)
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
		base: base, last: base + int64(int32(be.Uint32(batch[23:]))), attributes: int16(be.Uint16(batch[21:])),
		firstTime: int64(be.Uint64(batch[27:])), stamp: int64(be.Uint64(batch[35:])), producer: int64(be.Uint64(batch[43:])),
		count: int(int32(be.Uint32(batch[57:]))), body: batch[batchHead:len(batch):len(batch)],
	}
	if h.last < h.base {
		return nil, nil, fmt.Errorf("the record batch at offset %d ends before it begins", base)
	}
	return h, rest, nil
}

// records appends the events of a batch that are not below c.next.
func (d *decoder) records(h *batchHeader, c *chunk) error {
	body, err := d.inflate(h)
	if err != nil {
		return err
	}
	c.bytes += int64(len(body))
	r := reader{b: body}
	if c.events == nil {
		c.events = make([]event.Event, 0, max(0, min(h.count, len(body)/7))) // 7: the smallest record
	}
	for range h.count {
		raw := r.bytes()
		record := reader{b: raw}
		rec := event.Record{Topic: d.topic, Partition: d.partition}
		record.skip(1) // attributes: unused
		stamp := h.firstTime + record.varint()
		if h.attributes&attrLogAppendTime != 0 {
			stamp = h.stamp
		}
		rec.Time = time.UnixMilli(stamp)
		rec.Offset = h.base + record.varint()
		rec.Key, rec.Value = record.bytes(), record.bytes()
		d.readHeaders(&record)
		if r.short || record.short || rec.Offset < h.base || rec.Offset > h.last {
			return fmt.Errorf("the record batch at offset %d cannot be parsed", h.base)
		}
		if rec.Offset < c.next {
			continue
		}
		rec.Headers = d.headers
		e := event.Decode(&rec, d.idHeader)
		e.Raw = raw
		c.events = append(c.events, e)
		c.bytes += eventOverhead
	}
	return nil
}

func (d *decoder) readHeaders(r *reader) {
	d.headers = d.headers[:0]
	for n := r.varint(); n > 0 && !r.short; n-- {
		name := r.bytes()
		d.headers = append(d.headers, event.Header{Key: d.name(name), Value: r.bytes()})
	}
}

// name is string(b) without an allocation for names that were seen before.
func (d *decoder) name(b []byte) string {
	if s, ok := d.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(d.names) < maxNames {
		d.names[s] = s
	}
	return s
}

// inflate returns a batch's records uncompressed.
func (d *decoder) inflate(h *batchHeader) ([]byte, error) {
	kind := compress.Compression(h.attributes & attrCompression)
	if kind == compress.None {
		return h.body, nil
	}
	codec := kind.Codec()
	if codec == nil {
		return nil, fmt.Errorf("the record batch at offset %d has an unknown compression (%d)", h.base, int8(kind))
	}
	zr := codec.NewReader(bytes.NewReader(h.body))
	defer func() { _ = zr.Close() }()
	out := bytes.NewBuffer(make([]byte, 0, 4*len(h.body)))
	n, err := out.ReadFrom(io.LimitReader(zr, int64(d.maxBatch)+1))
	if err != nil {
		return nil, fmt.Errorf("the record batch at offset %d cannot be decompressed: %w", h.base, err)
	}
	if n > int64(d.maxBatch) {
		return nil, fmt.Errorf("the record batch at offset %d is larger than Config.MaxBatchBytes (%d) once decompressed", h.base, d.maxBatch)
	}
	return out.Bytes(), nil
}
