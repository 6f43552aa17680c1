package httpedge

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/effectonce/effectonce/idempotency"
)

// Headers.
const (
	// HeaderKey is the caller's key.
	HeaderKey = "Idempotency-Key"
	// HeaderReplayed is "true" in a replayed answer.
	HeaderReplayed = "Idempotent-Replayed"
	// HeaderPolicy is the retention of keys; see [Policy].
	HeaderPolicy = "Idempotency-Policy"
)

// ErrNoKey: the request has no Idempotency-Key.
var ErrNoKey = errors.New("the Idempotency-Key is missing")

// Key returns the request's Idempotency-Key, without the quotes of a string of RFC 9651: "k" and k are the same key.
// Without a key the error is ErrNoKey. If the header occurs more than once, or is not 1 to 255 bytes of printable
// ASCII, it matches idempotency.ErrInvalidKey. No error quotes the key.
func Key(r *http.Request) (string, error) {
	values := r.Header.Values(HeaderKey)
	switch len(values) {
	case 0:
		return "", ErrNoKey
	case 1:
	default:
		return "", fmt.Errorf("%w: %s occurs %d times; want it once", idempotency.ErrInvalidKey, HeaderKey,
			len(values))
	}
	value := strings.Trim(values[0], " \t")
	if strings.HasPrefix(value, `"`) {
		var ok bool
		if value, ok = unquote(value); !ok {
			return "", fmt.Errorf("%w: %s begins with a quote and is not a string of RFC 9651",
				idempotency.ErrInvalidKey,
				HeaderKey)
		}
	}
	// Any valid operation will do: only Value is checked here.
	if err := (idempotency.Key{Operation: "any", Value: value}).Check(); err != nil {
		return "", err
	}
	return value, nil
}

// unquote parses a String of RFC 9651, section 4.2.5, without parameters, which the draft does not allow.
func unquote(s string) (string, bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			return b.String(), i == len(s)-1
		case '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}
