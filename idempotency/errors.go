package idempotency

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrMismatch: the key was used for another command. A [*MismatchError] says what became of that one.
	ErrMismatch = errors.New("idempotency key reused with a different request")
	// ErrInProgress: another attempt is running. An [*InProgressError] says when to come again.
	ErrInProgress = errors.New("a request with this idempotency key is in progress")
	// ErrUnknown: the work may have happened; recovery is to find out. The caller keeps its key and asks again later.
	// An [*UnknownError] says how far the work came.
	ErrUnknown = errors.New("the outcome of this idempotency key's request is unknown")
	// ErrExpired: the work was done or refused, and its result is no longer kept. An [*ExpiredError] says which.
	ErrExpired = errors.New("the result of this idempotency key is no longer kept")
)

// MismatchError is ErrMismatch with what its owner may know. It is only ever about a key of the same tenant and
// operation.
type MismatchError struct {
	State    State  // of the first command
	Resource string // what it made, if that is known
	// Version is the fingerprint's that the record has; when the request knew none of that version, the two could not
	// be compared.
	Version int16
}

// Error says what became of the first command.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("%v (the first one is %s)", ErrMismatch, e.State)
}

// Unwrap returns ErrMismatch.
func (e *MismatchError) Unwrap() error { return ErrMismatch }

// InProgressError is ErrInProgress with what is left of the owner's lease.
type InProgressError struct {
	RetryAfter time.Duration // until the lease ends, by the store's clock; the owner may be done earlier, or extend it
	Age        time.Duration // since the claim
}

// Error says when the lease of the other attempt ends.
func (e *InProgressError) Error() string {
	return fmt.Sprintf("%v; its lease ends in %v", ErrInProgress, e.RetryAfter)
}

// Unwrap returns ErrInProgress.
func (e *InProgressError) Unwrap() error { return ErrInProgress }

// UnknownError is ErrUnknown with how far the work came.
type UnknownError struct {
	Stage  Stage
	Stuck  bool // recovery gave up: a person has to look
	Reason string
}

// Error says how far the work came.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("%v (it came to %s)", ErrUnknown, e.Stage)
}

// Unwrap returns ErrUnknown.
func (e *UnknownError) Unwrap() error { return ErrUnknown }

// ExpiredError is ErrExpired with the outcome that is still known.
type ExpiredError struct {
	Code     int    // as in Result
	Failure  string // as in Result; empty for success
	Resource string // as in Result
	At       time.Time
}

// Error is ErrExpired's text.
func (e *ExpiredError) Error() string { return ErrExpired.Error() }

// Unwrap returns ErrExpired.
func (e *ExpiredError) Unwrap() error { return ErrExpired }

// Class is what an error says of the work that returned it.
type Class int

const (
	// Unclassified: the error says nothing. Whoever runs the work decides: one transaction that was rolled back
	// certainly did nothing; after a call to a provider nobody knows.
	Unclassified Class = iota
	// ClassTerminal: certainly no, for good: kept and replayed.
	ClassTerminal
	// ClassRetryable: certainly did not happen, and may the next time: nothing is kept.
	ClassRetryable
	// ClassUnknown: may have happened.
	ClassUnknown
)

type classified struct {
	class Class
	code  string
	err   error
}

func (c *classified) Error() string {
	if c.code != "" {
		return c.code + ": " + c.err.Error()
	}
	return c.err.Error()
}

func (c *classified) Unwrap() error { return c.err }

// Terminal marks an error as a final refusal: the effect is rolled back, and the Result returned beside the error, its
// Failure set to the code, is kept and replayed. The code is stable and short: "card_declined". InTx and guards return
// that Result and no error, the first time as every time after. Of a nil error it returns nil.
func Terminal(code string, err error) error { return mark(ClassTerminal, code, err) }

// Retryable marks an error after which certainly nothing has happened: the key is free again. Of a nil error it returns
// nil.
func Retryable(err error) error { return mark(ClassRetryable, "", err) }

// OutcomeUnknown marks an error after which the work may have happened: the outcome is unknown until recovery has
// asked. Of a nil error it returns nil.
func OutcomeUnknown(err error) error { return mark(ClassUnknown, "", err) }

func mark(class Class, code string, err error) error {
	if err == nil {
		return nil
	}
	return &classified{class: class, code: code, err: err}
}

// Classify returns the outermost mark of an error, and the code if it is Terminal.
func Classify(err error) (Class, string) {
	var c *classified
	if errors.As(err, &c) {
		return c.class, c.code
	}
	return Unclassified, ""
}
