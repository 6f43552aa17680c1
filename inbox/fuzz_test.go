package inbox_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/outcome"
)

// FuzzForeignBytes parks records with arbitrary content. Each is shown byte for byte and can be discarded. An error of
// the database would halt the partition for good.
func FuzzForeignBytes(f *testing.F) {
	w := newWorld(f)
	in := w.inbox(inbox.Config{MaxAttempts: 1})
	text := ""
	h := in.Each(func(context.Context, pgx.Tx, event.Event) error { return outcome.Terminal(text, errors.New(text)) })
	o, err := operator.New(w.Pool, "", "ledger", "fuzz")
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("k"), []byte("v"), "name", []byte("value"), "ce_tenant", []byte("acme"), "failed", int64(1))
	f.Add([]byte{0xff, 0}, []byte{0}, "\x00", []byte{0xff}, "\xff", []byte(nil), "\x00\xff", int64(-1))
	f.Add([]byte(nil), []byte(nil), "", []byte{}, "ce_type", []byte("T\x00"), "", int64(0))
	f.Add(bytes.Repeat([]byte("k"), 3000), []byte("{}"), "ce_id", []byte("'; drop table inbox_parked; --"), "ce_time",
		[]byte("9999-12-31T23:59:59Z"), "a'b", int64(1)<<40)
	f.Add([]byte("k"), []byte("v"), "ce_time", []byte("0001-01-01T00:00:00Z"), "ce_source", []byte("{schema}$1"),
		"\u2028\\u0000", int64(1)<<62)
	f.Fuzz(func(t *testing.T, key, value []byte, name1 string, value1 []byte, name2 string, value2 []byte,
		reason string, millis int64,
	) {
		text = reason
		r := event.Record{
			Topic: "payments", Offset: offsets.Add(1), Time: time.UnixMilli(millis), Key: key, Value: value,
			Headers: []event.Header{
				{Key: name1, Value: value1},
				{Key: name2, Value: value2},
				{Key: name1, Value: value2},
			},
		}
		e := event.Decode(&r, "")
		e.ID = event.NewID() // a repeated id would be a duplicate
		e.Raw = encodeRaw(&r)
		out, err := h.Handle(t.Context(), []event.Event{e})
		if err != nil || out[0] != inbox.Parked {
			t.Fatalf("%+v: %v, %v", r, out, err)
		}
		list, err := o.Parked(t.Context(), admin.ParkedFilter{MessageID: e.ID})
		if err != nil || len(list) != 1 {
			t.Fatalf("%d parked: %v", len(list), err)
		}
		got, err := o.ParkedEvent(t.Context(), list[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.Key != string(key) || !bytes.Equal(got.Payload, value) || (got.Payload == nil) != (value == nil) ||
			len(got.Headers) != len(r.Headers) {
			t.Fatalf("parked %+v of %+v", got, r)
		}
		for i, h := range got.Headers {
			if h.Key != r.Headers[i].Key || !bytes.Equal(h.Value, r.Headers[i].Value) ||
				(h.Value == nil) != (r.Headers[i].Value == nil) {
				t.Fatalf("header %d: %q, was %q", i, h, r.Headers[i])
			}
		}
		if got.Alone {
			_, err = o.DiscardEvent(t.Context(), got.ID, "fuzz")
		} else {
			_, err = o.DiscardKey(t.Context(), e.Tenant, e.Topic, e.Key, admin.Seen{}, "fuzz")
		}
		if err != nil {
			t.Fatalf("discarding %+v: %v", got, err)
		}
	})
}

// offsets gives each record of this process an offset of its own.
var offsets atomic.Int64

// encodeRaw encodes a record in Kafka's format 2.
func encodeRaw(r *event.Record) []byte {
	b := []byte{0, 0, 0}
	field := func(v []byte) {
		if v == nil {
			b = binary.AppendVarint(b, -1)
			return
		}
		b = append(binary.AppendVarint(b, int64(len(v))), v...)
	}
	field(r.Key)
	field(r.Value)
	b = binary.AppendVarint(b, int64(len(r.Headers)))
	for _, h := range r.Headers {
		field([]byte(h.Key))
		field(h.Value)
	}
	return b
}
