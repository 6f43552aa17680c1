package doctor

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Command returns a relay command, quoted for a shell: the verb's words, then where, which are the flags that name the
// database, and --schema, unless it is empty.
func Command(where []string, schema string, args ...string) string {
	words := []string{"relay"}
	at := 0
	for at < len(args) && !strings.HasPrefix(args[at], "-") {
		at++
	}
	words = append(words, args[:at]...)
	words = append(words, where...)
	if schema != "" {
		words = append(words, "--schema", schema)
	}
	words = append(words, args[at:]...)
	return quoted(words...)
}

// Reason is the placeholder for a reason.
const Reason = ` --reason "..."`

// plain lists the characters that need no quotes in a shell.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+"

// quoted quotes words for a shell.
func quoted(words ...string) string {
	list := make([]string, len(words))
	for i, w := range words {
		list[i] = quote(w)
	}
	return strings.Join(list, " ")
}

// quote quotes a word for a shell. Bytes that are no text need a shell that knows $'...'.
func quote(w string) string {
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

// run sets the command of the last finding.
func (f *findings) run(args ...string) {
	f.list[len(f.list)-1].Command = Command(f.where, f.inSchema, args...)
}

// runWhy is run for a command that requires a reason.
func (f *findings) runWhy(args ...string) {
	f.list[len(f.list)-1].Command = Command(f.where, f.inSchema, args...) + Reason
}

// tool is run for one of Kafka's own tools.
func (f *findings) tool(name string, args ...string) {
	f.list[len(f.list)-1].Command = quoted(append([]string{name, "--bootstrap-server", f.brokers}, args...)...)
}
