// Package outcome marks an error with what is known of the work that returned it. Effects of an inbox, and work behind
// an idempotency key, return such errors; package inbox and package idempotency say what follows from a mark.
package outcome

import "errors"

// Class is what an error says of the work.
type Class int

const (
	// Unclassified: the error has no mark, and its receiver decides: a transaction that was rolled back had no effect,
	// whereas a call to a provider may have had one.
	Unclassified Class = iota
	// ClassTerminal: refused for good; another run cannot help.
	ClassTerminal
	// ClassRetryable: nothing has happened, and a later run may succeed.
	ClassRetryable
	// ClassUnknown: it may have happened.
	ClassUnknown
)

type marked struct {
	class Class
	code  string
	err   error
}

func (m *marked) Error() string {
	if m.code != "" {
		return m.code + ": " + m.err.Error()
	}
	return m.err.Error()
}

func (m *marked) Unwrap() error { return m.err }

// Terminal marks err as a final refusal. code is its cause for machines, short and stable, such as "card_declined".
// Terminal returns nil if err is nil.
func Terminal(code string, err error) error { return mark(ClassTerminal, code, err) }

// Retryable marks err as one after which certainly nothing has happened, for example because another system is down.
// Retryable returns nil if err is nil.
func Retryable(err error) error { return mark(ClassRetryable, "", err) }

// Unknown marks err as one after which the work may have happened, for example because a provider did not answer.
// Unknown returns nil if err is nil.
func Unknown(err error) error { return mark(ClassUnknown, "", err) }

func mark(class Class, code string, err error) error {
	if err == nil {
		return nil
	}
	return &marked{class: class, code: code, err: err}
}

// Of returns the outermost mark of err, and the code if it is [Terminal].
func Of(err error) (Class, string) {
	if m, ok := errors.AsType[*marked](err); ok {
		return m.class, m.code
	}
	return Unclassified, ""
}
