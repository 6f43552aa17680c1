// Package format writes figures, times and texts as the pages show them.
package format

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/effectonce/effectonce/ui/verbs"
)

// QueryString returns a query string of alternating names and values, without empty values.
func QueryString(pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" && pairs[i+1] != "0" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}

// Num formats a whole number with thin spaces between thousands.
func Num(n any) string {
	text := fmt.Sprint(n)
	if f, ok := n.(float64); ok {
		text = strconv.FormatFloat(math.Round(f), 'f', 0, 64)
	}
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return sign + text
}

// Rate formats a number per second.
func Rate(f float64) string {
	switch {
	case f < 0:
		return "–"
	case f > 0 && f < .05:
		return "<0.1"
	case f == 0 || f >= 10:
		return Num(f)
	}
	return strconv.FormatFloat(f, 'f', 1, 64)
}

// Dur formats a duration in at most its two largest units.
func Dur(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// Since is the Dur until now.
func Since(t time.Time) string { return Dur(time.Since(t)) }

// ISO formats a time for machines.
func ISO(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// UTC formats a time for people.
func UTC(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Clock formats the time of a day for people.
func Clock(t time.Time) string { return t.UTC().Format("15:04 UTC") }

// Size formats a number of bytes; -1 is a tombstone.
func Size(n int) string {
	switch {
	case n < 0:
		return "tombstone"
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// B64 encodes bytes that need not be text, for forms.
func B64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// UnB64 decodes what B64 has encoded.
func UnB64(s string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	return string(b), err
}

// Plural formats a number of things.
func Plural(n int64, what string) string { return Num(n) + " " + Unit(n, what) }

// Unit returns a noun in the number of n.
func Unit(n int64, what string) string {
	if n == 1 {
		return what
	}
	return what + "s"
}

// VisiblePage is [verbs.Visible] for the text of a page. It leaves tags and text areas as they are: forms send these
// back.
func VisiblePage(page string) string {
	var b strings.Builder
	for page != "" {
		text, rest, found := strings.Cut(page, "<")
		b.WriteString(verbs.Visible(text))
		if !found {
			break
		}
		end := ">"
		if strings.HasPrefix(rest, "textarea") {
			end = "</textarea>"
		}
		tag, after, _ := strings.Cut(rest, end)
		b.WriteString("<" + tag + end)
		page = after
	}
	return b.String()
}

// Indent lays out JSON; false: text is none.
func Indent(text string) (string, bool) {
	var b bytes.Buffer
	err := json.Indent(&b, []byte(text), "", "  ")
	return b.String(), err == nil && len(text) > 0
}
