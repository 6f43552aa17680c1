package idempotency

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrMismatch: the key was used for another command. A [*MismatchError] has the state of that one.
	ErrMismatch = errors.New("idempotency key reused with a different request")
	// ErrInProgress: another attempt is running. An [*InProgressError] says when to retry.
	ErrInProgress = errors.New("a request with this idempotency key is in progress")
	// ErrUnknown: the work may have happened; recovery will find out. The caller keeps its key and retries later. An
	// [*UnknownError] has the stage of the work.
	ErrUnknown = errors.New("the outcome of this idempotency key's request is unknown")
	// ErrExpired: the work was done or refused, and its result is no longer kept. An [*ExpiredError] has the outcome.
	ErrExpired = errors.New("the result of this idempotency key is no longer kept")
)

// MismatchError is ErrMismatch with the outcome of the first command, which is of the same tenant and operation.
type MismatchError struct {
	State    State  // of the first command
	Resource string // that it created, if known
	// Version is that of the record's fingerprint. A request without a fingerprint of this version always mismatches.
	Version int16
}

// Error has the state of the first command.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("%v (the first request is %s)", ErrMismatch, e.State)
}

// Unwrap returns ErrMismatch.
func (e *MismatchError) Unwrap() error { return ErrMismatch }

// InProgressError is ErrInProgress with the rest of the owner's lease.
type InProgressError struct {
	RetryAfter time.Duration // until the lease ends; the owner may finish earlier, or extend it
	Age        time.Duration // since the claim
}

// Error says when the lease of the other attempt ends.
func (e *InProgressError) Error() string {
	return fmt.Sprintf("%v; its lease ends in %v", ErrInProgress, e.RetryAfter)
}

// Unwrap returns ErrInProgress.
func (e *InProgressError) Unwrap() error { return ErrInProgress }

// UnknownError is ErrUnknown with the stage of the work.
type UnknownError struct {
	Stage  Stage
	Stuck  bool // recovery gave up: a person must resolve it
	Reason string
}

// Error has the stage of the work.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("%v (stage %s)", ErrUnknown, e.Stage)
}

// Unwrap returns ErrUnknown.
func (e *UnknownError) Unwrap() error { return ErrUnknown }

// ExpiredError is ErrExpired with the outcome, which is still kept.
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
