// Package verbs describes each change that operators make from the command line and from the pages, once: its command,
// what it takes, what it refuses, what it does and what it says. The flags of the command line, the fields of a form,
// the command that a page shows, and the answers of both follow from it.
package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Verb is a change by an operator O: of an outbox, of a consumer, or of idempotency keys.
type Verb[O any] struct {
	Command string // after `relay`
	Title   string // what a page calls it, with what it changes
	Help    string // the longer text of --help; may be empty
	// OnlyTopic is the topic of a verb that everybody may use who may change all tenants of that topic; empty: it
	// changes more.
	OnlyTopic string
	Refusal   error // why Do cannot work with the flags; it names them
	// Do makes the change, and puts the reason into the audit.
	Do func(ctx context.Context, o O, reason string) (Done, error)
}

// Of is implemented by structs whose fields are the flags of a verb: texts, integers, bools, a *string for a text that
// may be absent, and embedded structs of these. [Flags] and [Read] panic for others. A field that is no flag has the
// tag kong:"-". The tags of a field are those of the command line's parser: help, default and name.
type Of[O any] interface{ Verb() Verb[O] }

// Done is what a verb has done.
type Done struct {
	Text   string // sentences
	Values any    // for --json
}

// PartlyError says that a verb was broken off after a part of its changes. Of the next one it is unknown; later ones
// were not begun.
type PartlyError struct {
	Done Done
	Err  error
}

// Error implements error.
func (e *PartlyError) Error() string { return "broken off: " + e.Done.Text + ": " + e.Err.Error() }

// Unwrap returns the error that has broken it off.
func (e *PartlyError) Unwrap() error { return e.Err }

// topicName is Kafka's rule for names.
var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// IsTopic reports whether a topic may have this name.
func IsTopic(name string) bool { return topicName.MatchString(name) }

func checkTopic(topic string) error {
	switch {
	case topic == "":
		return errors.New("--topic is missing")
	case !IsTopic(topic):
		return fmt.Errorf("--topic: %s is no topic's name", Shown(topic))
	}
	return nil
}

// Flags returns the flags of a struct that are not at their default, each with its value in one word.
func Flags(of any) (flags []string) {
	for _, f := range fields(reflect.ValueOf(of)) {
		switch {
		case f.isDefault():
		case f.value.Kind() == reflect.Bool:
			flags = append(flags, "--"+f.name)
		default:
			flags = append(flags, "--"+f.name+"="+fmt.Sprint(reflect.Indirect(f.value)))
		}
	}
	return flags
}

// Read sets the fields of the struct that v points to from a form. A field that is not in the form gets its default,
// and so does a number whose field is blank. Of a bool only 1 is yes; other texts are refused.
func Read(v any, form url.Values) error {
	for _, f := range fields(reflect.ValueOf(v).Elem()) {
		text := f.byDefault
		switch {
		case form.Has(f.name):
			text = form.Get(f.name)
		case f.value.Kind() == reflect.Pointer: // an empty text is not none
			f.value.SetZero()
			continue
		}
		if err := f.set(text); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

type field struct {
	name, byDefault string
	value           reflect.Value
}

// fields returns the fields that are flags, those of embedded structs too.
func fields(of reflect.Value) (all []field) {
	of = reflect.Indirect(of)
	for i := range of.NumField() {
		f := of.Type().Field(i)
		switch {
		case f.Tag.Get("kong") == "-":
		case f.Anonymous:
			all = append(all, fields(of.Field(i))...)
		case !isFlag(f.Type):
			panic(fmt.Sprintf("verbs: %s.%s is a %s: see Of", of.Type(), f.Name, f.Type))
		default:
			name, named := f.Tag.Lookup("name")
			if !named {
				name = dashed(f.Name)
			}
			all = append(all, field{name, f.Tag.Get("default"), of.Field(i)})
		}
	}
	return all
}

// isFlag reports whether a form gives values of a type.
func isFlag(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool:
		return true
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return t != reflect.TypeFor[time.Duration]()
	default:
		return t == reflect.TypeFor[*string]()
	}
}

// dashed returns the flag of a field: ContentType is content-type.
func dashed(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && 'A' <= r && r <= 'Z' {
			b.WriteByte('-')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

func (f field) isDefault() bool {
	if f.byDefault == "" {
		return f.value.IsZero()
	}
	return fmt.Sprint(f.value) == f.byDefault
}

func (f field) set(text string) error {
	switch f.value.Kind() {
	case reflect.String:
		f.value.SetString(text)
	case reflect.Bool:
		if text != "" && text != "1" {
			return errors.New("neither 1, which is yes, nor empty")
		}
		f.value.SetBool(text == "1")
	case reflect.Pointer:
		f.value.Set(reflect.ValueOf(&text))
	default:
		if text = cmp.Or(text, f.byDefault); text == "" {
			f.value.SetZero()
			return nil
		}
		n, err := strconv.ParseInt(text, 10, f.value.Type().Bits())
		if err != nil {
			return errors.New("no number of its size")
		}
		f.value.SetInt(n)
	}
	return nil
}

// Shown returns a foreign text, quoted if it is empty or has invisible characters.
func Shown(s string) string {
	if quoted := strconv.QuoteToGraphic(s); s == "" || quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// Visible makes characters visible that a browser hides or a terminal obeys, or that change the direction of text.
func Visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ':
			return 0x2400 + r
		case r == 0x7f, unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r), unicode.Is(unicode.Cf, r):
			return '\u2421'
		}
		return r
	}, s)
}

// Plural counts: 1 event, 2 events.
func Plural(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
