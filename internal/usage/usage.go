// Package usage marks the errors of wrong settings.
package usage

import "fmt"

// Error is a wrong command line or setting: the program did nothing, and says what to change.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error as fmt.Errorf makes an error.
func Errorf(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }
