package httpedge

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/effectonce/effectonce/idempotency"
)

// The headers.
const (
	// HeaderKey carries the caller's key.
	HeaderKey = "Idempotency-Key"
	// HeaderReplayed is "true" in an answer that a former attempt was given too.
	HeaderReplayed = "Idempotent-Replayed"
	// HeaderPolicy says how long a key is remembered; see [Policy].
	HeaderPolicy = "Idempotency-Policy"
)

// ErrNoKey: the request has no Idempotency-Key.
var ErrNoKey = errors.New("the Idempotency-Key is missing")

// Key returns the request's Idempotency-Key: of the quoted form, a string of RFC 9651, what it stands for, so that "k"
// and k are the same key. Without one the error is ErrNoKey. When the header is there more than once, or is not 1 to
// 255 bytes of printable ASCII, it matches idempotency.ErrInvalidKey. Nothing is looked up, and no error repeats the
// key.
func Key(r *http.Request) (string, error) {
	values := r.Header.Values(HeaderKey)
	switch len(values) {
	case 0:
		return "", ErrNoKey
	case 1:
	default:
		return "", fmt.Errorf("%w: %s is there %d times; want it once", idempotency.ErrInvalidKey, HeaderKey,
			len(values))
	}
	value := strings.Trim(values[0], " \t")
	if strings.HasPrefix(value, `"`) {
		var ok bool
		if value, ok = unquote(value); !ok {
			return "", fmt.Errorf("%w: %s begins with a quote and is no string of RFC 9651", idempotency.ErrInvalidKey,
				HeaderKey)
		}
	}
	// The operation is a stand-in: only the key's own part is checked here.
	if err := (idempotency.Key{Operation: "any", Value: value}).Check(); err != nil {
		return "", err
	}
	return value, nil
}

// unquote reads a String of RFC 9651, section 4.2.5, with nothing behind it: the draft gives the field no parameters.
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
