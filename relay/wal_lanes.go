package relay

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/google/uuid"
)

// laneSource says where a lane's events are published from.
type laneSource int8

const (
	polled     laneSource = iota // from the table, by the pumps
	streamed                     // from the WAL, by the follower
	unassigned                   // it is not known yet: nobody publishes them
)

// assign sets the source of lanes that have none yet, and returns which.
func (t *laneTable) assign(lanes []int16, source laneSource) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lane := range lanes {
		if l := t.owned[lane]; l != nil && l.source == unassigned {
			l.source = source
			l.ready = source != streamed
			l.parked = l.parked || source == streamed // it is not known, so the prober asks
		}
	}
}

// unassign takes the source from streamed lanes: whoever reads the WAL next decides.
func (t *laneTable) unassign() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		if l.source == streamed {
			l.source, l.ready = unassigned, true
		}
	}
}

// unassigned lists the lanes that have no source yet, as parameters.
func (t *laneTable) unassigned() (set laneKeys) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for lane, l := range t.owned {
		if l.source == unassigned && !l.doubt && !l.leaving {
			set.lanes, set.fences = append(set.lanes, lane), append(set.fences, l.fence)
		}
	}
	return set
}

// fenceOf is a lane's fence; 0 when it is not ours for certain.
func (t *laneTable) fenceOf(lane int16) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.owned[lane]; l != nil && !l.doubt {
		return l.fence
	}
	return 0
}

// want makes the pumps leave alone the lanes that can be handed over. It reports whether some are still at work.
func (t *laneTable) want() (some, busy bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		l.wanted = l.source == polled && !l.doubt && !l.leaving && len(l.groups) == 0 && !l.releasing
		some, busy = some || l.wanted, busy || l.wanted && l.busy
	}
	return some, busy
}

// unwant gives back what want has taken.
func (t *laneTable) unwant() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		l.ready = l.ready || l.wanted
		l.wanted = false
	}
}

// wanted takes the lanes that nobody works on.
func (t *laneTable) wanted(now time.Time) []grant {
	return t.pickFor(0, 1, now, false, func(l *laneState) bool { return l.wanted })
}

// allStreamed reports whether the relay has lanes and the pumps have none.
func (t *laneTable) allStreamed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.owned {
		if l.source != streamed {
			return false
		}
	}
	return len(t.owned) > 0
}

// laneOf is the generated column outbox_event.lane, which Postgres does not send in the WAL's stream: hashtextextended
// with seed 0 of the key, or of the message id where there is none, of which the lowest five bits count.
func laneOf(key []byte, id uuid.UUID) int16 {
	if len(key) == 0 {
		var text [36]byte
		copy(text[:], id.String())
		key = text[:]
	}
	return int16(hashExtended(key) & (Lanes - 1))
}

// hashExtended is hash_bytes_extended of Postgres (src/common/hashfn.c) with seed 0 on a little-endian machine: Bob
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
	// The lowest byte of c is the length's: the last three of the rest go above it.
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
