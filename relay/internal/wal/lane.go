// Package wal reads an outbox's events from the write-ahead log (docs/decisions/0023): it keeps the replication slot,
// and decodes what the slot streams.
package wal

import (
	"encoding/binary"
	"math/bits"

	"github.com/effectonce/effectonce/event"
)

// hash is hashtextextended, with seed 0, of an event's key, or of its id if it has no key. Its lowest bits are the
// generated column outbox_event.lane, which Postgres does not send in the WAL's stream.
func hash(e *event.Event) uint64 {
	key := e.Key
	if key == "" {
		key = e.ID.String()
	}
	return hashExtended([]byte(key))
}

// hashExtended is hash_bytes_extended of Postgres (feed/common/hashfn.c) with seed 0 on a little-endian machine: Bob
// Jenkins' lookup3. A relay compares it with what its server computes before it relies on it.
func hashExtended(k []byte) uint64 {
	a := 0x9e3779b9 + uint32(len(k)) + 3923095
	b, c := a, a
	for ; len(k) >= 12; k = k[12:] {
		a += binary.LittleEndian.Uint32(k)
		b += binary.LittleEndian.Uint32(k[4:])
		c += binary.LittleEndian.Uint32(k[8:])
		a, b, c = mix(a, b, c)
	}
	var rest [12]byte
	// The lowest byte of c is for the length: the last three bytes of the rest go above it.
	copy(rest[:8], k)
	if len(k) > 8 {
		copy(rest[9:], k[8:])
	}
	a += binary.LittleEndian.Uint32(rest[:])
	b += binary.LittleEndian.Uint32(rest[4:])
	c += binary.LittleEndian.Uint32(rest[8:])
	b, c = final(a, b, c)
	return uint64(b)<<32 | uint64(c)
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	a = (a - c) ^ bits.RotateLeft32(c, 4)
	c += b
	b = (b - a) ^ bits.RotateLeft32(a, 6)
	a += c
	c = (c - b) ^ bits.RotateLeft32(b, 8)
	b += a
	a = (a - c) ^ bits.RotateLeft32(c, 16)
	c += b
	b = (b - a) ^ bits.RotateLeft32(a, 19)
	a += c
	c = (c - b) ^ bits.RotateLeft32(b, 4)
	b += a
	return a, b, c
}

func final(a, b, c uint32) (uint32, uint32) {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	c = (c ^ b) - bits.RotateLeft32(b, 24)
	return b, c
}
