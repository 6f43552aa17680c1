package httpedge

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Decode decodes a request's body of at most limit bytes (negative: any) as one JSON value into to, strictly: each
// member once, in the spelling of the struct's tag, no unknown members, no data after the value, and valid Unicode. So
// every parser reads the body the same way. (encoding/json accepts the last of two equal names, any case of a name, and
// reads invalid text as U+FFFD.) The error is a *Problem, 400 or 413, and quotes no value.
func Decode(w http.ResponseWriter, r *http.Request, limit int64, to any) error {
	body, err := readBody(w, r, limit)
	if err != nil {
		return err
	}
	if err := checkJSON(body, reflect.TypeOf(to)); err != nil {
		return err
	}
	err = json.Unmarshal(body, to)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		return badRequest("%s: want %s", wrong.Field, kind(wrong.Type))
	case errors.As(err, &wrong):
		return badRequest("the body: want %s", kind(wrong.Type))
	case err != nil: // an UnmarshalJSON's own error, which may quote the value
		return badRequest("a member has a value that cannot be read")
	}
	return nil
}

// readBody reads the whole body.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if limit < 0 {
		limit = math.MaxInt64
	}
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &Problem{Code: CodeTooLarge, Detail: fmt.Sprintf("the body is longer than %d bytes", large.Limit)}
	case err != nil:
		return nil, &Problem{Code: CodeBadRequest, Detail: "the body ended too early"}
	}
	return body, nil
}

func badRequest(format string, args ...any) error {
	return &Problem{Code: CodeBadRequest, Detail: fmt.Sprintf(format, args...)}
}

// checkJSON refuses a body that is not one JSON value, or that parsers may read differently. Its names must be those of
// t; nil: any.
func checkJSON(body []byte, t reflect.Type) error {
	if !utf8.Valid(body) {
		return badRequest("the body is not UTF-8")
	}
	if !json.Valid(body) {
		return badRequest("the body is not one JSON value")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	return checkValue(dec, t)
}

// kind returns the JSON type for a Go type.
func kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "an integer of at most " + fmt.Sprint(t.Bits()) + " bits"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "an integer of at most " + fmt.Sprint(t.Bits()) + " bits, not negative"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	return "an object"
}

// checkValue checks the names and strings of a value. t is its type, nil for one that unmarshals itself.
func checkValue(dec *json.Decoder, t reflect.Type) error {
	token, err := dec.Token()
	if err != nil {
		return badRequest("the body is not one JSON value")
	}
	if text, ok := token.(string); ok {
		return checkText(text)
	}
	open, nested := token.(json.Delim)
	if !nested {
		return nil
	}
	t = structuralType(t)
	seen := map[string]bool{}
	for dec.More() {
		inner := elem(t)
		if open == '{' {
			token, err := dec.Token()
			if err != nil {
				return badRequest("the body is not one JSON value")
			}
			name, _ := token.(string)
			if err := checkText(name); err != nil {
				return err
			}
			if seen[fold(name)] {
				return badRequest("member %.40q occurs twice", name)
			}
			seen[fold(name)] = true
			if t != nil && t.Kind() == reflect.Struct {
				if inner, err = field(t, name); err != nil {
					return err
				}
			}
		}
		if err := checkValue(dec, inner); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

// checkText refuses U+FFFD, which replaces any invalid text.
func checkText(text string) error {
	if strings.ContainsRune(text, utf8.RuneError) {
		return badRequest("a string is not valid Unicode: it has half a surrogate pair, or U+FFFD")
	}
	return nil
}

var unmarshalers = []reflect.Type{reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()}

// structuralType returns the type behind pointers, nil for one that unmarshals itself.
func structuralType(t reflect.Type) reflect.Type {
	for t != nil {
		implements := func(u reflect.Type) bool { return t.Implements(u) || reflect.PointerTo(t).Implements(u) }
		if slices.ContainsFunc(unmarshalers, implements) {
			return nil
		}
		if t.Kind() != reflect.Pointer {
			return t
		}
		t = t.Elem()
	}
	return nil
}

// elem returns the type of a map's, slice's or array's elements, nil for any other.
func elem(t reflect.Type) reflect.Type {
	if t == nil {
		return nil
	}
	switch t.Kind() {
	case reflect.Map, reflect.Slice, reflect.Array:
		return t.Elem()
	}
	return nil
}

// field returns the type of a struct's member, by the name in its tag.
func field(t reflect.Type, name string) (reflect.Type, error) {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" || !f.IsExported() || f.Anonymous && tag == "" {
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		if tag == name {
			return f.Type, nil
		}
		names = append(names, tag)
	}
	return nil, badRequest("unknown member %.40q: want %s", name, strings.Join(names, ", "))
}

// fold returns the same text for names that encoding/json treats as equal.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		smallest := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			smallest = min(smallest, f)
		}
		return smallest
	}, name)
}
