package relay

import (
	"encoding/binary"
	"strings"
	"testing"
)

// FuzzWAL10Decoder: whatever comes over the connection, the decoder returns; what it takes has its place.
func FuzzWAL10Decoder(f *testing.F) {
	u := func(b []byte, n uint64, size int) []byte {
		var v [8]byte
		binary.BigEndian.PutUint64(v[:], n)
		return append(b, v[8-size:]...)
	}
	begin := append(u(u([]byte{'B'}, 5000, 8), 1, 8), 0, 0, 0, 7)
	relation := append(u([]byte{'R'}, 1, 4), "public\x00outbox_event\x00d\x00\x02\x00id\x00\x00\x00\x00\x14\xff\xff\xff\xff\x00topic\x00\x00\x00\x00\x19\xff\xff\xff\xff"...)
	insert := append(u([]byte{'I'}, 1, 4), "N\x00\x02b\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x2ab\x00\x00\x00\x01t"...)
	commit := append(u(u([]byte{'C', 0}, 5000, 8), 5100, 8), make([]byte, 8)...)
	d, b := newWALDecoder(), &walBatch{}
	for _, m := range [][]byte{relation, begin, insert, commit} {
		if err := d.message(m, b); err != nil {
			f.Fatal(err)
		}
	}
	if len(b.items) != 1 || b.items[0] != (walItem{id: 42, commit: 5000, xid: 7, lane: laneOf(nil, b.events[0].ID)}) || b.events[0].Topic != "t" || b.pos != 5100 {
		f.Fatalf("decoded %+v %+v", b.items, b)
	}
	for _, m := range [][]byte{insert, commit, relation, begin, []byte("M\x01\x00\x00\x00\x00\x00\x00\x00\x01effectonce\x00\x00\x00\x00\x00"), {}} {
		f.Add(m, m)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		d, b := newWALDecoder(), &walBatch{}
		for _, m := range [][]byte{relation, begin, first, second} {
			before := len(b.events)
			if err := d.message(m, b); err == nil {
				continue
			}
			if len(b.events) != before {
				t.Fatalf("%q was refused and taken", m)
			}
		}
		if len(b.events) != len(b.items) {
			t.Fatalf("%d events, %d items", len(b.events), len(b.items))
		}
	})
}

// TestWALSnapshot: what a snapshot shows, also around the end of 32 bits.
func TestWALSnapshot(t *testing.T) {
	s, err := parseSnapshot("4294967290:4294967305:4294967295,4294967300")
	if err != nil {
		t.Fatal(err)
	}
	for xid, want := range map[uint32]bool{
		4294967289: true, 4294967290: true, 4294967295: false, 0: true, 3: true, 4: false, 8: true, 9: false, 100: false,
	} {
		if s.shows(xid) != want {
			t.Errorf("shows(%d) = %v", xid, !want)
		}
	}
	for _, text := range []string{"", "1", "1:2", "1:2:x", "a:2:"} {
		if _, err := parseSnapshot(text); err == nil {
			t.Errorf("%q was parsed", text)
		}
	}
}

// emittedBytes is an event as producers emit it.
func emittedBytes(null byte, payload string) []byte {
	b := []byte{emittedVersion, null, 0, 0, 0, 0, 0, 0, 0, 42}
	b = append(b, "0123456789abcdef\x00\x02\xf0\x00\x00\x00\x00\x00"...)
	return append(b, "source\x00tenant\x00topic\x00key\x00type\x00text/plain\x00{\"a\": \"b\"}\x00"+payload...)
}

// TestWALEmittedEncoding: what is not an emitted event of the version that is known, or could not be a row, is refused.
func TestWALEmittedEncoding(t *testing.T) {
	decoder := func() *walDecoder { d := newWALDecoder(); d.inside, d.commit, d.nth = true, 5000, 3; return d }
	b := &walBatch{}
	if err := decoder().emitted(emittedBytes(0, "p\x00q"), b); err != nil {
		t.Fatal(err)
	}
	e, it := b.events[0], b.items[0]
	if e.Source != "source" || e.Tenant != "tenant" || e.Topic != "topic" || e.Key != "key" || e.Type != "type" || e.ContentType != "text/plain" ||
		e.Headers["a"] != "b" || string(e.Payload) != "p\x00q" || e.Time.Year() != 2026 || string(e.ID[:]) != "0123456789abcdef" {
		t.Errorf("decoded %+v", e)
	}
	if it != (walItem{id: 42, commit: 5000, nth: 3, lane: laneOf([]byte("key"), e.ID), emitted: true}) {
		t.Errorf("decoded %+v", it)
	}
	good := string(emittedBytes(1, ""))
	for name, bad := range map[string]string{
		"nothing": "", "a later version": "\x02" + good[1:], "a payload that is null": string(emittedBytes(1, "p")), "neither": string(emittedBytes(2, "")),
		"no id": strings.Replace(good, "\x2a", "\x00", 1), "a negative id": good[:2] + "\xff" + good[3:], "no message_id": strings.Replace(good, "0123456789abcdef", strings.Repeat("\x00", 16), 1),
		"a time that is none": strings.Replace(good, "\x00\x02\xf0", "\x7f\xff\xff", 1), "no topic": strings.Replace(good, "topic", "", 1), "a bad topic": strings.Replace(good, "topic", "to/pic", 1),
		"no type": strings.Replace(good, "type", "", 1), "a long key": strings.Replace(good, "key", strings.Repeat("k", 8193), 1), "no text": strings.Replace(good, "tenant", "\xff", 1),
		"a reserved header": strings.Replace(good, `"a"`, `"ce_id"`, 1), "headers of numbers": strings.Replace(good, `"b"`, `1`, 1), "its front": good[:len(good)-1],
	} {
		b := &walBatch{}
		if err := decoder().emitted([]byte(bad), b); err == nil || len(b.events) > 0 {
			t.Errorf("%s: %v, %d events", name, err, len(b.events))
		}
	}
}

// FuzzWALEmitted: any bytes are an event that could be a row and says all that they say, or an error.
func FuzzWALEmitted(f *testing.F) {
	f.Add(emittedBytes(0, "payload"))
	f.Add(emittedBytes(1, ""))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, b := newWALDecoder(), &walBatch{}
		d.inside = true
		if err := d.emitted(data, b); err != nil {
			if len(b.events)+len(b.items) > 0 {
				t.Fatal("refused and taken")
			}
			return
		}
		e := b.events[0]
		if err := unfit(&e); err != nil || b.items[0].id <= 0 {
			t.Fatalf("took %+v: %v", e, err)
		}
		texts := e.Source + "\x00" + e.Tenant + "\x00" + e.Topic + "\x00" + e.Key + "\x00" + e.Type + "\x00" + e.ContentType + "\x00"
		if !strings.HasPrefix(string(data[34:]), texts) || !strings.HasSuffix(string(data), "\x00"+string(e.Payload)) {
			t.Fatalf("%q is not what %q says", texts, data)
		}
	})
}
