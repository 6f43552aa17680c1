package redact_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/internal/redact"
)

const private = `4111-1111"and 'more' of it`

// TestErrorLeavesValuesOut: what is left still says what was wrong, and is the same error to errors.Is and errors.As.
func TestErrorLeavesValuesOut(t *testing.T) {
	t.Parallel()
	pg := func(code, message string) error {
		return &pgconn.PgError{Severity: "ERROR", Code: code, Message: message}
	}
	_, number := strconv.Atoi(private)
	_, when := time.Parse(time.RFC3339, private)
	var small struct{ Card int8 }
	literal := json.Unmarshal([]byte(`{"Card": 411111111}`), &small)
	_, argument := pgtype.NewMap().Encode(pgtype.Int4OID, pgtype.BinaryFormatCode,
		map[string]string{"x": private + " into text format for "}, nil)
	_, list := pgtype.NewMap().Encode(pgtype.Int4ArrayOID, pgtype.BinaryFormatCode, []string{private}, nil)
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"postgres": {
			pg("22P02", `invalid input syntax for type integer: "`+private+`"`),
			"ERROR: invalid input syntax for type integer: … (SQLSTATE 22P02)",
		},
		"postgres, middle": {
			pg("22003", `value "`+private+`" is out of range for type integer`),
			"value … is out of range for type integer",
		},
		"postgres, German": {
			pg("22P02", "ungültige Eingabesyntax für Typ integer: »"+private+"«"),
			"ungültige Eingabesyntax für Typ integer: …",
		},
		"number":           {number, `strconv.Atoi: parsing …: invalid syntax`},
		"time":             {when, `is no time of the layout "2006-01-02T15:04:05Z07:00"`},
		"JSON":             {literal, "cannot unmarshal number … into Go struct field"},
		"argument":         {argument, "unable to encode … into binary format for int4 (OID 23)"},
		"argument, a list": {list, "unable to encode … into binary format for _int4 (OID 1007)"},
		"wrapped": {
			fmt.Errorf("booking: %w", pg("22P02", `bad: "`+private+`"`)),
			"booking: ERROR: bad: … (SQLSTATE 22P02)",
		},
		"several": {
			errors.Join(io.EOF, number, pg("22P02", `bad: "`+private+`"`)),
			"EOF\nstrconv.Atoi: parsing …: invalid syntax\nERROR: bad: …",
		},
		"said twice":        {redact.Error(fmt.Errorf("a: %w", number)), "a: strconv.Atoi: parsing …"},
		"wrapped, said":     {fmt.Errorf("b: %w", redact.Error(number)), "b: strconv.Atoi: parsing …"},
		"name of a table":   {pg("42P01", `relation "ledger" does not exist`), `relation "ledger" does not exist`},
		"the author's text": {errors.New(`no account "77"`), `no account "77"`},
	} {
		if name == "argument" || name == "argument, a list" {
			c.err = fmt.Errorf("failed to encode args[0]: %w", c.err)
		}
		got := redact.Error(c.err)
		if text := got.Error(); !strings.Contains(text, c.want) || strings.Contains(text, "4111") ||
			strings.Contains(text, "more") {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
		if !errors.Is(got, c.err) {
			t.Errorf("%s: another error", name)
		}
	}
	if redact.Error(nil) != nil {
		t.Error("an error of nothing")
	}
	if err := redact.Error(io.EOF); err != io.EOF {
		t.Errorf("%#v", err)
	}
}

func TestPanic(t *testing.T) {
	t.Parallel()
	for want, value := range map[string]any{
		" with a string, whose text": private, " with a *errors.errorString": errors.New(private),
		" with a redact_test.struct1": struct1{private},
	} {
		if got := redact.Panic(value); !strings.HasPrefix(got, want) || strings.Contains(got, "4111") {
			t.Errorf("%s, want %s", got, want)
		}
	}
	defer func() {
		if got := redact.Panic(recover()); got != ": runtime error: index out of range [3] with length 0" {
			t.Error(got)
		}
	}()
	_ = []int{}[len("abc")]
}

type struct1 struct{ card string }
