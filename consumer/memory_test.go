package consumer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/segmentio/kafka-go/compress"

	"github.com/effectonce/effectonce/event"
)

// maxAlloc bounds the allocations, garbage included, of decoding a chunk of 64 KiB with a MaxBatchBytes of 1 MiB. LZ4's
// blocks are the largest part.
const maxAlloc = 24 << 20

// allocated returns the number of bytes that do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// rawBatch returns a batch at offset 3 with the given body.
func rawBatch(attributes int16, lastDelta, count int32, body []byte) []byte {
	b := append(batch(3, lastDelta, 0, 9), body...)
	be := binary.BigEndian
	be.PutUint32(b[8:], uint32(len(b)-12))
	be.PutUint16(b[21:], uint16(attributes))
	be.PutUint32(b[57:], uint32(count))
	be.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func compressed(kind compress.Compression, b []byte) []byte {
	var z bytes.Buffer
	w := kind.Codec().NewWriter(&z)
	_, _ = w.Write(b)
	_ = w.Close()
	return z.Bytes()
}

// smallRecords returns n of the smallest possible records.
func smallRecords(n int) (body []byte) {
	for i := range n {
		record := binary.AppendVarint([]byte{0, 0}, int64(i))
		record = append(record, 1, 1, 0) // neither key nor value nor headers
		body = append(binary.AppendVarint(body, int64(len(record))), record...)
	}
	return body
}

// manyHeaders returns a record with n empty headers.
func manyHeaders(n int) []byte {
	record := binary.AppendVarint([]byte{0, 0, 0, 1, 1}, int64(n))
	record = append(record, make([]byte, 2*n)...)
	return append(binary.AppendVarint(nil, int64(len(record))), record...)
}

type bomb struct {
	attributes  int16
	last, count int32
	body        []byte
	err         string // empty: the batch is read
}

// bombs returns batches of a few bytes that ask for a lot of memory.
func bombs() map[string]bomb {
	const records, headers = 100_000, 500_000
	return map[string]bomb{
		"many headers": {
			int16(compress.Zstd), 0, 1, compressed(compress.Zstd, manyHeaders(headers)),
			"has 500000 headers: at most 10000",
		},
		"many records": {
			int16(compress.Zstd), records - 1, records, compressed(compress.Zstd, smallRecords(records)),
			"",
		},
		"many records announced": {0, 0, 1 << 30, manyHeaders(0), "cannot be parsed"},
		"a window of 128 MiB": {
			int16(compress.Zstd), 0, 1,
			append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0x88, byte(len(manyHeaders(0))<<3 | 1), 0, 0},
				manyHeaders(0)...), "",
		},
		"a window of 1 GiB": {
			int16(compress.Zstd), 0, 1,
			[]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0xa0, 9, 0, 0, 'x'},
			"window size exceeded",
		},
		"a block of 4 GiB": {
			int16(compress.Snappy), 0, 1,
			[]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0},
			"MaxBatchBytes",
		},
		"a frame of 2 GiB": {
			int16(compress.Snappy), 0, 1, append([]byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"), 0x7f, 0xff,
				0xff, 0xff, 1), "ends too early",
		},
		"a frame of less than nothing": {
			int16(compress.Snappy), 0, 1, append([]byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"), 0xff, 0xff,
				0xff, 0xff, 1), "ends too early",
		},
	}
}

// A small batch of another producer must not exhaust a worker's memory: the next member would fail in the same way.
func TestForeignBytesAllocateLittle(t *testing.T) {
	for name, b := range bombs() {
		t.Run(name, func(t *testing.T) {
			d := newDecoder("t", 1, "", 1<<20)
			var c chunk
			var err error
			next := int64(3)
			for rest := rawBatch(b.attributes, b.last, b.count, b.body); len(rest) > 0 && err == nil; next = c.next {
				got := allocated(func() { c, rest, err = d.next(rest, next, 64<<10, &transactions{}) })
				if got > maxAlloc {
					t.Fatalf("%d MiB allocated for %d bytes", got>>20, len(b.body))
				}
			}
			switch {
			case b.err == "" && (err != nil || next != 4+int64(b.last)):
				t.Errorf("ends at %d, %v", next, err)
			case b.err != "" && (err == nil || !strings.Contains(err.Error(), b.err)):
				t.Errorf("error %v, want %q", err, b.err)
			}
		})
	}
}

