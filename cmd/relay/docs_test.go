package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/cmd/internal/service"
)

// quotedCommand is a command in a document: in backticks, or in a block, where a quoted argument may span lines.
var quotedCommand = regexp.MustCompile("(?m)`relay ([a-z][^`|<]*)`|^(?:\\./|bin/)?relay " +
	"((?:[a-z]|\"[^\"]*\")(?:[^|<>#\n\"]|\"[^\"]*\")*)")

var quotedText = regexp.MustCompile(`"[^"]*"`)

// TestDocumentsNameCommands: the commands in the documents exist, with their flags.
func TestDocumentsNameCommands(t *testing.T) {
	t.Parallel()
	var files []string
	for _, pattern := range []string{
		"../../README.md", "../../docs/*.md", "../../docs/operations/*.md",
		"../../docs/runbooks/*.md", "../../docs/platforms/*.md",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	n, parse := 0, lineParser(t, environment{})
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range quotedCommand.FindAllStringSubmatch(string(text), -1) {
			n++
			args := strings.Fields(quotedText.ReplaceAllString(m[1]+m[2], "text"))
			err := parse(args)
			// A document may leave out required flags, and may name a group of commands.
			if err != nil && !strings.Contains(err.Error(), "missing flags") &&
				!strings.HasPrefix(err.Error(), "expected one of") {
				t.Errorf("%s: relay %s: %v", file, strings.Join(args, " "), err)
			}
		}
	}
	if n < 40 {
		t.Errorf("found %d commands in %d documents", n, len(files))
	}
}

// TestSettingsOfTheUnit: the settings in the packages' environment file are settings of run.
func TestSettingsOfTheUnit(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/systemd/relay.env")
	if err != nil {
		t.Fatal(err)
	}
	env := environment{}
	for _, m := range regexp.MustCompile(`(?m)^#(RELAY_\w+)=(.*)$`).FindAllStringSubmatch(string(text), -1) {
		if name, isFile := strings.CutSuffix(m[1], "_FILE"); isFile {
			env[name] = "in a file"
		} else {
			env[m[1]] = m[2]
		}
	}
	var c cli
	line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: env.get}
	parsed, err := line.Parse(&c, []string{"run"}, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range parsed.Flags() {
		delete(env, line.Variable(flag.Name))
	}
	if len(env) > 0 {
		t.Errorf("not settings of run: %v", env)
	}
}
