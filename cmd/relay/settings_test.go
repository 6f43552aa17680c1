package main

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/testenv/draw"
)

// alone is a command line of one command, which is quicker to make than the whole tree.
type alone struct {
	node *kong.Node
	need []string // what it wants besides, as arguments
	dir  string
}

func (a alone) write(name, content string) (path string) {
	path = filepath.Join(a.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		panic(err)
	}
	return path
}

// given is a setting by each way; empty: not by this one.
type given struct{ flag, again, variable, file, secretFile string }

// set is a value that may be empty.
func set(value string) string { return "=" + value }

// parse returns the value of each flag.
func (a alone) parse(flag *kong.Flag, by given) (map[string]string, error) {
	variable := "RELAY_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
	env, args := environment{}, []string{"it"}
	for _, need := range a.need {
		if !strings.HasPrefix(need, "--"+flag.Name+"=") {
			args = append(args, need)
		}
	}
	if by.flag != "" {
		args = append(args, "--"+flag.Name+by.flag)
	}
	if by.again != "" {
		args = append(args, "--"+flag.Name+by.again)
	}
	if by.variable != "" {
		env[variable] = by.variable[1:]
	}
	if by.file != "" {
		env["RELAY_CONFIG"] = a.write("f", "# settings\n"+flag.Name+": "+strconv.Quote(by.file[1:])+"\n")
	}
	if by.secretFile != "" {
		env[variable+"_FILE"] = a.write("s", by.secretFile[1:])
	}
	root := reflect.TypeFor[cli]()
	fields := []reflect.StructField{{Name: "It", Type: a.node.Target.Type(), Tag: `cmd:""`}}
	for _, name := range []string{"Config", "LogFormat", "LogLevel"} {
		field, _ := root.FieldByName(name)
		field.Index, field.Offset = nil, 0
		fields = append(fields, field)
	}
	line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: env.get, List: outboxList}
	parsed, err := line.Parse(reflect.New(reflect.StructOf(fields)).Interface(), args, io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for _, flags := range parsed.Selected().AllFlags(false) {
		for _, f := range flags {
			if f.Name != "config" && f.Name != "help" {
				values[f.Name] = valueOf(f.Target)
			}
		}
	}
	return values, nil
}

func valueOf(v reflect.Value) string {
	if r, ok := v.Interface().(interface{ Reveal() (string, error) }); ok {
		text, err := r.Reveal()
		return fmt.Sprint(text, err)
	}
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return fmt.Sprintf("%#v", v)
}

// leaves are the commands.
func leaves(node *kong.Node) (all []*kong.Node) {
	if len(node.Children) == 0 {
		return []*kong.Node{node}
	}
	for _, child := range node.Children {
		all = append(all, leaves(child)...)
	}
	return all
}

// samples are values that settings of all kinds take.
var samples = []string{
	"7s", "9s", "7", "9", "2026-01-02T03:04:05Z", "2026-01-03T03:04:05Z", "true", "false", "a=b", "c=d",
	"5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c",
}

// taken returns two values that a flag takes, neither of them its default; of a bool it returns one twice.
func (a alone) taken(flag *kong.Flag) (values [2]string, ok bool) {
	list := samples
	if enum := flag.EnumMap(); flag.Enum != "" {
		list = slices.Sorted(maps.Keys(enum))
	}
	if flag.Target.Type() == reflect.TypeFor[secret.Command]() {
		list = []string{"echo 7", "echo 9"}
	}
	usual, _ := a.parse(flag, given{})
	seen := []string{usual[flag.Name]}
	for _, value := range list {
		got, err := a.parse(flag, given{flag: set(value)})
		if err != nil || slices.Contains(seen, got[flag.Name]) {
			continue
		}
		if seen = append(seen, got[flag.Name]); len(seen) == 2 {
			values[0] = value
		}
		values[1] = value
	}
	return values, len(seen) > 1
}

// TestEveryWayToSet: a setting is the same by flag, variable and file, the first of which counts; what is not a value
// is refused in the name of its way; what says what one run is to do is accepted on the command line only.
func TestEveryWayToSet(t *testing.T) {
	t.Parallel()
	dir, found, walked := t.TempDir(), newTally(), map[string]bool{}
	random := rand.New(rand.NewPCG(draw.Seed(t), 0))
	commands := leaves(model(t))
	for _, i := range random.Perm(len(commands)) {
		a := alone{node: commands[i], dir: dir}
		a.require(t)
		for _, flags := range a.node.AllFlags(false) {
			for _, flag := range flags {
				kind := fmt.Sprint(flag.Name, flag.Target.Type(), flag.Tag.Has("line"))
				own := slices.Contains([]string{"help", "version", "config"}, flag.Name)
				if own || !draw.Nightly() && walked[kind] {
					continue
				}
				walked[kind] = true
				a.walk(t, flag, found, random.IntN(3))
			}
		}
	}
	found.report(t, draw.Size(1500, 20_000))
}

