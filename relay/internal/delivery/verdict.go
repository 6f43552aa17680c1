package delivery

import (
	"errors"
	"strings"
)

// The scopes of a refusal.
const (
	ScopeRecord = "record"
	ScopeTopic  = "topic"
)

// Rejected reports whether a verdict is a certain refusal, and its scope.
func Rejected(err error) (scope string, ok bool) {
	var r interface{ Rejected() bool }
	if !errors.As(err, &r) || !r.Rejected() {
		return "", false
	}
	var s interface{ Scope() string }
	if errors.As(err, &s) && s.Scope() == ScopeTopic {
		return ScopeTopic, true
	}
	return ScopeRecord, true
}

// notSent reports whether a verdict says that the call did not send the event.
func notSent(err error) bool {
	var n interface{ NotSent() bool }
	return errors.As(err, &n) && n.NotSent()
}

// maybeWritten reports whether a refusal came after an attempt whose outcome is unknown.
func maybeWritten(err error) bool {
	var m interface{ MaybeWritten() bool }
	return errors.As(err, &m) && m.MaybeWritten()
}

// Refusal is a certain refusal for operators: a code to search by, and the broker's error as valid text for a column.
type Refusal struct{ Code, Error string }

// longestError bounds what is stored of an error.
const longestError = 1000

func refusalOf(err error) *Refusal {
	code := "REFUSED"
	var c interface{ RefusalCode() string }
	if errors.As(err, &c) {
		code = c.RefusalCode()
	}
	return &Refusal{text(code), ErrorText(err, longestError)}
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
