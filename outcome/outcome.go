// Package outcome marks an error with what is known of the work that returned it. Effects of an inbox, work behind an
// idempotency key, and publishers of a relay return such errors; packages inbox, idempotency and relay say what follows
// from them.
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

// Refusal is a publisher's verdict on an event that is certainly not written, and will not be until its topic, the
// broker or the event changes.
type Refusal struct {
	// Topic: all events of the topic are refused, not only this one.
	Topic bool
	// Code is the cause for operators to search by: Kafka's name of the error, such as "MESSAGE_TOO_LARGE". Empty:
	// "REFUSED".
	Code string
	// MaybePublished: an earlier attempt of the same call had no answer, and may have written the event.
	MaybePublished bool
	// Err is the reason. Required.
	Err error
}

// Error returns the reason.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the reason.
func (r *Refusal) Unwrap() error { return r.Err }
