package idempotency

import (
	"errors"
	"fmt"
)

// MaxKey is the maximum number of bytes of each part of a Key.
const MaxKey = 255

// ErrInvalidKey matches the error of Key.Check. Nothing was looked up or recorded for such a key.
var ErrInvalidKey = errors.New("invalid idempotency key")

// Key identifies one intent of one principal: requests with the same three strings are the same request. So tenants
// cannot collide with or learn of each other's keys, and a Value may be used for two operations.
type Key struct {
	// Tenant is the caller as the server authenticated it, never a name that the client claims. Empty only if there is
	// one tenant.
	Tenant string
	// Operation is the name of the operation, stable across releases: "payment.create". Required.
	Operation string
	// Value is the caller's key. Required.
	Value string
}

// Check returns an error that matches ErrInvalidKey if a part is not 1 to MaxKey bytes of printable ASCII (Tenant may
// be empty). It names the part and does not quote the client's key.
func (k Key) Check() error {
	if err := checkPart("tenant", k.Tenant, 0); err != nil {
		return err
	}
	if err := checkPart("operation", k.Operation, 1); err != nil {
		return err
	}
	return checkPart("key", k.Value, 1)
}

func checkPart(name, s string, minLen int) error {
	if len(s) < minLen || len(s) > MaxKey {
		return fmt.Errorf("%w: the %s has %d bytes; %d to %d are allowed", ErrInvalidKey, name, len(s), minLen, MaxKey)
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return fmt.Errorf("%w: byte %d of the %s is not printable ASCII", ErrInvalidKey, i, name)
		}
	}
	return nil
}

// Fingerprint identifies a command: the SHA-256 of the validated command in a canonical form, and that form's version.
type Fingerprint struct {
	Version int16
	Sum     [32]byte
}

// Request is one attempt at an intent.
type Request struct {
	Key Key
	// Fingerprint is that of the command, in the version for new records. Required.
	Fingerprint Fingerprint
	// Older are fingerprints of the same command in versions that records of earlier releases may have.
	Older []Fingerprint
	// Input is the data with which recovery continues the work without the caller: normally the canonical command. It
	// is kept until the work is finished. Nil: only the caller's retry can continue.
	Input []byte
}

// Matches reports whether f is one of the request's fingerprints. A version that the request does not have does not
// match: a refusal is better than another command's answer.
func (r Request) Matches(f Fingerprint) bool {
	if r.Fingerprint == f {
		return true
	}
	for _, old := range r.Older {
		if old == f {
			return true
		}
	}
	return false
}
