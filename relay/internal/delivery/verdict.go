package delivery

import (
	"cmp"
	"errors"
	"strings"

	"github.com/effectonce/effectonce/outcome"
)

// Refused returns the certain refusal that a verdict is, or nil.
func Refused(err error) *outcome.Refusal {
	r, _ := errors.AsType[*outcome.Refusal](err)
	return r
}

// notSent reports whether a verdict says that the call did not send the event.
func notSent(err error) bool {
	class, _ := outcome.Of(err)
	return class == outcome.ClassRetryable
}

// Cause is why an event is parked: a code to search by, and the broker's error as a text column takes it.
type Cause struct{ Code, Error string }

// longestError bounds what is stored of an error.
const longestError = 1000

func causeOf(refused error) *Cause {
	return &Cause{text(cmp.Or(Refused(refused).Code, "REFUSED")), ErrorText(refused, longestError)}
}

// ErrorText is an error as a text column takes it, cut to so many bytes and three dots.
func ErrorText(err error, longest int) string {
	message := text(err.Error())
	if len(message) > longest {
		message = strings.ToValidUTF8(message[:longest], "") + "..."
	}
	return message
}

func text(s string) string { return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?") }
