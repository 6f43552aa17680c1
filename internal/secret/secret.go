// Package secret has a type for passwords and for URLs that hold them: whatever prints, logs or encodes one gets three
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

// stars are what everybody sees who does not call Reveal.
const stars = "***"

// ErrEmptyFile is in the error of a secret whose file has nothing in it, as one that is just being replaced may have.
var ErrEmptyFile = errors.New("the file is empty")

// Value is a secret, or the place of one. The zero Value is not set.
type Value struct {
	// A closure: fmt looks into unexported fields without asking their methods, and so do debuggers' dumps.
	read func() (string, error)
}

// Of makes a Value of a text. An empty text makes the zero Value.
func Of(text string) Value {
	if text == "" {
		return Value{}
	}
	return Value{func() (string, error) { return text, nil }}
}

// InFile makes a Value that is read from a file each time that it is revealed, so that a file that is replaced is
// followed. A newline at its end is not part of it.
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

// IsSet tells whether there is anything to reveal.
func (v Value) IsSet() bool { return v.read != nil }

// Reveal returns the secret itself, "" for the zero Value. An error, which names the file and repeats nothing of what
// is in it, is possible only with InFile.
func (v Value) Reveal() (string, error) {
	if v.read == nil {
		return "", nil
	}
	return v.read()
}

// UnmarshalText makes the Value that Of makes.
func (v *Value) UnmarshalText(text []byte) error {
	*v = Of(string(text))
	return nil
}

// String returns stars.
func (Value) String() string { return stars }

// GoString returns stars.
func (Value) GoString() string { return stars }

// Format writes stars, whatever the verb.
func (Value) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, stars) }

// MarshalText returns stars.
func (Value) MarshalText() ([]byte, error) { return []byte(stars), nil }

// MarshalJSON returns stars as a string.
func (Value) MarshalJSON() ([]byte, error) { return []byte(`"` + stars + `"`), nil }

// LogValue returns stars.
func (Value) LogValue() slog.Value { return slog.StringValue(stars) }
