package publisher

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
)

// FuzzBatch encodes arbitrary events. The result is one well-formed batch, and each record decodes to the event that
// was encoded: no key, value or header overlaps the next.
func FuzzBatch(f *testing.F) {
	f.Add("k", []byte("v"), "T", "acme", "name", "value", uint8(3), uint8(0))
	f.Add("", []byte(nil), "", "", "", "", uint8(1), uint8(2))
	f.Add("\xff\x00", []byte{0}, "\x00", "\xff", "ce_id", "x", uint8(200), uint8(4))
	f.Add("'; --", bytes.Repeat([]byte("v"), 70000), "{schema}", "$1", "traceparent",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", uint8(2), uint8(0))
	f.Fuzz(func(t *testing.T, key string, payload []byte, typ, tenant, name, value string, count, compression uint8) {
		var events []event.Event
		var order []int32
		for i := range int(count%32) + 1 {
			events = append(events, event.Event{
				ID: event.NewID(), Topic: "t", Key: key, Type: typ, Tenant: tenant, Payload: payload,
				Headers: map[string]string{name: value}, Time: time.UnixMilli(int64(i)).UTC(), Position: event.Position{
					Lane: int16(i % 32), Epoch: "e.1",
					Seq: int64(i),
				},
			})
			order = append(order, int32(i))
		}
		var b batch
		b.compression = kafka.Compression(compression % 5)
		if n := b.fill(events, order, 64<<20, 1000); n != len(events) {
			t.Fatalf("%d of %d events fit", n, len(events))
		}
		records := bytes.Clone(b.records)
		if err := b.seal(time.UnixMilli(1)); err != nil {
			t.Fatal(err)
		}
		head := b.frame[sizePrefix:]
		if binary.BigEndian.Uint32(head[17:]) != crc32.Checksum(head[21:], castagnoli) ||
			int(binary.BigEndian.Uint32(head[8:])) != len(head)-12 {
			t.Fatal("checksum or length is wrong")
		}
		for i, want := range events {
			length, n := binary.Varint(records)
			if n <= 0 || length < 0 || int(length) > len(records)-n {
				t.Fatalf("record %d has the length %d of %d", i, length, len(records)-n)
			}
			raw := records[n : n+int(length)]
			records = records[n+int(length):]
			whole := event.Event{Topic: "t", Payload: payload, Raw: raw}
			r := whole.Record()
			got := event.Decode(&r, "")
			maps.DeleteFunc(want.Headers, func(name, _ string) bool { return event.ReservedHeader(name) })
			if len(want.Headers) == 0 {
				want.Headers = nil
			}
			if got.ID != want.ID || got.Key != want.Key || got.Type != want.Type || got.Tenant != want.Tenant ||
				!got.Time.Equal(want.Time) ||
				got.Position.Seq != want.Position.Seq || !reflect.DeepEqual(got.Headers, want.Headers) {
				t.Fatalf("record %d\n got %+v\nwant %+v", i, got, want)
			}
			if !bytes.Contains(raw, payload) {
				t.Fatalf("record %d lacks its payload", i)
			}
		}
		if len(records) != 0 {
			t.Fatalf("%d bytes after the last record", len(records))
		}
	})
}
