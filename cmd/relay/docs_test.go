package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/effectonce/effectonce/cmd/internal/service"
)

// quotedCommand is a command in a document: in backticks, or in a block, where a quoted argument may span lines.
var quotedCommand = regexp.MustCompile("(?m)`relay ([a-z][^`|<]*)`|^(?:\\./|bin/)?relay " +
	"((?:[a-z]|\"[^\"]*\")(?:[^|<>#\n\"]|\"[^\"]*\")*)")

var quotedText = regexp.MustCompile(`"[^"]*"`)

// documents returns the texts of the pages that name commands and flags, by their paths.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{
		"../../README.md", "../../docs/*.md", "../../docs/operations/*.md",
		"../../docs/runbooks/*.md", "../../docs/platforms/*.md",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts[file] = string(text)
		}
	}
	return texts
}

// TestDocumentsNameCommands: the commands in the documents exist, with their flags.
func TestDocumentsNameCommands(t *testing.T) {
	t.Parallel()
	files := documents(t)
	n, parse := 0, lineParser(t, environment{})
	for file, text := range files {
		for _, m := range quotedCommand.FindAllStringSubmatch(text, -1) {
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

// quotedDefault is a flag with its default in brackets: `--hold-after` (5 s).
var quotedDefault = regexp.MustCompile("`--([a-z-]+)`\\s\\((?:default: )?`?([0-9]+(?: [A-Za-z]+)?|[a-z]+)`?\\)")

// TestDocumentsNameDefaults: the defaults in the documents are those of the flags.
func TestDocumentsNameDefaults(t *testing.T) {
	t.Parallel()
	defaults := map[string][]string{} // by flag, of all commands
	var learn func(node *kong.Node)
	learn = func(node *kong.Node) {
		for _, flag := range node.Flags {
			text := flag.Default
			if d, err := time.ParseDuration(text); err == nil {
				text = d.String()
			}
			defaults[flag.Name] = append(defaults[flag.Name], text)
		}
		for _, child := range node.Children {
			learn(child)
		}
	}
	learn(model(t))
	n := 0
	for file, text := range documents(t) {
		for _, m := range quotedDefault.FindAllStringSubmatch(text, -1) {
			n++
			want := strings.NewReplacer(" min", "m", " MiB", "", " ", "").Replace(m[2])
			if d, err := time.ParseDuration(want); err == nil {
				want = d.String()
			}
			if !slices.Contains(defaults[m[1]], want) {
				t.Errorf("%s: %s: the flag's defaults are %q", file, m[0], defaults[m[1]])
			}
		}
	}
	if n < 8 {
		t.Errorf("found %d defaults", n)
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
