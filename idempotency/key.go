package idempotency

import (
	"errors"
	"fmt"
)

// MaxKey is the most bytes that each part of a Key may have.
const MaxKey = 255

// ErrInvalidKey is in the error of Key.Check: the key cannot be used, and nothing was looked up or recorded for it.
var ErrInvalidKey = errors.New("invalid idempotency key")

// Key names one intent of one principal. The same three strings mean the same request; any other means another one, so
// that a tenant neither collides with another's keys nor learns of them, and one key may be used for two operations.
type Key struct {
	// Tenant is who asks, as the server knows it: from authentication, never from what the client claims. Empty only
	// where there is one tenant.
	Tenant string
	// Operation is what is asked, stable over releases: "payment.create". Required.
	Operation string
	// Value is the caller's key. Required.
	Value string
}

// Check returns an error, matching ErrInvalidKey, that says which part is not 1 to MaxKey bytes of printable ASCII
// (Tenant may be empty). It does not repeat the key: it may be long, and it is the client's.
func (k Key) Check() error {
	if err := checkPart("tenant", k.Tenant, 0); err != nil {
		return err
	}
	if err := checkPart("operation", k.Operation, 1); err != nil {
		return err
	}
	return checkPart("key", k.Value, 1)
}

func checkPart(name, s string, least int) error {
	if len(s) < least || len(s) > MaxKey {
		return fmt.Errorf("%w: the %s has %d bytes; %d to %d are allowed", ErrInvalidKey, name, len(s), least, MaxKey)
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return fmt.Errorf("%w: byte %d of the %s is not printable ASCII", ErrInvalidKey, i, name)
		}
	}
	return nil
}

// Fingerprint tells commands apart: the SHA-256 of the validated command in a canonical form, and the version of that
// form.
type Fingerprint struct {
	Version int16
	Sum     [32]byte
}

// Request is one attempt at an intent.
type Request struct {
	Key Key
	// Fingerprint is the command's, in the version that new records keep. Required.
	Fingerprint Fingerprint
	// Older are fingerprints of the same command in versions that records of former releases may have.
	Older []Fingerprint
	// Input is what recovery needs to go on with the work without the caller: normally the canonical command. It is
	// kept while the work is unfinished and erased with its completion. Nil keeps nothing: then only the caller's retry
	// goes on.
	Input []byte
}

// Matches says whether the request asks what a record with this fingerprint asked. A version that the request does not
// know does not match: nobody can tell, and another's answer is worse than a refusal.
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
