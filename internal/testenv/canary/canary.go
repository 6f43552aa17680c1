// Package canary finds leaked secrets and payloads: tests use unique texts as secrets, collect all output of a program,
// and search it for them in every form in which programs print bytes.
package canary

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

// Leaks returns the canaries that text contains: verbatim, in hex, in base64 of a longer value, and as the decimal
// bytes that %v prints of a []byte. It ignores case. A canary needs at least eight bytes to be unique in base64.
func Leaks(text string, canaries ...string) (found []string) {
	lower := strings.ToLower(text)
	for _, c := range canaries {
		for _, form := range forms(c) {
			if strings.Contains(lower, strings.ToLower(form)) {
				found = append(found, c)
				break
			}
		}
	}
	return found
}

func forms(c string) []string {
	list := []string{c, hex.EncodeToString([]byte(c)), strings.Trim(fmt.Sprint([]byte(c)), "[]")}
	// Bytes before the canary shift its base64 by zero to two bytes. Cut off the characters that it shares with its
	// neighbours.
	for before := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", before) + c))
		head, tail := (before*4+2)/3, 0
		if (before+len(c))%3 != 0 {
			tail = 4
		}
		list = append(list, encoded[head:len(encoded)-tail])
	}
	return list
}

// Lines returns the lines of text that leak a canary, for a test's message.
func Lines(text string, canaries ...string) (lines []string) {
	for line := range strings.Lines(text) {
		if len(Leaks(line, canaries...)) > 0 {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}
