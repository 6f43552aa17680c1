package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"gopkg.in/yaml.v3"
	"mvdan.cc/sh/v3/syntax"

	"github.com/effectonce/effectonce/cmd/internal/service"
)

// block is a block of code on a page; TestBlocks in internal/house checks the form of their fences.
type block struct{ page, kind, code string }

var fenced = regexp.MustCompile("(?ms)^( *)```([a-z]+(?: title=\"[^\"]+\")?)\n(.*?)^ *```$")

// blocksOfPages returns the blocks that are of one of these kinds.
func blocksOfPages(t *testing.T, kinds ...string) (all []block) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "../.." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
			code := strings.TrimPrefix(strings.ReplaceAll("\n"+m[3], "\n"+m[1], "\n"), "\n")
			if slices.Contains(kinds, m[2]) {
				all = append(all, block{strings.TrimPrefix(path, "../../"), m[2], code})
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// others are commands that this test does not run, and why.
var others = map[string]string{
	"cd": "into a folder that exists", "git": "clones this repository",
	"curl":    "to a service that the page starts; cmd/relay-dev runs those of the first hour",
	"grep":    "what curl prints",
	"echo":    "into a file of the service; cmd/relay-dev runs it",
	"docker":  "needs an engine; make compose starts the same as processes",
	"kubectl": "needs a cluster; make charts validates the manifests", "helm": "likewise",
	"skopeo": "to a registry; make image-check runs the image",
	"tar":    "a release's archive, which there is not before the release", "sudo": "likewise", "brew": "likewise",
	"cp": "likewise", "sha256sum": "likewise", "cosign": "likewise", "gh": "likewise",
	"install": "writes to /usr/bin and /etc", "systemctl": "starts a service", "journalctl": "likewise",
	"psql": "Postgres' own", "kafka-acls.sh": "Kafka's own", "rpk": "Redpanda's own", "confluent": "Confluent's own",
}

// TestCommandsOfPages: a shell can read the blocks of pages. relay has their verbs and flags, and make their targets;
// what go runs, builds and tests is there, and its programs name the flags; variables are settings.
func TestCommandsOfPages(t *testing.T) {
	t.Parallel()
	c := commands{T: t, settings: map[string]bool{}, parse: lineParser(t, environment{})}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	c.makefile = string(makefile)
	c.learn(model(t))
	for _, b := range blocksOfPages(t, "sh", `text title="crontab"`) {
		if b.kind != "sh" {
			b.code = regexp.MustCompile(`(?m)^(\S+ ){5}`).ReplaceAllString(b.code, "")
		}
		file, err := syntax.NewParser().Parse(strings.NewReader(b.code), b.page)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		dir := "../.."
		syntax.Walk(file, func(node syntax.Node) bool {
			switch node := node.(type) {
			case *syntax.Assign:
				c.variable(b.page, node)
			case *syntax.CallExpr:
				if len(node.Args) > 0 {
					dir = c.command(b.page, dir, c.words(node.Args))
				}
			}
			return true
		})
	}
}

// commands checks the commands of pages.
type commands struct {
	*testing.T
	makefile string
	settings map[string]bool
	parse    func(args []string) error
}

func (c *commands) line(env environment) service.CommandLine {
	return service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: env.get, List: outboxList}
}

// learn takes the variables of all commands.
func (c *commands) learn(node *kong.Node) {
	for _, flag := range node.Flags {
		name := c.line(environment{}).Variable(flag.Name)
		c.settings[name], c.settings[name+"_FILE"] = true, true
	}
	for _, child := range node.Children {
		c.learn(child)
	}
}

func (c *commands) variable(page string, a *syntax.Assign) {
	if strings.HasPrefix(a.Name.Value, "RELAY_") && !c.settings[a.Name.Value] {
		c.Errorf("%s: no command has the setting %s", page, a.Name.Value)
	}
}

// words returns arguments without their quotes; a variable is its name.
func (c *commands) words(args []*syntax.Word) (words []string) {
	for _, arg := range args {
		var word strings.Builder
		syntax.Walk(arg, func(node syntax.Node) bool {
			switch node := node.(type) {
			case *syntax.Lit:
				word.WriteString(node.Value)
			case *syntax.SglQuoted:
				word.WriteString(node.Value)
			}
			return true
		})
		words = append(words, word.String())
	}
	return words
}

// command checks a command that is given in a folder, and returns the folder of the next one.
func (c *commands) command(page, dir string, words []string) string {
	name, args := words[0], words[1:]
	at := page + ": " + strings.Join(words, " ")
	switch {
	case name == "relay" || name == "bin/relay":
		c.relay(at, args)
	case name == "make":
		for _, arg := range args {
			variable, _, isVariable := strings.Cut(arg, "=")
			if !isVariable && !strings.Contains(c.makefile, "\n"+arg+": ") ||
				isVariable && !strings.Contains(c.makefile, "$("+variable) {
				c.Errorf("%s: the Makefile has no %s", at, variable)
			}
		}
	case name == "go":
		c.golang(at, dir, args)
	case others[name] == "":
		c.Errorf("%s: nothing looks at this command", at)
	case name == "cd" && args[0] == "../shop": // which relay-dev init wrote
		dir = "../../cmd/relay-dev/starter"
	case name == "cd" && args[0] != "effectonce":
		dir = filepath.Join(dir, args[0])
	}
	for _, arg := range append(args, dir) {
		if regexp.MustCompile(`^(\.\./\.\.|deploy|examples|docs)(/|$)`).MatchString(arg) && !exists(dir, arg) {
			c.Errorf("%s: there is no %s", at, arg)
		}
	}
	return dir
}

