package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Command returns a relay command, quoted for a shell: the verb's words, then where, which are the flags that name the
// database, and --schema, unless it is empty. A flag and its value are one word, as --key=-k: a value of its own that
// begins with - would be a flag. With a NUL, which no process takes as an argument, it is a comment in place of that.
func Command(where []string, schema string, args ...string) string {
	words := []string{"relay"}
	at := 0
	for at < len(args) && !strings.HasPrefix(args[at], "-") {
		at++
	}
	words = append(words, args[:at]...)
	words = append(words, where...)
	if schema != "" {
		words = append(words, "--schema="+schema)
	}
	words = append(words, args[at:]...)
	if slices.ContainsFunc(words, func(w string) bool { return strings.ContainsRune(w, 0) }) {
		return "# there is no command: a NUL byte, which is in one of its values, cannot be in an argument"
	}
	return quoted(words...)
}

// Reason is the flag with the placeholder for a reason, which is shown as it is. relay refuses the placeholder.
const (
	Reason      = `--reason="` + Placeholder + `"`
	Placeholder = "..."
)

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

// quote quotes a word for a shell; of a flag with a value, the value. Bytes that are no text need a shell that knows
// $'...'.
func quote(w string) string {
	if name, value, ok := strings.Cut(w, "="); ok && strings.HasPrefix(w, "--") && strings.Trim(name, plain) == "" {
		if w == Reason || value == "" {
			return w
		}
		return name + "=" + quote(value)
	}
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
	f.list[len(f.list)-1].Command = Command(f.where, f.inSchema, append(args, Reason)...)
}

// tool is run for one of Kafka's own tools.
func (f *findings) tool(name string, args ...string) {
	f.list[len(f.list)-1].Command = tool(name, f.brokers, args...)
}

// tool returns a command of one of Kafka's own tools. An empty value is one to fill in: a shell says which, and does
// not run the command without it.
func tool(name, brokers string, args ...string) string {
	words := append([]string{name, "--bootstrap-server", brokers}, args...)
	for i, w := range words {
		if words[i] = quote(w); w == "" {
			words[i] = `"${` + strings.ToUpper(strings.ReplaceAll(strings.Trim(words[i-1], "-"), "-", "_")) + `:?}"`
		}
	}
	return strings.Join(words, " ")
}

// SetGroup returns the command of Kafka's own tool that sets a stopped group to an offset.
func SetGroup(brokers, group, topic string, partition int32, to int64) string {
	return tool("kafka-consumer-groups.sh", brokers, "--group", group, "--topic",
		fmt.Sprintf("%s:%d", topic, partition), "--reset-offsets", "--to-offset", strconv.FormatInt(to, 10),
		"--execute")
}
