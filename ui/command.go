package ui

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// command is a relay command on this database, as a shell takes it.
func (d *database) command(args ...string) string {
	words := []string{"relay"}
	// The verb's words come first, then the flags that say where.
	at := 0
	for at < len(args) && !strings.HasPrefix(args[at], "-") {
		at++
	}
	words = append(words, args[:at]...)
	words = append(words, d.Flags...)
	if d.Schema != "" {
		words = append(words, "--schema", d.Schema)
	}
	words = append(words, args[at:]...)
	for i, w := range words {
		words[i] = quoted(w)
	}
	return strings.Join(words, " ")
}

// withReason adds the place of a reason to a command that is not run yet.
func (d *database) withReason(args ...string) string {
	return d.command(args...) + ` --reason "..."`
}

// plain is what a shell takes as it is.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+"

// quoted is a word for a shell: bytes that are no text need one that knows $'...'.
func quoted(w string) string {
	if w != "" && strings.Trim(w, plain) == "" {
		return w
	}
	text := utf8.ValidString(w)
	for _, r := range w {
		text = text && strconv.IsPrint(r)
	}
	if text {
		return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(w) {
		if c := w[i]; c < ' ' || c > '~' || c == '\'' || c == '\\' {
			b.WriteString(`\x` + strconv.FormatInt(int64(c)|0x100, 16)[1:])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String() + "'"
}

// parked begins the commands of parked events.
func parked(where, verb string, args ...string) []string {
	words := []string{"parked", verb}
	if where == inInbox {
		words = []string{"inbox", "parked", verb}
	}
	return append(words, args...)
}
