package main

import (
	"context"
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
var quotedCommand = regexp.MustCompile("(?m)`relay ([a-z][^`|]*)`|^(?:\\./|bin/)?relay " +
	"((?:[a-z]|\"[^\"]*\")(?:[^|<>#\n\"]|\"[^\"]*\")*)")

// What a reader replaces: servers, which are variables here, ports, which may be taken, files, and texts, of which
// those that are quoted may have spaces.
var (
	placeServer = regexp.MustCompile(`--(?:kafka-brokers|database-url)[ =](?:"[^"]*"|\.\.\.)`)
	placePort   = regexp.MustCompile(`:918\d\b`)
	placeFile   = regexp.MustCompile(`\bFILE\b|\b\w+\.json\b|/etc/[\w/-]+`)
	placeText   = regexp.MustCompile(`"[^"]*"|<[^>]*>|\.\.\.`)
)

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

// TestDocumentsNameCommands: the commands in the documents exist, with their flags, and one that is shown with flags
// goes as far as to the database.
func TestDocumentsNameCommands(t *testing.T) {
	t.Parallel()
	files := documents(t)
	n, parse := 0, lineParser(t, environment{})
	someFile := filepath.Join(t.TempDir(), "file")
	const user = "ann:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC:view\n"
	for name, content := range map[string]string{someFile: user, someFile + ".json": "{}"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := environment{
		"RELAY_DATABASE_URL": "postgres://127.0.0.1:1/none", "RELAY_KAFKA_BROKERS": "127.0.0.1:1",
		"RELAY_LISTEN": "127.0.0.1:0", "RELAY_UI_LISTEN": "127.0.0.1:0",
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for file, text := range files {
		for _, m := range quotedCommand.FindAllStringSubmatch(text, -1) {
			n++
			line := placePort.ReplaceAllString(placeServer.ReplaceAllString(m[1]+m[2], ""), ":0")
			line = placeText.ReplaceAllString(placeFile.ReplaceAllString(line, someFile), "date") // also a program
			line = strings.ReplaceAll(line, "--body "+someFile, "--body "+someFile+".json")
			args := strings.Fields(line)
			err := parse(args)
			// A document may name a command without its flags, or a group of commands.
			if err != nil && !strings.Contains(err.Error(), "missing flags") &&
				!strings.HasPrefix(err.Error(), "expected one of") {
				t.Errorf("%s: relay %s: %v", file, strings.Join(args, " "), err)
			}
			if !strings.Contains(line, " --") {
				continue
			}
			if strings.Contains(line, " --outbox") {
				args = append(args, "--discover=select")
			}
			var said strings.Builder
			if code := run(ended, args, env.get, io.Discard, &said); code == codeUsage {
				t.Errorf("%s: relay %s: %s", file, strings.Join(args, " "), said.String())
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
