package idempotency

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"
)

// ErrOutsideWindow is in the error of a Window's checks, beside ErrInvalidKey: the key is well-formed, and too old, or from a
// future that no clock's error explains. Nothing was looked up or recorded for it.
var ErrOutsideWindow = errors.New("idempotency key outside the window in which keys are accepted")

// NewKey returns a random key, a UUIDv4.
//
// When to choose it: the default; whoever makes the intent makes one, keeps it over all retries, and throws it away with the
// intent. Cost: each key is stored until its tombstone goes; in the order of the index they are scattered. Trap: it says nothing
// of its age, so a retry that comes after the tombstone is a new request. It panics only when the system has no randomness.
func NewKey() string { return uuid.NewString() }

// CheckV4 returns an error, matching ErrInvalidKey, for a value that is no UUIDv4 in its canonical spelling: lower case, with hyphens.
// Another spelling would be another key.
func CheckV4(value string) error {
	_, err := parseKey(value, 4)
	return err
}

// NewTimedKey returns a key that names its millisecond, a UUIDv7, which a Window can refuse when it is old.
//
// When to choose it: a late retry must never be taken for a new request, although tombstones are not kept for ever. Cost: as
// NewKey, and keys of one time stand together in the index; the client's clock has to be about right. Trap: whoever sees the key learns
// when it was made; and a client that makes a new key for each attempt is no safer than without one. It panics only when the
// system has no randomness.
func NewTimedKey() string { return uuid.Must(uuid.NewV7()).String() }

// Window accepts keys that name their time, while they are young. When it is shorter than the tombstones are kept, no
// retry can outlive what is remembered of it: it is refused, and never run as new.
type Window struct {
	// Age is how old a key may be, by the server's clock and the key's own word. 0 means 48 h, which leaves a day to the default
	// tombstone. It should be shorter than Retention.Tombstone, less the longest time from a key's first use to its completion.
	Age time.Duration
	// Skew is how far a client's clock may be ahead. 0 means 5 min; negative allows none.
	Skew time.Duration
	// Now is the server's clock. Nil: time.Now.
	Now func() time.Time
}

// CheckV7 returns an error, matching ErrInvalidKey, for a value that is no UUIDv7 in its canonical spelling (lower case, with hyphens), and one that
// also matches ErrOutsideWindow for a key that is not of the window. See NewTimedKey for when to choose it.
func (w Window) CheckV7(value string) error {
	id, err := parseKey(value, 7)
	if err != nil {
		return err
	}
	var ms [8]byte
	copy(ms[2:], id[:6])
	return w.check(time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:]))))
}

// CheckULID is CheckV7 for clients that make ULIDs: 26 characters of Crockford's base 32 in upper case. When to choose it, its cost and its
// trap are NewTimedKey's.
func (w Window) CheckULID(value string) error {
	id, err := ulid.ParseStrict(value)
	if err != nil || id.String() != value {
		return fmt.Errorf("%w: it is no ULID in upper case", ErrInvalidKey)
	}
	return w.check(id.Timestamp())
}

func (w Window) check(at time.Time) error {
	now, age, skew := time.Now, w.Age, w.Skew
	if w.Now != nil {
		now = w.Now
	}
	if age <= 0 {
		age = 48 * time.Hour
	}
	if skew == 0 {
		skew = 5 * time.Minute
	}
	switch old := now().Sub(at); {
	case old > age:
		return fmt.Errorf("%w: %w: it is older than %v", ErrInvalidKey, ErrOutsideWindow, age)
	case -old > max(skew, 0):
		return fmt.Errorf("%w: %w: it is more than %v ahead", ErrInvalidKey, ErrOutsideWindow, max(skew, 0))
	}
	return nil
}

// parseKey parses a UUID of that version in its canonical spelling.
func parseKey(value string, version uuid.Version) (uuid.UUID, error) {
	id, err := uuid.Parse(value)
	if err != nil || id.Version() != version || id.Variant() != uuid.RFC4122 || id.String() != value {
		return uuid.UUID{}, fmt.Errorf("%w: it is no UUIDv%d in lower case with hyphens", ErrInvalidKey, version)
	}
	return id, nil
}

// IntentKey returns the key of an intent, a UUIDv5 of the parts that make it one: the same intent always gets the same key, without
// anybody keeping it. No two lists of parts are the same intent.
//
// When to choose it: the caller cannot keep a key over its own crash, and the intent has a name: ("invoice", "2026-07", customer).
// Cost: none beside the hash. Trap: a hash of the payload is no intent, a second purchase of the same things would be told the
// first one's answer; and when the meaning of "the same intent" changes, version must rise, or new intents are taken for
// old ones. It is no secret: whoever knows the parts knows the key.
func IntentKey(namespace uuid.UUID, version int, intent ...string) string {
	var b strings.Builder
	b.WriteString("v" + strconv.Itoa(version))
	for _, part := range intent {
		b.WriteString(":" + strconv.Itoa(len(part)) + ":" + part)
	}
	return uuid.NewSHA1(namespace, []byte(b.String())).String()
}

// ErrTooFarAhead is Watermark.Add's: the number would leave more missing below it than the watermark may remember.
var ErrTooFarAhead = errors.New("number too far ahead of the watermark")

// Watermark remembers which numbers of one source were done, in the room of those that were done out of turn.
//
// When to choose it: a source numbers its requests without holes, and one row for the source is better than one for each request: an
// importer, a device, a queue's partition. Cost: the row is written, and locked, with each effect, in its transaction, so that one
// source's requests go one by one. Trap: the highest number alone is not enough. A takes 100 and B takes 101, B is done
// first: who remembers only 101 drops 100 as done. So Low moves only over numbers that are all done, and Above holds the rest; and a number
// that never comes holds Low back for ever, which Add's bound turns into an error.
//
// The numbers of our own relay's lanes have none of these holes: the inbox's deduplication by watermark uses them. A position in the
// WAL (the relay's WAL source: commit LSN and place in the transaction) and a partition's offset (event.RecordID) are such numbers only
// together with the timeline, or with the topic's incarnation: a promotion, a restore or a topic made again starts
// them over.
type Watermark struct {
	// Low: this number and all below it are done. A source that begins with 0 starts with a Low of -1.
	Low int64 `json:"low"`
	// Above are the numbers beyond Low that are done, ascending; Low+1 is never among them.
	Above []int64 `json:"above,omitempty"`
}

// Has says whether a number is done.
func (w Watermark) Has(n int64) bool {
	_, found := slices.BinarySearch(w.Above, n)
	return n <= w.Low || found
}

// Add notes that a number is done, and returns false when it was already. It returns ErrTooFarAhead, and notes nothing, when
// n is more than ahead beyond Low. Above is a new slice after it: a copy of the watermark made before stays as it was.
func (w *Watermark) Add(n int64, ahead int64) (bool, error) {
	at, found := slices.BinarySearch(w.Above, n)
	if n <= w.Low || found {
		return false, nil
	}
	// Both may be far from zero, and their difference beyond an int64: as a uint64 it is exact, for n is the greater.
	if uint64(n)-uint64(w.Low) > uint64(max(ahead, 0)) {
		return false, fmt.Errorf("%w: %d of %d", ErrTooFarAhead, n, w.Low)
	}
	above := slices.Insert(slices.Clone(w.Above), at, n)
	for len(above) > 0 && above[0] == w.Low+1 {
		w.Low++
		above = above[1:]
	}
	w.Above = above
	return true, nil
}
