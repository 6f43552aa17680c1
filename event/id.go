package event

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// NewID returns a UUIDv7. It contains its day, so that an inbox can drop whole days of ids. Like uuid.New, it panics
// only if the system has no randomness.
func NewID() uuid.UUID {
	return uuid.Must(uuid.NewV7())
}

// IDAt returns a UUIDv7 with the time t. Use it for scheduled events: inboxes partition ids by this time.
func IDAt(t time.Time) uuid.UUID {
	id := NewID()
	putTime(&id, t)
	return id
}

// IntentID returns the UUIDv5 of an intent in a namespace: the same intent always gets the same id, so that a producer
// may append it in two transactions and consumers apply it once. Raise version if the meaning of "the same intent"
// changes. Do not use a hash of the payload as the intent: a legitimate second purchase would be dropped.
func IntentID(namespace uuid.UUID, version int, intent string) uuid.UUID {
	return uuid.NewSHA1(namespace, []byte("v"+strconv.Itoa(version)+":"+intent))
}

// Derive returns next with an id that is derived from its cause and a name: a handler that runs twice for one cause
// emits the same id. Give the events of one cause different names ("receipt", "ledger-1").
//
// The id has the layout of a UUIDv7 with the time of the cause's id, or with its Time if the id is not a v7, and a hash
// of (cause id, name) as its random bits, so that it fits an inbox's daily partitions. If the cause is older than a
// consumer's window, such as a late release, the event is quarantined there: use [IntentID] if causes may wait that
// long.
func Derive(cause Event, name string, next Event) Event {
	h := sha256.New()
	h.Write(cause.ID[:])
	h.Write([]byte(name))
	var id uuid.UUID
	copy(id[:], h.Sum(nil))
	if t, ok := IDTime(cause.ID); ok {
		putTime(&id, t)
	} else {
		putTime(&id, cause.Time)
	}
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	next.ID = id
	return next
}

// IDTime returns the time in a UUIDv7, to the millisecond, and false for any other id.
func IDTime(id uuid.UUID) (time.Time, bool) {
	if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
		return time.Time{}, false
	}
	var ms [8]byte
	copy(ms[2:], id[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:]))).UTC(), true
}

// putTime writes t as the 48 bits of milliseconds at the head of id; a time before 1970 becomes 1970.
func putTime(id *uuid.UUID, t time.Time) {
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(t.UnixMilli(), 0)))
	copy(id[:6], ms[2:])
}

// ForeignNamespace is the UUIDv5 namespace of [ForeignID] and [RecordID]. It never changes: inboxes hold ids of it.
var ForeignNamespace = uuid.MustParse("6f7c1c62-27b5-5f0a-9a0e-3b7f5d0c8e11")

// ForeignID returns a UUID for a foreign producer's id: the id itself if it is a UUID, otherwise the UUIDv5 of (source,
// id). 32 hexadecimal digits without hyphens are not taken as a UUIDv7: one random token in 64 looks like one, with an
// arbitrary day, and would be quarantined.
func ForeignID(source, id string) uuid.UUID {
	if u, ok := parseUUID(id); ok && u != uuid.Nil && u != uuid.Max {
		return u
	}
	return uuid.NewSHA1(ForeignNamespace, []byte("id\x00"+source+"\x00"+id))
}

// unset reports whether an id is some language's text for a variable without a value, which many records may share.
func unset(id string) bool {
	u, ok := parseUUID(id)
	return id == "" || ok && (u == uuid.Nil || u == uuid.Max) || slices.ContainsFunc(
		[]string{"null", "undefined", "none", "nil", "<nil>", "nan"},
		func(word string) bool { return strings.EqualFold(id, word) })
}

// sourceID is [ForeignID] for an event with a source: only source and id together identify a CloudEvent, so a UUID
// becomes the hash of both. It keeps the time of a UUIDv7.
func sourceID(source, id string) uuid.UUID {
	u := ForeignID(source, id)
	if given, ok := parseUUID(id); !ok || given != u {
		return u
	}
	h := uuid.NewSHA1(ForeignNamespace, []byte("uuid\x00"+source+"\x00"+u.String()))
	if t, ok := IDTime(u); ok {
		putTime(&h, t)
		h[6] = h[6]&0x0f | 0x70
	}
	return h
}

// parseUUID is uuid.Parse without its ambiguity: of 38 characters that reads the middle 36 only, so that "1<uuid>1" and
// "1<uuid>2" would be one id.
func parseUUID(id string) (uuid.UUID, bool) {
	if len(id) == 38 && (id[0] != '{' || id[37] != '}') {
		return uuid.Nil, false
	}
	u, err := uuid.Parse(id)
	return u, err == nil && (len(id) != 32 || u.Version() != 7)
}

// RecordID returns an id for a record without one: the UUIDv5 of its place in the log and its timestamp. The timestamp
// is included because a topic that was deleted and created again repeats its offsets.
func RecordID(topic string, partition int32, offset int64, timestamp time.Time) uuid.UUID {
	b := []byte("record\x00" + topic + "\x00")
	b = binary.BigEndian.AppendUint32(b, uint32(partition))
	b = binary.BigEndian.AppendUint64(b, uint64(offset))
	b = binary.BigEndian.AppendUint64(b, uint64(timestamp.UnixMilli()))
	return uuid.NewSHA1(ForeignNamespace, b)
}
