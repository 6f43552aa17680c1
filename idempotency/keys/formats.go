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

// ErrOutsideWindow matches the error of a Window's checks for a well-formed key that is too old, or further in the
// future than Window.Skew. The error matches ErrInvalidKey too.
var ErrOutsideWindow = errors.New("idempotency key outside the window in which keys are accepted")

// NewV4 returns a random key, a UUIDv4.
//
// When to choose it: the default. The caller makes one key per intent and uses it for all retries. Cost: each key is
// stored until its tombstone is deleted; random keys are scattered over the index. Trap: it has no time, so a retry
// after the tombstone's deletion is a new request. It panics only when the system has no randomness.
func NewV4() string { return uuid.NewString() }

// CheckV4 returns an error, matching ErrInvalidKey, for a value that is not a UUIDv4 in its canonical spelling: lower
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
	// Age is the maximum age of a key, by the server's clock. 0 means 48 h, a day less than the default tombstone. It
	// should be shorter than Retention.Tombstone, less the longest time from a key's creation to its completion.
	Age time.Duration
	// Skew is how far a client's clock may be ahead. 0 means 5 min; negative: not at all.
	Skew time.Duration
	// Now is the server's clock. Nil: time.Now.
	Now func() time.Time
}

// CheckV7 returns an error, matching ErrInvalidKey, for a value that is not a UUIDv7 in its canonical spelling (lower
// case, with hyphens), and one that also matches ErrOutsideWindow for a key outside the window. See NewV7 for when to
// choose it.
func (w Window) CheckV7(value string) error {
	id, err := parseKey(value, 7)
	if err != nil {
		return err
	}
	var ms [8]byte
	copy(ms[2:], id[:6])
	return w.check(time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:]))))
}

// CheckULID is CheckV7 for clients that use ULIDs: 26 characters of Crockford's base 32 in upper case. See NewV7 for
// when to choose it, its cost and its trap.
func (w Window) CheckULID(value string) error {
	id, err := ulid.ParseStrict(value)
	if err != nil || id.String() != value {
		return fmt.Errorf("%w: it is not a ULID in upper case", idempotency.ErrInvalidKey)
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
	switch elapsed := now().Sub(at); {
	case elapsed > age:
		return fmt.Errorf("%w: %w: it is older than %v", idempotency.ErrInvalidKey, ErrOutsideWindow, age)
	case -elapsed > max(skew, 0):
		return fmt.Errorf("%w: %w: it is more than %v in the future", idempotency.ErrInvalidKey, ErrOutsideWindow,
			max(skew, 0))
	}
	return nil
}

// parseKey parses a UUID of that version in its canonical spelling.
func parseKey(value string, version uuid.Version) (uuid.UUID, error) {
	id, err := uuid.Parse(value)
	if err != nil || id.Version() != version || id.Variant() != uuid.RFC4122 || id.String() != value {
		return uuid.UUID{}, fmt.Errorf("%w: it is not a UUIDv%d in lower case with hyphens", idempotency.ErrInvalidKey,
			version)
	}
	return id, nil
}

// Intent returns the key of the intent that the parts identify, a UUIDv5 of them: the same parts give the same key, so
// it need not be stored. Different lists of parts are different intents.
//
// When to choose it: the caller cannot keep a key over its own crash, and the intent has a name: ("invoice", "2026-07",
// customer). Cost: a hash. Trap: the payload does not identify an intent, for a second purchase of the same things
// would get the first one's answer. If the meaning of the parts changes, raise version, or new intents get old keys.
// The key is not a secret: everyone who knows the parts can compute it.
func Intent(namespace uuid.UUID, version int, parts ...string) string {
	var b strings.Builder
	b.WriteString("v" + strconv.Itoa(version))
	for _, part := range parts {
		b.WriteString(":" + strconv.Itoa(len(part)) + ":" + part)
	}
	return uuid.NewSHA1(namespace, []byte(b.String())).String()
}