// MaxBatchBytes is exact for every codec: a batch of that size is read, a larger one is not.
func TestTheLargestBatch(t *testing.T) {
	const size = 1 << 20
	for _, kind := range []compress.Compression{compress.Gzip, compress.Snappy, compress.Lz4, compress.Zstd} {
		for over := range 2 {
			d := newDecoder("t", 1, "", size)
			body := batch(3, 0, 0, 9, testRecord{value: make([]byte, size-11+over)})[batchHead:]
			c, _, err := d.next(rawBatch(int16(kind), 0, 1, compressed(kind, body)), 3, 1, &transactions{})
			if fits := len(body) <= size; fits != (over == 0) || fits != (err == nil && len(c.events) == 1) || !fits &&
				!strings.Contains(err.Error(), "MaxBatchBytes") {
				t.Errorf("%v, %d bytes: %d events, %v", kind, len(body), len(c.events), err)
			}
		}
	}
}

// A batch that does not fit in one chunk is decoded in pieces, in order and without a gap.
func TestLargeBatchComesInPieces(t *testing.T) {
	const n, want = 100_000, 64 << 10
	body := smallRecords(n)
	rest := append(rawBatch(int16(compress.Zstd), n-1, n, compressed(compress.Zstd, body)),
		batch(3+n, 0, 0, -1, rec(0, "a"))...)
	d, next, pieces := newDecoder("t", 1, "", 1<<20), int64(3), 0
	for ; len(rest) > 0; pieces++ {
		c, r, err := d.next(rest, next, want, &transactions{})
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range c.events {
			if e.Position.Offset != next+int64(i) {
				t.Fatalf("offset %d, want %d", e.Position.Offset, next+int64(i))
			}
		}
		if size := len(c.events) * int(unsafe.Sizeof(event.Event{})); size > want || int64(size+len(body)) > c.bytes &&
			pieces == 0 {
			t.Fatalf("a piece of %d events has %d bytes and its batch %d: charged %d, chunk size %d", len(c.events),
				size, len(body), c.bytes, want)
		}
		next, rest = c.next, r
	}
	if next != 4+n || pieces < n*eventOverhead/want {
		t.Errorf("ends at %d after %d pieces", next, pieces)
	}
}

// The records before an unreadable one are returned first, without those below the position.
func TestPieceEndsBeforeUnreadableRecord(t *testing.T) {
	body := append(smallRecords(3), manyHeaders(event.MaxHeaders+1)...)
	d := newDecoder("t", 1, "", 1<<20)
	c, rest, err := d.next(rawBatch(0, 3, 4, body), 4, 1<<20, &transactions{})
	if err != nil || len(c.events) != 2 || c.next != 6 {
		t.Fatalf("%d events, next %d, %v", len(c.events), c.next, err)
	}
	if c, _, err = d.next(rest, c.next, 1<<20, &transactions{}); err == nil || len(c.events) != 0 {
		t.Errorf("%d events, %v", len(c.events), err)
	}
}

// Each header of an event is charged to the budget.
func TestHeadersAreCharged(t *testing.T) {
	var headers []event.Header
	for i := range event.MaxHeaders {
		headers = append(headers, event.Header{Key: fmt.Sprint("h", i)})
	}
	c, _, err := newDecoder("t", 1, "", 1<<20).next(batch(0, 0, 0, -1, testRecord{headers: headers}), 0, 1,
		&transactions{})
	if err != nil || len(c.events) != 1 || len(c.events[0].Headers) != event.MaxHeaders {
		t.Fatalf("%d events, %v", len(c.events), err)
	}
	if c.bytes < event.MaxHeaders*headerOverhead {
		t.Errorf("%d bytes charged for %d headers", c.bytes, event.MaxHeaders)
	}
	long := batch(0, 0, 0, -1, testRecord{headers: []event.Header{{Key: strings.Repeat("n", maxNameSize+1)}}})
	d := newDecoder("t", 1, "", 1<<20)
	if _, _, err = d.next(long, 0, 1, &transactions{}); err != nil || len(d.names) != 0 {
		t.Errorf("%d names remembered, %v", len(d.names), err)
	}
}
