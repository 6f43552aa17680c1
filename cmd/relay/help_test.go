package main

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestTopics: each topic is a section that exists, and is printed for a narrow terminal.
func TestTopics(t *testing.T) {
	t.Parallel()
	for topic, at := range topics {
		code, text, stderr := command(t, environment{}, "help", topic)
		if code != codeOK || !strings.HasSuffix(text, "\nMore: docs/"+at[0]+"\n") || strings.Count(text, "\n") < 5 {
			t.Errorf("%s: exit code %d: %s%s", topic, code, text, stderr)
		}
		for line := range strings.Lines(text) {
			isCode, word := strings.HasPrefix(line, "    "), !strings.Contains(strings.TrimLeft(line, " -"), " ")
			if utf8.RuneCountInString(line) > 81 && !isCode && !word || strings.HasPrefix(line, "|") {
				t.Errorf("%s: %q", topic, line)
			}
		}
	}
	_, overview, _ := command(t, environment{}, "--help")
	_, list, _ := command(t, environment{}, "parked", "list", "--help")
	for args, want := range map[string]string{
		"help": overview, "help parked list": list,
		"help exit-codes": "  - 6: `doctor`: something fails, or a check could not look",
		"help quotas":     "    at most every ten minutes. Events wait in the outbox.\n",
		"help doctor":     "Connect with the role effectonce_operator",
		"help run":        "SIGHUP drains: claimed events are published",
		"help settings":   "    kafka-brokers: [kafka-1:9092, kafka-2:9092, kafka-3:9092]\n    listen: ",
	} {
		if code, text, stderr := command(t, environment{}, strings.Fields(args)...); code != codeOK ||
			want == "" || !strings.Contains(text, want) {
			t.Errorf("%s: exit code %d: %s%s", args, code, text, stderr)
		}
	}
	for args, want := range map[string]string{
		"help setings":      `setings is no topic and no command, did you mean "settings"?`,
		"help parked lists": `parked lists is no topic and no command`,
		"help statsu":       `did you mean "status"?`,
	} {
		if code, _, stderr := command(t, environment{}, strings.Fields(args)...); code != codeUsage ||
			!strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
}
