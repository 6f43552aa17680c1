// Package canary finds secrets and payloads where they must not be: tests plant texts that occur nowhere else, collect
// everything that a program says, and look for them in all the forms that programs print bytes in.
package canary

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

// Leaks returns the canaries that are in text: as they are, in hex of either case, in base64 at any place of a longer
// value, and as the decimal bytes that %v makes of a []byte. A canary has at least eight bytes, or its base64 could be
// anybody's. Case is ignored.
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
	// What stands before it shifts its base64 by none, one or two bytes; the characters that its neighbours share are
	// cut off.
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
