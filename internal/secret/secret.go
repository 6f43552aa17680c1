// Package secret has a type for passwords and URLs with passwords, which prints, logs and encodes itself as three
// stars.
package secret

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// stars stand for a secret everywhere but in Reveal.
const stars = "***"

// ErrEmptyFile is wrapped by the error for an empty file, such as one that is being replaced.
var ErrEmptyFile = errors.New("the file is empty")

// Value is a secret, or the file or command that has it. The zero Value is not set.
type Value struct {
	// A closure: fmt and debuggers print unexported fields without their methods.
	read func() (string, error)
}

// Of makes a Value of a text. An empty text makes the zero Value.
func Of(text string) Value {
	if text == "" {
		return Value{}
	}
	return Value{func() (string, error) { return text, nil }}
}

// InFile makes a Value that is read from a file at each Reveal, so that it follows a rotation. A newline at the end is
// removed.
func InFile(path string) Value {
	return Value{func() (string, error) {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		text := strings.TrimRight(string(content), "\r\n")
		if text == "" {
			return "", fmt.Errorf("%s: %w", path, ErrEmptyFile)
		}
		if strings.HasPrefix(text, "\ufeff") {
			return "", fmt.Errorf("%s begins with a byte order mark, which cannot be seen: write it without one", path)
		}
		return text, nil
	}}
}

// IsSet reports whether the Value has a secret, a file or a command.
func (v Value) IsSet() bool { return v.read != nil }

// Reveal returns the secret, or "" for the zero Value. Only a file or a command can fail; the error does not contain
// the secret.
func (v Value) Reveal() (string, error) {
	if v.read == nil {
		return "", nil
	}
	return v.read()
}

// UnmarshalText sets the Value as Of does.
func (v *Value) UnmarshalText(text []byte) error {
	*v = Of(string(text))
	return nil
}

// String returns stars.
func (Value) String() string { return stars }

// GoString returns stars.
func (Value) GoString() string { return stars }

// Format writes stars for every verb.
func (Value) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, stars) }

// MarshalText returns stars.
func (Value) MarshalText() ([]byte, error) { return []byte(stars), nil }

// MarshalJSON returns stars as a string.
func (Value) MarshalJSON() ([]byte, error) { return []byte(`"` + stars + `"`), nil }

// LogValue returns stars.
func (Value) LogValue() slog.Value { return slog.StringValue(stars) }
