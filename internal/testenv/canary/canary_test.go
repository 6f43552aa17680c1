package canary_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/canary"
)

// TestLeaksFinds: Leaks finds a secret in every form.
func TestLeaksFinds(t *testing.T) {
	t.Parallel()
	const c = "Canary-41d8/+"
	for _, before := range []string{"", "a", "ab", "abc", "abcd"} {
		for _, after := range []string{"", "y", "yz", "yz1"} {
			whole := before + c + after
			var log bytes.Buffer
			slog.New(slog.NewJSONHandler(&log, nil)).Info("a", "value", []byte(whole), "error",
				fmt.Errorf("no %q", whole))
			inJSON, _ := json.Marshal(map[string]any{"a": []byte(whole)})
			for form, text := range map[string]string{
				"plain": whole, "quoted": fmt.Sprintf("%q", whole), "upper case": strings.ToUpper(whole),
				"hex": fmt.Sprintf("%x", whole), "HEX": fmt.Sprintf("%X", whole),
				"bytea": fmt.Sprintf(`\x%x`, whole), "bytes": fmt.Sprint([]byte(whole)),
				"base64":         base64.StdEncoding.EncodeToString([]byte(whole)),
				"base64 of URLs": base64.StdEncoding.EncodeToString([]byte("https://" + whole)), "log": log.String(),
				"JSON": string(inJSON),
			} {
				if got := canary.Leaks("some\n"+text+"\nmore", c, "another-canary"); len(got) != 1 || got[0] != c {
					t.Errorf("%q as %s: found %q in %s", whole, form, got, text)
				}
			}
		}
	}
	if got := canary.Leaks("only parts: canary, 41d8", c); got != nil {
		t.Errorf("found %q", got)
	}
	if got := canary.Lines("one\ntwo "+c+"\nthree", c); len(got) != 1 || got[0] != "two "+c {
		t.Errorf("lines %q", got)
	}
}
