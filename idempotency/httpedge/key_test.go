package httpedge_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/httpedge"
)

func TestKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 255)
	for name, c := range map[string]struct {
		header []string
		want   string
		err    error
	}{
		"none": {nil, "", httpedge.ErrNoKey},
		"bare": {
			[]string{"8e03978e-40d5-43e8-bc93-6894a57f9324"},
			"8e03978e-40d5-43e8-bc93-6894a57f9324", nil,
		},
		"quoted": {
			[]string{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`},
			"8e03978e-40d5-43e8-bc93-6894a57f9324", nil,
		},
		"white space around":   {[]string{" \tk\t "}, "k", nil},
		"white space inside":   {[]string{`" k "`}, " k ", nil},
		"escapes":              {[]string{`"a\"b\\c"`}, `a"b\c`, nil},
		"bare with backslash":  {[]string{`a\b`}, `a\b`, nil},
		"one character":        {[]string{"k"}, "k", nil},
		"longest":              {[]string{long}, long, nil},
		"longest quoted":       {[]string{`"` + long + `"`}, long, nil},
		"empty":                {[]string{""}, "", idempotency.ErrInvalidKey},
		"empty quoted":         {[]string{`""`}, "", idempotency.ErrInvalidKey},
		"too long":             {[]string{long + "k"}, "", idempotency.ErrInvalidKey},
		"twice":                {[]string{"a", "a"}, "", idempotency.ErrInvalidKey},
		"not closed":           {[]string{`"k`}, "", idempotency.ErrInvalidKey},
		"one quote":            {[]string{`"`}, "", idempotency.ErrInvalidKey},
		"something behind":     {[]string{`"a", "b"`}, "", idempotency.ErrInvalidKey},
		"with a parameter":     {[]string{`"a";v=1`}, "", idempotency.ErrInvalidKey},
		"an escape of nothing": {[]string{`"a\"`}, "", idempotency.ErrInvalidKey},
		"another escape":       {[]string{`"a\n"`}, "", idempotency.ErrInvalidKey},
		"control character":    {[]string{"a\x01b"}, "", idempotency.ErrInvalidKey},
		"newline in quotes":    {[]string{"\"a\nb\""}, "", idempotency.ErrInvalidKey},
		"not ASCII":            {[]string{"schlüssel"}, "", idempotency.ErrInvalidKey},
		"DEL":                  {[]string{"a\x7f"}, "", idempotency.ErrInvalidKey},
	} {
		got, err := httpedge.Key(&http.Request{Header: http.Header{"Idempotency-Key": c.header}})
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, c.want, c.err)
		}
		if err != nil && len(c.header) > 0 && len(c.header[0]) > 3 && strings.Contains(err.Error(), c.header[0]) {
			t.Errorf("%s: the error repeats the key: %v", name, err)
		}
	}
}

func FuzzKey(f *testing.F) {
	for _, s := range []string{"k", `"k"`, `"a\"b"`, `"`, "", "\x00", `"a" `, `\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := httpedge.Key(&http.Request{Header: http.Header{"Idempotency-Key": {s}}})
		if err != nil {
			if got != "" || !errors.Is(err, idempotency.ErrInvalidKey) {
				t.Fatalf("%q: %q, %v", s, got, err)
			}
			return
		}
		if (idempotency.Key{Operation: "o", Value: got}).Check() != nil {
			t.Fatalf("%q: accepted as %q", s, got)
		}
		// The quoted form of what was understood is the same key.
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(got) + `"`
		if again, err := httpedge.Key(&http.Request{Header: http.Header{"Idempotency-Key": {quoted}}}); err != nil ||
			again != got {
			t.Fatalf("%q is %q, and quoted %q, %v", s, got, again, err)
		}
	})
}