// require finds arguments for what a command cannot do without.
func (a *alone) require(t *testing.T) {
	t.Helper()
	var required []*kong.Flag
	for _, flags := range a.node.AllFlags(false) {
		for _, flag := range flags {
			if flag.Required {
				required = append(required, flag)
			}
		}
	}
	for _, flag := range required {
		list := samples
		if flag.Enum != "" {
			list = slices.Sorted(maps.Keys(flag.EnumMap()))
		}
		for _, value := range list {
			into := reflect.New(flag.Target.Type()).Elem()
			if flag.Parse(kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: value}), into) == nil {
				a.need = append(a.need, "--"+flag.Name+"="+value)
				break
			}
		}
	}
	if len(a.need) != len(required) {
		t.Fatalf("%s wants what has no sample: %v", a.node.FullPath(), a.need)
	}
	for _, arg := range a.node.Positional {
		if arg.Enum != "" {
			a.need = append(a.need, slices.Sorted(maps.Keys(arg.EnumMap()))[0])
		}
	}
}

// walk sets a flag by each way; of the values it tries a third, drawn, or in a nightly run all.
func (a alone) walk(t *testing.T, flag *kong.Flag, found *tally, third int) {
	t.Helper()
	command := a.node.FullPath() + " --" + flag.Name
	values, ok := a.taken(flag)
	if !ok {
		t.Errorf("%s: no sample is one of its values", command)
		return
	}
	one, other := set(values[0]), set(values[1])
	usual, errUsual := a.parse(flag, given{})
	right, err := a.parse(flag, given{flag: one})
	if err != nil {
		t.Errorf("%s%s: %v", command, one, err)
		return
	}
	variable := "RELAY_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
	names := map[string]*regexp.Regexp{
		"flag": regexp.MustCompile(`--` + flag.Name + `\b`), "variable": regexp.MustCompile(`\b` + variable + `\b`),
		"file": regexp.MustCompile(regexp.QuoteMeta(filepath.Join(a.dir, "f")) + `:2: (--)?` + flag.Name + `\b`),
	}
	ways := func(value string) map[string]given {
		return map[string]given{"flag": {flag: value}, "variable": {variable: value}, "file": {file: value}}
	}
	same := func(what string, by given, want map[string]string) {
		found.all++
		got, err := a.parse(flag, by)
		found.check(err == nil && maps.Equal(got, want), what, "%s by %+v: %v, %q and not %q", command, by, err,
			got[flag.Name], want[flag.Name])
	}
	refused := func(what, way, says string, by given) {
		found.all++
		_, err := a.parse(flag, by)
		found.check(err != nil && names[way].MatchString(err.Error()) && strings.Contains(err.Error(), says), what,
			"%s by %+v: %v", command, by, err)
	}
	if flag.Tag.Has("line") {
		for way, by := range ways(one) {
			if way != "flag" {
				refused("what arms by "+way, way, "--"+flag.Name+" is accepted on the command line only", by)
			}
		}
		return
	}
	if !flag.IsCumulative() {
		refused("a flag twice", "flag", "twice", given{flag: one, again: other})
	}
	if flag.Target.Kind() == reflect.Map {
		refused("a name twice", "flag", "twice", given{flag: one, again: one})
	}
	same("a variable", given{variable: one}, right)
	same("a file", given{file: one}, right)
	same("flag before variable", given{flag: one, variable: other}, right)
	same("flag before file", given{flag: one, file: other}, right)
	same("variable before file", given{variable: one, file: other}, right)
	same("flag before all", given{flag: one, variable: other, file: other}, right)
	same("an empty variable before a file", given{variable: set(""), file: one}, right)
	if errUsual == nil {
		same("an empty variable", given{variable: set("")}, usual)
	}
	if flag.Tag.Has("secret") || flag.Target.Type() == reflect.TypeFor[secret.Value]() {
		same("a secret's file", given{secretFile: one + "\n"}, right)
		same("a variable before a secret's file", given{variable: one, secretFile: other}, right)
		same("a secret's file before a file", given{secretFile: one, file: other}, right)
		found.all++
		_, err := a.parse(flag, given{secretFile: set("")})
		found.check(err != nil && strings.Contains(err.Error(), variable+"_FILE"), "an empty secret's file", "%s: %v",
			command, err)
	}
	for i, value := range []string{
		"c4nary!", "", " ", "0", "-1", "-7s", "99999999999999999999", "9999999h", "1e9", "7", "7d", " 7s ", "0x10",
		"1_000", "7s,9s", "=", "\x00", "a\nb", "TRUE", "null", "~", "ä",
	} {
		if i > 0 && i%3 != third && !draw.Nightly() {
			continue
		}
		got, err := a.parse(flag, given{flag: set(value)})
		for way, by := range ways(set(value)) {
			switch {
			case value == "" && way == "variable": // not set
			case err == nil:
				same("the same value by "+way, by, got)
			default:
				refused("no value by "+way, way, "", by)
			}
		}
	}
}

// TestUnknownVariableIsSaid is not parallel: it sets a variable of the process.
func TestUnknownVariableIsSaid(t *testing.T) {
	t.Setenv("RELAY_COLOUR", "red")
	t.Setenv("RELAY_PORT_80_TCP", "tcp://10.0.0.1:80") // of Kubernetes
	env := environment{"RELAY_DATABASE_URL": "postgres://127.0.0.1:1/none"}
	if _, _, stderr := command(t, env, "status"); strings.Count(stderr, "no setting has this variable") != 1 ||
		!strings.Contains(stderr, "RELAY_COLOUR") || strings.Contains(stderr, "red") {
		t.Error(stderr)
	}
}
