package relay

import (
	"encoding/binary"
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
