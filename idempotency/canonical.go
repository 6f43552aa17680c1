package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// Canonical returns a command's JSON in the canonical form of RFC 8785: the order of members, white space and the
// spelling of numbers and strings do not matter, everything else does. It differs from encoding/json with RFC 8785, or
// may surprise, in these points:
//
//   - Numbers are exact. RFC 8785 rounds to a float64, where 9007199254740993 equals 9007199254740992; a number that a
//     float64 cannot represent becomes a marked string of its digits. So int64, *big.Int and json.Number are safe. A
//     number with an exponent beyond a million is refused, as are NaN and the infinities.
//   - A float is its shortest decimal: 0.1+0.2 differs from 0.3. Use integers of the minor unit for amounts.
//   - A time is its text with zone and nanoseconds: normalize it in validation (t.UTC().Truncate(time.Second)), or one
//     instant in two zones is two commands. The same holds for texts that depend on a locale, or only look alike:
//     nothing is folded, trimmed or normalized.
//   - Text that is not UTF-8 is refused, because encoding/json would make every such text the same. So are U+FFFD,
//     which encoding/json reads for such text, and an object with the same member twice in a json.RawMessage.
//   - nil and empty slices and maps differ (null, []), and so do an absent and a zero member, unless omitempty omits
//     it. Bytes are base64.
//
// Pass the validated command, a Go value with defaults applied and unknown fields refused or dropped, not the request's
// body: otherwise a client that omits a default sends another command than one that includes it.
func Canonical(command any) ([]byte, error) {
	plain, err := json.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("idempotency: a command of type %T cannot be marshaled to JSON: %w", command, err)
	}
	return canonical(plain)
}

// ErrInvalidCommand matches the error for a command without a canonical form, which validation should refuse. The error
// does not quote the command.
var ErrInvalidCommand = errors.New("the command has no canonical form")

var (
	errUTF8 = fmt.Errorf("idempotency: %w: a string in it is not valid UTF-8, or has U+FFFD",
		ErrInvalidCommand)
	errNumber = fmt.Errorf("idempotency: %w: a number in it has an exponent beyond a million", ErrInvalidCommand)
	// The library's own errors quote the command.
	errJSON = fmt.Errorf("idempotency: %w (RFC 8785): an object has a member twice, or a string is not Unicode",
		ErrInvalidCommand)
)

// canonical is Canonical for valid JSON.
func canonical(plain []byte) ([]byte, error) {
	exact, err := markNumbers(plain)
	if err != nil {
		return nil, err
	}
	out, err := jcs.Transform(exact)
	if err != nil {
		return nil, errJSON
	}
	return out, nil
}

// numberMark begins a string that stands for a number; a string of the command that begins with it gets one more.
const numberMark = `\u0000`

// markNumbers replaces numbers that a float64 cannot represent by strings that no string of the command becomes.
func markNumbers(plain []byte) ([]byte, error) {
	if !utf8.Valid(plain) || bytes.ContainsRune(plain, utf8.RuneError) {
		return nil, errUTF8
	}
	out := make([]byte, 0, len(plain))
	for i := 0; i < len(plain); {
		switch c := plain[i]; {
		case c == '"':
			end := i + 1
			for plain[end] != '"' {
				if plain[end] == '\\' {
					if len(plain)-end > 6 && bytes.EqualFold(plain[end:end+6], []byte(`\ufffd`)) {
						return nil, errUTF8
					}
					end++
				}
				end++
			}
			out = append(out, '"')
			if bytes.HasPrefix(plain[i+1:], []byte(numberMark)) {
				out = append(out, numberMark...)
			}
			out = append(out, plain[i+1:end+1]...)
			i = end + 1
		case c == '-' || c >= '0' && c <= '9':
			end := i
			for end < len(plain) && strings.IndexByte("+-.eE0123456789", plain[end]) >= 0 {
				end++
			}
			var err error
			if out, err = appendNumber(out, string(plain[i:end])); err != nil {
				return nil, err
			}
			i = end
		default:
			out = append(out, c)
			i++
		}
	}
	return out, nil
}

// appendNumber appends a number's literal, or its mark and digits if a float64 cannot represent it.
func appendNumber(out []byte, literal string) ([]byte, error) {
	want, err := decimal(literal)
	if err != nil {
		return nil, err
	}
	if f, err := strconv.ParseFloat(literal, 64); err == nil {
		if got, err := decimal(strconv.FormatFloat(f, 'e', -1, 64)); err == nil && got == want {
			return append(out, literal...), nil
		}
	}
	return append(out, `"`+numberMark+want+`"`...), nil
}

// decimal normalizes a number's literal: sign, digits without leading and trailing zeros, exponent.
func decimal(literal string) (string, error) {
	mantissa, exponent := literal, "0"
	if i := strings.IndexAny(literal, "eE"); i >= 0 {
		mantissa, exponent = literal[:i], literal[i+1:]
	}
	sign := ""
	if strings.HasPrefix(mantissa, "-") {
		sign, mantissa = "-", mantissa[1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return "0", nil
	}
	exp, err := strconv.ParseInt(exponent, 10, 64)
	if err != nil || exp > 1e6 || exp < -1e6 {
		return "", errNumber
	}
	trimmed := strings.TrimRight(digits, "0")
	at := exp - int64(len(fraction)) + int64(len(digits)-len(trimmed))
	return sign + trimmed + "e" + strconv.FormatInt(at, 10), nil
}
