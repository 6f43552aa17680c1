package idempotency

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Result is what a caller is told, the first time and every time after.
type Result struct {
	// Code is the caller's own status: an HTTP status at the edge, where 0 is 204 of a success without a body, 200 with
	// one, and 422 of a Failure. Not 500 and above: see Check.
	Code int
	// Header is what belongs to the answer beside its body: at the edge, allow-listed HTTP headers in canonical form.
	Header map[string][]string
	// Body is the answer; nil when Resource says where it comes from.
	Body []byte
	// Resource refers to what was created, so that the answer can be rendered again: a payment's id.
	Resource string
	// Schema is the version of the answer's form (response_schema_version).
	Schema int
	// Failure is the stable code of a final failure ("card_declined"); empty for success.
	Failure string

	// Replayed says that this is a former attempt's result. Set by whoever reads it from a store, never stored.
	Replayed bool
	// At is when the work was completed, by the store's clock. Set by the store.
	At time.Time
}

// Check returns an error for a result that is none to keep and replay: a code of 500 and above is a failure of the
// moment, and text that is not UTF-8, or has a zero byte, is nothing that every store can keep. Work that returns one
// has its transaction rolled back by pgstore; a guard, which cannot, takes a success for unknown.
func (r Result) Check() error {
	if r.Code >= 500 {
		return fmt.Errorf("idempotency: a result with the code %d would be replayed as long as it is kept: return an "+
			"error in its place", r.Code)
	}
	texts := map[string][]string{"Resource": {r.Resource}, "Failure": {r.Failure}}
	for name, values := range r.Header {
		texts["Header"] = append(append(texts["Header"], name), values...)
	}
	for field, all := range texts {
		if slices.ContainsFunc(all, func(s string) bool { return !utf8.ValidString(s) || strings.ContainsRune(s, 0) }) {
			return fmt.Errorf("idempotency: the result's %s is not UTF-8, or has a zero byte: no store keeps it", field)
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

// Retention is how long a completed key is remembered, by the store's clock, counted from its completion.
type Retention struct {
	// Body is how long the result can be replayed: 0 means 24 h; negative keeps it as long as the tombstone.
	Body time.Duration
	// Tombstone is how long the key stays taken, its fingerprint and outcome known, at least as long as Body: 0 means
	// 72 h, which outlives a weekend; negative keeps it for ever.
	Tombstone time.Duration
}

// Terms returns the retention with its defaults: how long body and tombstone are kept, negative for ever. The tombstone
// outlives the body, whatever was set.
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
