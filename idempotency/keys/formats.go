package keys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"

	"github.com/effectonce/effectonce/idempotency"
)

// ErrOutsideWindow is in the error of a Window's checks, beside ErrInvalidKey: the key is well-formed, and too old, or
// from a future that no clock's error explains. Nothing was looked up or recorded for it.
var ErrOutsideWindow = errors.New("idempotency key outside the window in which keys are accepted")

// NewV4 returns a random key, a UUIDv4.
//
// When to choose it: the default. The caller makes one key per intent and uses it for all retries. Cost: each key is
// stored until its tombstone is deleted; random keys are scattered over the index. Trap: it has no time, so a retry
// after the tombstone's deletion is a new request. It panics only when the system has no randomness.
func NewV4() string { return uuid.NewString() }

// CheckV4 returns an error, matching ErrInvalidKey, for a value that is no UUIDv4 in its canonical spelling: lower
// case, with hyphens. Another spelling would be another key.
func CheckV4(value string) error {
	_, err := parseKey(value, 4)
	return err
}

// NewV7 returns a key with the current time, a UUIDv7. A Window can refuse it when it is old.
//
// When to choose it: a late retry must never count as a new request, although tombstones are deleted some day. Cost:
// each key is stored until its tombstone is deleted, next to keys of the same time in the index; the client's clock
// must be about right. Trap: the key shows when it was made; and a client that makes a new key for each attempt is not
// protected. It panics only when the system has no randomness.
func NewV7() string { return uuid.Must(uuid.NewV7()).String() }

// Window accepts keys that contain their time, up to a maximum age. While that is shorter than the tombstone's
// retention, a retry is refused before its tombstone is deleted, so it never runs as a new request.
type Window struct {
	// Age is how old a key may be, by the server's clock and the time in the key. 0 means 48 h, which leaves a day to
	// the default tombstone. It should be shorter than Retention.Tombstone, less the longest time from a key's first
	// use to its completion.
	Age time.Duration
	// Skew is how far a client's clock may be ahead. 0 means 5 min; negative allows none.
	Skew time.Duration
	// Now is the server's clock. Nil: time.Now.
	Now func() time.Time
}

// CheckV7 returns an error, matching ErrInvalidKey, for a value that is no UUIDv7 in its canonical spelling (lower
// case, with hyphens), and one that also matches ErrOutsideWindow for a key that is not of the window. See NewV7 for
// when to choose it.
func (w Window) CheckV7(value string) error {
	id, err := parseKey(value, 7)
	if err != nil {
		return err
	}
	var ms [8]byte
	copy(ms[2:], id[:6])
	return w.check(time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:]))))
}

// CheckULID is CheckV7 for clients that make ULIDs: 26 characters of Crockford's base 32 in upper case. When to choose
// it, its cost and its trap are NewV7's.
func (w Window) CheckULID(value string) error {
	id, err := ulid.ParseStrict(value)
	if err != nil || id.String() != value {
		return fmt.Errorf("%w: it is no ULID in upper case", idempotency.ErrInvalidKey)
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
		return fmt.Errorf("%w: %w: it is older than %v", idempotency.ErrInvalidKey, ErrOutsideWindow, age)
	case -old > max(skew, 0):
		return fmt.Errorf("%w: %w: it is more than %v ahead", idempotency.ErrInvalidKey, ErrOutsideWindow, max(skew, 0))
	}
	return nil
}

// parseKey parses a UUID of that version in its canonical spelling.
func parseKey(value string, version uuid.Version) (uuid.UUID, error) {
	id, err := uuid.Parse(value)
	if err != nil || id.Version() != version || id.Variant() != uuid.RFC4122 || id.String() != value {
		return uuid.UUID{}, fmt.Errorf("%w: it is no UUIDv%d in lower case with hyphens", idempotency.ErrInvalidKey,
			version)
	}
	return id, nil
}

// Intent returns the key of an intent, a UUIDv5 of the parts that make it one: the same intent always gets the same
// key, without anybody keeping it. No two lists of parts are the same intent.
//
// When to choose it: the caller cannot keep a key over its own crash, and the intent has a name: ("invoice", "2026-07",
// customer). Cost: none beside the hash. Trap: a hash of the payload is no intent, a second purchase of the same things
// would be told the first one's answer; and when the meaning of "the same intent" changes, version must rise, or new
// intents are taken for old ones. It is no secret: whoever knows the parts knows the key.
func Intent(namespace uuid.UUID, version int, intent ...string) string {
	var b strings.Builder
	b.WriteString("v" + strconv.Itoa(version))
	for _, part := range intent {
		b.WriteString(":" + strconv.Itoa(len(part)) + ":" + part)
	}
	return uuid.NewSHA1(namespace, []byte(b.String())).String()
}
