package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// TestTerminalObeysNoEvent: what an event or an error says is text for a terminal, and as it is for a program.
func TestTerminalObeysNoEvent(t *testing.T) {
	t.Parallel()
	const hostile = "a\x1b[2J\u202eb\u009b31m\x07"
	for _, colour := range []bool{true, false} {
		var out bytes.Buffer
		to := terminal{Writer: &out, colour: colour}
		fmt.Fprintf(to, "%s %s\n", to.paint(red, "fail"), hostile)
		painted := strings.Contains(out.String(), "\x1b[31mfail\x1b[0m")
		if rest := strings.TrimPrefix(out.String(), to.paint(red, "fail")); painted != colour ||
			strings.ContainsAny(rest, "\x1b\u202e\u009b\x07") {
			t.Errorf("colour %v: %q", colour, out.String())
		}
		out.Reset()
		if err := writeJSON(to, "\u202e"); err != nil || out.String() != "\"\u202e\"\n" {
			t.Errorf("JSON: %q %v", out.String(), err)
		}
	}
}