func exists(dir, path string) bool {
	if !strings.HasPrefix(path, "..") {
		path = filepath.Join(dir, path)
	}
	_, err := os.Stat(path)
	return err == nil
}

// relay parses a command line; required flags may come from the environment.
func (c *commands) relay(at string, args []string) {
	if err := c.parse(args); err != nil && !strings.Contains(err.Error(), "missing flags") {
		c.Errorf("%s: %v", at, err)
	}
}

// golang checks what go is asked to do: the packages are there, and name the flags of programs that run.
func (c *commands) golang(at, dir string, args []string) {
	switch args[0] {
	case "get", "install":
		path, _, _ := strings.Cut(args[len(args)-1], "@")
		within, ours := strings.CutPrefix(path+"/", "github.com/effectonce/effectonce/")
		if _, err := os.Stat(filepath.Join("../..", within)); !ours || err != nil {
			c.Errorf("%s: this is not ours: %v", at, err)
		}
		return
	case "mod":
		if args[1] == "edit" {
			path, folder, _ := strings.Cut(args[len(args)-1], "=")
			within, ours := strings.CutPrefix(path, "github.com/effectonce/effectonce")
			_, err := os.Stat(filepath.Join("../..", within, "go.mod"))
			if !ours || err != nil || folder != "../effectonce"+within {
				c.Errorf("%s: this is no module of ours: %v", at, err)
			}
		}
		return
	case "run", "build", "test":
	default:
		c.Errorf("%s: nothing looks at this command", at)
	}
	var folder string
	for i, arg := range args {
		if arg == "." || strings.HasPrefix(arg, "./") {
			folder = filepath.Join(dir, strings.TrimSuffix(arg, "..."))
			if _, err := os.Stat(folder); err != nil {
				c.Errorf("%s: %v", at, err)
			}
			if arg == "./cmd/relay" && args[0] == "run" {
				c.relay(at, args[i+1:])
				return
			}
		}
	}
	if args[0] != "run" {
		return
	}
	source := c.sources(folder)
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if strings.HasPrefix(arg, "-") && arg != "-h" && !strings.Contains(source, `"`+name+`"`) &&
			!regexp.MustCompile(`(?m)^\s+`+strings.ReplaceAll(name, "-", "")+`\s`).MatchString(source) {
			c.Errorf("%s: the program has no flag %s", at, name)
		}
	}
}

// sources returns the Go of folders and of those within, in lower case.
func (c *commands) sources(folders ...string) string {
	var all strings.Builder
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		})
		if err != nil {
			c.Fatal(err)
		}
	}
	return strings.ToLower(all.String())
}

// TestSettingsOfPages: a relay takes the configuration files on pages, with their lists of outboxes. Others' files are
// YAML.
func TestSettingsOfPages(t *testing.T) {
	t.Parallel()
	n := 0
	for _, b := range blocksOfPages(t, "yaml", `yaml title="relay.yaml"`) {
		if b.kind == "yaml" {
			var any any
			if err := yaml.Unmarshal([]byte(b.code), &any); err != nil {
				t.Errorf("%s: %v", b.page, err)
			}
			continue
		}
		n++
		file := filepath.Join(t.TempDir(), "relay.yaml")
		if err := os.WriteFile(file, []byte(b.code), 0o600); err != nil {
			t.Fatal(err)
		}
		env := environment{"RELAY_CONFIG": file}
		var c cli
		line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: env.get, List: outboxList}
		if _, err := line.Parse(&c, []string{"run"}, io.Discard, io.Discard); err != nil {
			t.Errorf("%s: %v\n%s", b.page, err, b.code)
			continue
		}
		c.Run.file = c.Config
		if _, err := c.Run.listed(); err != nil {
			t.Errorf("%s: %v\n%s", b.page, err, b.code)
		}
		if c.Run.Discover != "" {
			if _, err := discover(t.Context(), outboxDB(t).Pool, c.Run.Discover); err != nil {
				t.Errorf("%s: %v\n%s", b.page, err, b.code)
			}
		}
	}
	if n < 3 {
		t.Errorf("the pages have %d configuration files", n)
	}
}

// TestArchiveOfThePage runs the SQL of docs/operations/running.md.
func TestArchiveOfThePage(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	n := 0
	for _, b := range blocksOfPages(t, "sql") {
		if b.page == "docs/operations/running.md" {
			n++
			db.Exec(t, b.code)
		}
	}
	if n != 1 {
		t.Errorf("the page has %d blocks of SQL", n)
	}
}
