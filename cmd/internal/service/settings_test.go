package service_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"gopkg.in/yaml.v3"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/secret"
)

type program struct {
	Config  string
	Wait    time.Duration `default:"1s" help:"How long."`
	Names   []string
	Loud    bool
	Ports   []int
	Token   secret.Value
	Count   int              `name:"item-count" default:"3"`
	Kind    string           `default:"a" enum:"a,b"`
	Version kong.VersionFlag `help:"Version."`
}

func parse(t *testing.T, env map[string]string, args ...string) (program, error) {
	t.Helper()
	var p program
	line := service.CommandLine{Name: "thing", Prefix: "THING_", Env: func(name string) string { return env[name] }}
	_, err := line.Parse(&p, args, io.Discard, io.Discard)
	return p, err
}

func reveal(t *testing.T, v secret.Value) string {
	t.Helper()
	text, err := v.Reveal()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestI10SecretInYAML: a configuration that is written out shows no secret.
func TestI10SecretInYAML(t *testing.T) {
	t.Parallel()
	const token = "canary-41d8"
	out, err := yaml.Marshal(struct{ V secret.Value }{secret.Of(token)})
	if err != nil || len(out) == 0 || strings.Contains(string(out), "canary") {
		t.Errorf("%s, %v", out, err)
	}
}

// TestSecretFileIsFollowed: a file that is replaced is another secret from then on.
func TestSecretFileIsFollowed(t *testing.T) {
	t.Parallel()
	path := write(t, "first")
	p, err := parse(t, map[string]string{"THING_TOKEN_FILE": path})
	if err != nil || reveal(t, p.Token) != "first" {
		t.Fatalf("%+v, %v", p, err)
	}
	if err := os.WriteFile(path, []byte("second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := reveal(t, p.Token); got != "second" {
		t.Errorf("then %s", got)
	}
	if _, err := parse(t, map[string]string{"THING_TOKEN_FILE": write(t, "\n")}); err == nil ||
		!strings.Contains(err.Error(), "THING_TOKEN_FILE: ") {
		t.Errorf("an empty file: %v", err)
	}
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSources(t *testing.T) {
	t.Parallel()
	file := write(t, "# all of it\nwait: 2s\nnames: [x, y]\nloud: true\ntoken: of-yaml\nitem-count: 5\n")
	p, err := parse(t, map[string]string{"THING_CONFIG": file})
	if err != nil || p.Wait != 2*time.Second || !slices.Equal(p.Names, []string{"x", "y"}) || !p.Loud ||
		reveal(t, p.Token) != "of-yaml" || p.Count != 5 {
		t.Errorf("YAML: %+v, %v", p, err)
	}
	env := map[string]string{
		"THING_CONFIG": file, "THING_WAIT": "3s", "THING_NAMES": "z", "THING_LOUD": "false",
		"THING_TOKEN_FILE": write(t, "of-file\r\n"),
		"THING_ITEM_COUNT": "",
	}
	p, err = parse(t, env)
	if err != nil || p.Wait != 3*time.Second || !slices.Equal(p.Names, []string{"z"}) || p.Loud ||
		reveal(t, p.Token) != "of-file" || p.Count != 5 {
		t.Errorf("variables: %+v, %v", p, err)
	}
	env["THING_TOKEN"] = "of-variable"
	p, err = parse(t, env, "--wait=4s", "--names", "q,r")
	if err != nil || p.Wait != 4*time.Second || !slices.Equal(p.Names, []string{"q", "r"}) ||
		reveal(t, p.Token) != "of-variable" {
		t.Errorf("flags: %+v, %v", p, err)
	}
	if p, err = parse(t, nil); err != nil || p.Wait != time.Second || p.Count != 3 || p.Kind != "a" {
		t.Errorf("defaults: %+v, %v", p, err)
	}
	if p, err = parse(t, map[string]string{"THING_CONFIG": "/none"}, "--config", write(t, "")); err != nil ||
		p.Wait != time.Second {
		t.Errorf("an empty file: %+v, %v", p, err)
	}
}

func TestRefusedSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		yaml, variable, want string
	}{
		"unknown key": {
			"wiat: 2s", "",
			`f:1: unknown setting "wiat", did you mean "wait"?; there are item-count, kind, loud, names, ports, token, wait`,
		},
		"own name":        {"config: x", "", "unknown setting"},
		"twice":           {"wait: 2s\nwait: 3s", "", "f:2: wait is set twice"},
		"nested":          {"wait: {a: b}", "", "wait: want a value"},
		"nested list":     {"names: [[a]]", "", "names: want a list of plain values"},
		"comma in list":   {"names: ['a,b']", "", "names: want a list of plain values"},
		"not a mapping":   {"- wait", "", "want lines like"},
		"nothing like it": {"colour: red", "", `unknown setting "colour"; there are`},
		"not YAML":        {"wait: [", "", "not YAML, line 1: did not find expected node content"},
		"not YAML, 2": {"wait: 2s\n kind: a", "", "not YAML, line 2: mapping values are not allowed in this " +
			"context"},
		"two documents":  {"wait: 2s\n---\nwait: 3s", "", "one YAML document"},
		"wrong type":     {"wait: soon", "", "f:1: wait: expected duration"},
		"wrong enum":     {"kind: c", "", `f:1: kind: want one of a, b, not "c"`},
		"wrong variable": {"", "soon", "THING_WAIT: expected duration"},
	} {
		env := map[string]string{"THING_WAIT": c.variable}
		if c.yaml != "" {
			env["THING_CONFIG"] = write(t, c.yaml)
		}
		_, err := parse(t, env)
		var usage *service.UsageError
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &usage) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	var p program
	line := service.CommandLine{
		Name: "thing", Prefix: "THING_", Footer: "The end.", Version: "v7",
		Env: func(string) string { return "canary" },
	}
	if parsed, err := line.Parse(&p, []string{"--help"}, &out, io.Discard); parsed != nil || err != nil {
		t.Fatalf("%v, %v", parsed, err)
	}
	for _, want := range []string{
		"Usage: thing [flags]\n", "    --item-count=3       ($THING_ITEM_COUNT)\n",
		"    --token=VALUE        ($THING_TOKEN[_FILE])\n", "How long. ($THING_WAIT)\n", "\nThe end.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "canary") {
		t.Error("the help shows a value")
	}
	out.Reset()
	if _, err := line.Parse(&p, []string{"--version"}, &out, io.Discard); err != nil || out.String() != "v7\n" {
		t.Errorf("version %q, %v", out.String(), err)
	}
}

func TestVariablesThatMisspellASetting(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{
		"THING_WIAT=2s":      `THING_WIAT is no setting's variable, did you mean "THING_WAIT"?`,
		"THING_TOKEN_FIEL=x": "THING_TOKEN_FILE",
		"THING_WAIT=2s":      "", "THING_ELSEWHERE=1": "", "OTHER_WIAT=1": "", "THING_PORT=tcp://h:1": "",
		"THING_SERVICE_HOST=h": "", "THING_TOKEN_FILE=f": "",
	} {
		var p program
		line := service.CommandLine{
			Name: "thing", Prefix: "THING_", Env: func(string) string { return "" },
			Variables: []string{set},
		}
		parsed, err := line.Parse(&p, nil, io.Discard, io.Discard)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
		if err != nil {
			continue
		}
		unknown := line.Unknown(parsed.Model.Node)
		if (len(unknown) > 0) != (set == "THING_ELSEWHERE=1") {
			t.Errorf("%s: unknown are %q", set, unknown)
		}
	}
}
