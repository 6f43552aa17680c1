package wal

import (
	"encoding/binary"
	"testing"
)

// FuzzWAL10Decoder: the decoder returns for any input, and each decoded event has an item.
func FuzzWAL10Decoder(f *testing.F) {
	u := func(b []byte, n uint64, size int) []byte {
		var v [8]byte
		binary.BigEndian.PutUint64(v[:], n)
		return append(b, v[8-size:]...)
	}
	begin := append(u(u([]byte{'B'}, 5000, 8), 1, 8), 0, 0, 0, 7)
	relation := append(u([]byte{'R'}, 1, 4),
		"public\x00outbox_event\x00d\x00\x02\x00id\x00\x00\x00\x00\x14\xff\xff\xff\xff"+
			"\x00topic\x00\x00\x00\x00\x19\xff\xff\xff\xff"...)
	insert := append(u([]byte{'I'}, 1, 4),
		"N\x00\x02b\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x2ab\x00\x00\x00\x01t"...)
	commit := append(u(u([]byte{'C', 0}, 5000, 8), 5100, 8), make([]byte, 8)...)
	d, b := newDecoder(0), &batch{}
	for _, m := range [][]byte{relation, begin, insert, commit} {
		if err := d.decode(m, b); err != nil {
			f.Fatal(err)
		}
	}
	if len(b.Items) != 1 || b.Items[0] != (item{ID: 42, Commit: 5000, XID: 7, Lane: int16(hash(&b.Events[0]) % 32)}) ||
		b.Events[0].Topic != "t" || b.Pos != 5100 {
		f.Fatalf("decoded %+v %+v", b.Items, b)
	}
	for _, m := range [][]byte{
		insert, commit, relation, begin,
		[]byte("M\x01\x00\x00\x00\x00\x00\x00\x00\x01effectonce\x00\x00\x00\x00\x00"),
		{},
	} {
		f.Add(m, m)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		d, b := newDecoder(0), &batch{}
		for _, m := range [][]byte{relation, begin, first, second} {
			before := len(b.Events)
			if err := d.decode(m, b); err == nil {
				continue
			}
			if len(b.Events) != before {
				t.Fatalf("%q was refused and decoded", m)
			}
		}
		if len(b.Events) != len(b.Items) {
			t.Fatalf("%d events, %d items", len(b.Events), len(b.Items))
		}
	})
}
