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

// Canonical returns a command's canonical bytes: its JSON in the form of RFC 8785, so that the order of members, white
// space and the spelling of numbers and texts do not matter, and everything else does.
//
// What it makes of things, beside what encoding/json does:
//
//   - Numbers are exact. RFC 8785 rounds to a float64, to which 9007199254740993 and 9007199254740992 are one; a number
//     that a float64 does not hold is written as a marked text of all its digits instead. So int64, *big.Int and
//     json.Number are safe. A number with an exponent beyond a million is refused, as are NaN and the infinities.
//   - A float goes in as its shortest decimal: 0.1+0.2 is another amount than 0.3. Amounts belong into integers of the
//     minor unit.
//   - A time goes in as its text, zone and nanoseconds included: validation pins it (t.UTC().Truncate(time.Second)), or
//     the same instant from two zones is two commands. The same holds for what depends on a locale (a decimal comma, a
//     month's name), and for texts that only look alike: nothing is folded, trimmed or brought into a normal form of
//     Unicode.
//   - Text that is not UTF-8 is refused: encoding/json would make all of it one. So is U+FFFD, which stands for what
//     encoding/json has read of such text before, \ud800 and \udfff among it; and a member that occurs twice, in a
//     json.RawMessage.
//   - nil and empty slices and maps are two things (null, []), an absent member and a zero one are, unless omitempty
//     leaves it out. Bytes go in as base64.
//
// Pass the validated command, a Go value with defaults applied and unknown fields refused or dropped, not the body as
// it came: else a client that leaves out a default asks something else than one that spells it out.
func Canonical(command any) ([]byte, error) {
	plain, err := json.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("idempotency: a command of type %T is no JSON: %w", command, err)
	}
	return canonical(plain)
}

// ErrInvalidCommand is in the error of a command that has no canonical form: validation has to refuse it. The error
// repeats nothing of it.
var ErrInvalidCommand = errors.New("the command has no canonical form")

var (
	errUTF8 = fmt.Errorf("idempotency: %w: a text of it is no Unicode, or has U+FFFD in the place of what was lost",
		ErrInvalidCommand)
	errNumber = fmt.Errorf("idempotency: %w: a number of it has an exponent beyond a million", ErrInvalidCommand)
	// The library's own errors repeat the command.
	errJSON = fmt.Errorf("idempotency: %w (RFC 8785): a member occurs twice, or a text is no Unicode",
		ErrInvalidCommand)
)

// canonical is Canonical of valid JSON.
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

// nul begins the text that stands for a number; a text of the command that begins with it gets one more.
const nul = `\u0000`

// markNumbers replaces the numbers that a float64 does not hold exactly by texts that no text of the command becomes.
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
			if bytes.HasPrefix(plain[i+1:], []byte(nul)) {
				out = append(out, nul...)
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

// appendNumber appends a number's literal, or its mark and digits when a float64 does not hold it.
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
	return append(out, `"`+nul+want+`"`...), nil
}

// decimal brings a number's literal into one spelling: sign, digits without zeros around them, exponent.
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
