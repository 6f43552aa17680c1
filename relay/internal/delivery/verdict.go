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

// Rejected reports whether a verdict is a certain refusal, and of what.
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

// Refusal is a certain refusal as an operator reads it: a code to search by, and the broker's words, fit for a text
// column.
type Refusal struct{ Code, Reason string }

// longestReason bounds what is stored of a refusal.
const longestReason = 1000

func refusalOf(err error) *Refusal {
	code := "REFUSED"
	var c interface{ RefusalCode() string }
	if errors.As(err, &c) {
		code = c.RefusalCode()
	}
	reason := text(err.Error())
	if len(reason) > longestReason {
		reason = strings.ToValidUTF8(reason[:longestReason], "") + "..."
	}
	return &Refusal{text(code), reason}
}

func text(s string) string { return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?") }
