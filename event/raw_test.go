package event_test

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/effectonce/effectonce/event"
)

// raw writes a record of Kafka's format 2, as a consumer finds it.
func raw(r *event.Record) []byte {
	b := []byte{0}
	b = binary.AppendVarint(b, 5)
	b = binary.AppendVarint(b, 7)
	bytes := func(v []byte) {
		if v == nil {
			b = binary.AppendVarint(b, -1)
			return
		}
		b = append(binary.AppendVarint(b, int64(len(v))), v...)
	}
	bytes(r.Key)
	bytes(r.Value)
	b = binary.AppendVarint(b, int64(len(r.Headers)))
	for _, h := range r.Headers {
		bytes([]byte(h.Key))
		bytes(h.Value)
	}
	return b
}

func TestRecordIsTheOneThatWasRead(t *testing.T) {
	t.Parallel()
	for _, r := range []event.Record{
		{Topic: "t", Partition: 3, Offset: 9, Headers: []event.Header{}},
		{Topic: "t", Key: []byte{}, Value: []byte{}, Headers: []event.Header{{"", nil}, {"h", []byte{}}}},
		{Topic: "t", Key: []byte{0xff, 0}, Value: []byte("v"), Headers: []event.Header{
			{"h", []byte("1")},
			{"\xff\x00", []byte{0}},
			{"h", []byte("2")},
			{"ce_id", []byte("x")},
		}},
	} {
		e := event.Decode(&r, "")
		e.Raw = raw(&r)
		if got := e.Record(); !reflect.DeepEqual(got, r) {
			t.Errorf("got  %+v\nwant %+v", got, r)
		}
		e.Raw = r.Encode()
		if got := e.Record(); !reflect.DeepEqual(got, r) {
			t.Errorf("encoded: got  %+v\nwant %+v", got, r)
		}
	}
}

func TestRecordOfAnEventThatWasNotRead(t *testing.T) {
	t.Parallel()
	e := full()
	got := e.Record()
	again := event.Decode(&got, "")
	if again.ID != e.ID || again.Type != e.Type || again.Tenant != e.Tenant || again.Key != e.Key ||
		string(again.Payload) != string(e.Payload) {
		t.Errorf("got %+v, want %+v", again, e)
	}
	e.Key = ""
	if e.Record().Key != nil {
		t.Error("no key is a null key")
	}
}

// FuzzRecord: bytes that are no record must not panic, and fall back to the codec's.
func FuzzRecord(f *testing.F) {
	f.Add(raw(&event.Record{Key: []byte("k"), Headers: []event.Header{{"h", []byte("v")}}}))
	f.Add([]byte{0, 0, 0, 1, 1, 0xfe, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		e := event.Event{ID: event.NewID(), Topic: "t", Key: "k", Type: "T", Raw: b}
		_ = e.Record()
	})
}
