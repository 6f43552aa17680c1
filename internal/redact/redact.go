// Package redact takes out of errors what they quote of somebody's data, before they reach a log, a span or a table.
//
// It knows what the libraries under an effect quote: Postgres, pgx and Go's own parsers repeat the value that they
// refuse. What people write into errors of their own is theirs, and stays.
package redact

import (
	"encoding/json"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// left stands where something was left out.
const left = "…"

// Error returns err, or, where its text repeats a value, an error with the same tree and a text without it.
func Error(err error) error {
	if err == nil {
		return nil
	}
	whole := err.Error()
	text := withoutArguments(walk(err, whole))
	if text == whole {
		return err
	}
	return &told{err, text}
}

type told struct {
	err  error
	text string
}

func (t *told) Error() string { return t.text }

// Unwrap returns the error as it was.
func (t *told) Unwrap() error { return t.err }

// walk takes the values out of text that the errors in the tree of err are known to hold.
func walk(err error, text string) string {
	switch e := err.(type) {
	case *told:
		return text
	case *pgconn.PgError:
		// Data exceptions. The messages of all other classes name tables, columns and constraints, and keep values to
		// their details.
		if strings.HasPrefix(e.Code, "22") {
			text = strings.ReplaceAll(text, e.Message, quoted.ReplaceAllString(e.Message, left))
		}
	case *strconv.NumError:
		text = strings.ReplaceAll(text, strconv.Quote(e.Num), left)
	case *time.ParseError:
		text = strings.ReplaceAll(text, e.Error(), "a text that is no time of the layout "+strconv.Quote(e.Layout))
	case *json.UnmarshalTypeError:
		if kind, value, ok := strings.Cut(e.Value, " "); ok && value != "" {
			text = strings.ReplaceAll(text, e.Value, kind+" "+left)
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if next := e.Unwrap(); next != nil {
			text = walk(next, text)
		}
	case interface{ Unwrap() []error }:
		for _, next := range e.Unwrap() {
			text = walk(next, text)
		}
	}
	return text
}

// quoted is from the first quotation mark of a message to the last, in the languages that Postgres speaks: a value may
// hold any.
var quoted = regexp.MustCompile(`(?s)["'«»„“”‚‘’「].*["'«»„“”‚‘’」]`)

// What pgx says of an argument that it cannot encode: the value in Go's notation, and after it the type's name.
const (
	argument = "unable to encode "
	binary   = " into binary format for "
	text     = " into text format for "
)

// withoutArguments cuts the value off, and all that follows the type: causes repeat parts of it.
func withoutArguments(s string) string {
	before, after, found := strings.Cut(s, argument)
	if !found {
		return s
	}
	for _, format := range []string{binary, text} {
		if i := strings.LastIndex(after, format); i >= 0 {
			name, _, _ := strings.Cut(after[i+len(format):], ":")
			return before + argument + left + format + name
		}
	}
	return before + argument + left
}

// Panic says what kind of panic it was, to follow "panicked". The text of one that is not the runtime's own may
// hold anything: only its type is told, and the stack, which is the caller's to log, says where it was.
func Panic(value any) string {
	if r, ok := value.(runtime.Error); ok {
		return ": " + r.Error()
	}
	return fmt.Sprintf(" with a %T, whose text may hold a payload and is left out", value)
}
