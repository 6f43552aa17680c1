package consumer

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/compress"

	"github.com/effectonce/effectonce/event"
)

type testRecord struct {
	delta      int64
	key, value []byte
	headers    []event.Header
}

// batch encodes a record batch; lastDelta may lie beyond the last record, as compaction leaves it.
func batch(base int64, lastDelta int32, attributes int16, producer int64, records ...testRecord) []byte {
	be := binary.BigEndian
	blob := func(b, v []byte) []byte {
		if v == nil {
			return binary.AppendVarint(b, -1)
		}
		return append(binary.AppendVarint(b, int64(len(v))), v...)
	}
	var body []byte
	for _, r := range records {
		b := []byte{0}
		b = binary.AppendVarint(b, 5) // time
		b = binary.AppendVarint(b, r.delta)
		b = blob(blob(b, r.key), r.value)
		b = binary.AppendVarint(b, int64(len(r.headers)))
		for _, h := range r.headers {
			b = blob(blob(b, []byte(h.Key)), h.Value)
		}
		body = append(binary.AppendVarint(body, int64(len(b))), b...)
	}
	if codec := compress.Compression(attributes & attrCompression).Codec(); codec != nil {
		var z bytes.Buffer
		w := codec.NewWriter(&z)
		_, _ = w.Write(body)
		_ = w.Close()
		body = z.Bytes()
	}
	var tail []byte // the part that the checksum covers
	tail = be.AppendUint16(tail, uint16(attributes))
	tail = be.AppendUint32(tail, uint32(lastDelta))
	tail = be.AppendUint64(tail, 1000) // first time
	tail = be.AppendUint64(tail, 2000) // last time
	tail = be.AppendUint64(tail, uint64(producer))
	tail = append(tail, 0, 0, 0, 0, 0, 0)
	tail = be.AppendUint32(tail, uint32(len(records)))
	tail = append(tail, body...)
	out := be.AppendUint64(nil, uint64(base))
	out = be.AppendUint32(out, uint32(9+len(tail)))
	out = append(be.AppendUint32(out, 0), 2)
	out = be.AppendUint32(out, crc32.Checksum(tail, crc32.MakeTable(crc32.Castagnoli)))
	return append(out, tail...)
}

func decodeAll(t *testing.T, b []byte, from int64, aborted ...abortedTxn) (events []event.Event, next int64,
	err error,
) {
	t.Helper()
	d, txns := newDecoder("t", 1, "", 1<<20), &transactions{pending: aborted}
	for len(b) > 0 {
		var c chunk
		if c, b, err = d.next(b, from, 1, txns); err != nil {
			return events, from, err
		}
		events, from = append(events, c.events...), c.next
	}
	return events, from, nil
}

func keys(events []event.Event) (s string) {
	for _, e := range events {
		s += e.Key
	}
	return s
}

func rec(delta int64, key string) testRecord {
	return testRecord{delta: delta, key: []byte(key), value: []byte("v" + key)}
}

func TestDecodePassesWhatCompactionLeft(t *testing.T) {
	b := batch(10, 9, 0, -1, rec(0, "a"), rec(3, "b")) // 14 to 19 are compacted away
	b = append(b, batch(20, 4, 0, -1)...)              // so are all of 20 to 24
	b = append(b, batch(30, 0, 0, -1, rec(0, "c"))...) // 25 to 29 have no batch at all
	for from, want := range map[int64]string{10: "abc", 11: "bc", 14: "c", 22: "c"} {
		events, next, err := decodeAll(t, b, from)
		if keys(events) != want || next != 31 || err != nil {
			t.Errorf("from %d: %q, next %d, %v", from, keys(events), next, err)
		}
	}
	// The last records of the log are compacted away too. The position must still move, or the same batch is fetched
	// forever.
	events, next, err := decodeAll(t, b[:len(b)-len(batch(30, 0, 0, -1, rec(0, "c")))], 14)
	if len(events) != 0 || next != 25 || err != nil {
		t.Errorf("%d events, next %d, %v", len(events), next, err)
	}
}

func TestDecodeTransactions(t *testing.T) {
	const tx, ctl = attrTransactional, attrTransactional | attrControl
	var b []byte
	b = append(b, batch(0, 0, tx, 7, rec(0, "A"))...)  // aborted
	b = append(b, batch(1, 0, tx, 8, rec(0, "b"))...)  // another producer's, committed
	b = append(b, batch(2, 0, 0, 7, rec(0, "c"))...)   // not transactional
	b = append(b, batch(3, 0, tx, 7, rec(0, "D"))...)  // aborted
	b = append(b, batch(4, 0, ctl, 7, rec(0, "X"))...) // producer 7 aborts
	b = append(b, batch(5, 0, tx, 7, rec(0, "e"))...)  // producer 7's next transaction is committed
	b = append(b, batch(6, 0, ctl, 8, rec(0, "X"))...)
	b = append(b, batch(7, 0, ctl, 7, rec(0, "X"))...)
	events, next, err := decodeAll(t, b, 0, abortedTxn{7, 0})
	if keys(events) != "bce" || next != 8 || err != nil {
		t.Errorf("%q, next %d, %v", keys(events), next, err)
	}
	if events, _, _ = decodeAll(t, b, 0); keys(events) != "AbcDe" {
		t.Errorf("read uncommitted: %q", keys(events))
	}
}

func TestDecodeTimes(t *testing.T) {
	for attributes, want := range map[int16]int64{0: 1005, attrLogAppendTime: 2000} {
		events, _, _ := decodeAll(t, batch(0, 0, attributes, -1, rec(0, "a")), 0)
		if got := events[0].Time.UnixMilli(); got != want {
			t.Errorf("attributes %d: time %d, want %d", attributes, got, want)
		}
	}
}

func TestDecodeErrorsComeAfterWhatIsGood(t *testing.T) {
	good := batch(0, 1, 0, -1, rec(0, "a"), rec(1, "b"))
	flip := func(at int) []byte { b := batch(2, 0, 0, -1, rec(0, "c")); b[at] ^= 0x40; return b }
	short := batch(2, 0, 0, -1, rec(0, "c"))
	binary.BigEndian.PutUint32(short[8:], 5)
	huge := batch(2, 0, int16(compress.Gzip), -1, testRecord{value: make([]byte, 2<<20)})
	for want, bad := range map[string][]byte{
		"checksum": flip(70), "format": flip(16), "impossible length": short, "before it begins": batch(2, -1, 0, -1,
			rec(0, "c")),
		"cannot be parsed": batch(2, 0, 0, -1, rec(1, "c")), "unknown compression": batch(2, 0, 7, -1, rec(0, "c")),
		"MaxBatchBytes": huge,
	} {
		d := newDecoder("t", 1, "", 1<<20)
		c, rest, err := d.next(append(bytes.Clone(good), bad...), 0, 1<<20, &transactions{})
		if keys(c.events) != "ab" || c.next != 2 || err != nil {
			t.Errorf("%s: %q, next %d, %v", want, keys(c.events), c.next, err)
		}
		if _, _, err = d.next(rest, 2, 1<<20, &transactions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	// A batch that the broker's limit truncated is left for the next fetch.
	cut := append(bytes.Clone(good), batch(2, 0, 0, -1, rec(0, "c"))[:70]...)
	if events, next, err := decodeAll(t, cut, 0); keys(events) != "ab" || next != 2 || err != nil {
		t.Errorf("cut off: %q, next %d, %v", keys(events), next, err)
	}
}

func TestEventsDoNotShareMemory(t *testing.T) {
	events, _, _ := decodeAll(t, batch(0, 1, 0, -1, rec(0, "a"), rec(1, "b")), 0)
	_ = append(events[0].Payload, bytes.Repeat([]byte("z"), 40)...)
	if string(events[1].Payload) != "vb" {
		t.Errorf("payload %q", events[1].Payload)
	}
}

// FuzzDecodeBatch decodes batches with a valid checksum and arbitrary content.
func FuzzDecodeBatch(f *testing.F) {
	whole := batch(3, 4, 0, 9, testRecord{
		value:   []byte("v"),
		headers: []event.Header{{Key: "ce_id", Value: []byte("x")}},
	}, rec(4, "k"))
	f.Add(int16(0), int32(4), int32(2), whole[batchHead:])
	f.Add(int16(compress.Zstd), int32(4), int32(2), batch(3, 4, int16(compress.Zstd), 9, rec(0, "k"))[batchHead:])
	f.Add(int16(compress.Snappy), int32(0), int32(-1), []byte{0xff})
	for _, b := range bombs() {
		f.Add(b.attributes, b.last, b.count, b.body)
	}
	f.Fuzz(func(t *testing.T, attributes int16, lastDelta, count int32, body []byte) {
		b := rawBatch(attributes, lastDelta, count, body)
		d, next := newDecoder("t", 1, "", 1<<20), int64(3)
		var err error
		for rest := b; len(rest) > 0 && err == nil; {
			var c chunk
			if got := allocated(func() { c, rest, err = d.next(rest, next, 64<<10, &transactions{}) }); got > maxAlloc {
				t.Fatalf("%d MiB allocated for a piece of 64 KiB of a batch of %d bytes", got>>20, len(body))
			}
			for _, e := range c.events {
				if e.Position.Offset < next || e.Position.Offset >= c.next {
					t.Fatalf("event %+v", e)
				}
			}
			next = c.next
		}
		if err == nil && next != 4+int64(lastDelta) {
			t.Fatalf("next %d without an error", next)
		}
		_, _ = decodeFetch(body, int16(4+count&7))
	})
}

// BenchmarkDecode decodes fetches of 1 MiB: records of 512 bytes with all of this framework's headers. It shows the
// rate of one core without a broker.
func BenchmarkDecode(b *testing.B) {
	const records = 1500
	e := event.Event{
		ID: event.NewID(), Source: "payments", Tenant: "acme", Type: "PaymentCreated",
		ContentType: event.ContentTypeJSON, Time: time.UnixMilli(1_700_000_000_123),
		Position: event.Position{Epoch: "0199a4c2-7d1c-7000-8000-000000000000.1", Lane: 3, Seq: 123456},
		Headers:  map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	}
	var rs []testRecord
	for i := range records {
		rs = append(rs, testRecord{
			delta: int64(i), key: []byte("account-12345"), value: make([]byte, 512),
			headers: event.AppendHeaders(nil, &e),
		})
	}
	fetched := batch(0, records-1, 0, -1, rs...)
	d := newDecoder("t", 1, "", 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		if c, _, err := d.next(fetched, 0, 4<<20, &transactions{}); len(c.events) != records || err != nil {
			b.Fatal(len(c.events), err)
		}
	}
	b.ReportMetric(float64(b.N)*records/b.Elapsed().Seconds(), "records/s")
}
