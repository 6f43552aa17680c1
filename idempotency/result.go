package idempotency

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Result is the answer to a caller, the same for the first attempt and every retry.
type Result struct {
	// Code is the caller's own status: an HTTP status at the edge, where 0 is 204 of a success without a body, 200 with
	// one, and 422 of a Failure. Not 500 and above: see Check.
	Code int
	// Header has the answer's headers: at the edge, allow-listed HTTP headers in canonical form.
	Header map[string][]string
	// Body is the answer's body; nil if it is rendered from Resource.
	Body []byte
	// Resource identifies the created resource, such as a payment's id, so that the answer can be rendered again.
	Resource string
	// Schema is the version of the answer's format (response_schema_version).
	Schema int
	// Failure is the stable code of a final failure ("card_declined"); empty for success.
	Failure string

	// Replayed: the result is an earlier attempt's. Set by the reader of a store, never stored.
	Replayed bool
	// At is when the work was completed, by the store's clock. Set by the store.
	At time.Time
}

// Check returns an error for a result that must not be replayed or cannot be stored: one with a code of 500 or above,
// which is a temporary failure, or with text that is not UTF-8 or has a zero byte. After one pgstore rolls the work's
// transaction back; a guard, which cannot, treats a success as unknown.
func (r Result) Check() error {
	if r.Code >= 500 {
		return fmt.Errorf("idempotency: a result with the code %d would be replayed for as long as it is kept: "+
			"return an error instead", r.Code)
	}
	texts := map[string][]string{"Resource": {r.Resource}, "Failure": {r.Failure}}
	for name, values := range r.Header {
		texts["Header"] = append(append(texts["Header"], name), values...)
	}
	for field, all := range texts {
		if slices.ContainsFunc(all, func(s string) bool { return !utf8.ValidString(s) || strings.ContainsRune(s, 0) }) {
			return fmt.Errorf("idempotency: the result's %s is not UTF-8 or has a zero byte, which not "+
				"every store can keep", field)
		}
	}
	return nil
}

// Clone returns a copy that shares neither body nor headers.
func (r Result) Clone() Result {
	r.Body, r.Header = slices.Clone(r.Body), maps.Clone(r.Header)
	for name, values := range r.Header {
		r.Header[name] = slices.Clone(values)
	}
	return r
}

// Retention is how long a completed key is kept, from its completion, by the store's clock.
type Retention struct {
	// Body is how long the result can be replayed: 0 means 24 h; negative keeps it as long as the tombstone.
	Body time.Duration
	// Tombstone is how long the key, its fingerprint and its outcome are kept, at least as long as Body: 0 means 72 h,
	// longer than a weekend; negative keeps them for ever.
	Tombstone time.Duration
}

// Exact returns the retention with the defaults in place of zeros.
func (r Retention) Exact() Retention {
	r.Body, r.Tombstone = r.Terms()
	return r
}

// Terms returns the retention with its defaults, negative for ever. The tombstone is kept at least as long as the body.
func (r Retention) Terms() (body, tombstone time.Duration) {
	body, tombstone = r.Body, r.Tombstone
	if body == 0 {
		body = 24 * time.Hour
	}
	if tombstone == 0 {
		tombstone = 72 * time.Hour
	}
	if tombstone < 0 {
		return max(body, -1), -1
	}
	if body < 0 {
		return tombstone, tombstone
	}
	return body, max(body, tombstone)
}
