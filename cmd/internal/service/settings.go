package service

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/effectonce/effectonce/internal/secret"
)

// CommandLine describes a program's command line; Parse reads it. The sources of a setting, in this order: flag,
// variable, file that a variable names (secrets only), configuration file, default. Empty variables count as unset.
//
// A flag with the tag `line` says what one run of the program does, or may do. It is accepted on the command line only:
// in a variable or a file it would apply to every later run.
//
// The variable of --some-flag is Prefix + "SOME_FLAG". A flag of the type secret.Value, or with the tag `secret`, has a
// second variable that ends in _FILE and names a file with the value; errors never contain the value. A secret.Value
// reads that file whenever it is revealed. Kong's `env` tag is not used: it ranks variables below configuration files,
// and its errors show values.
type CommandLine struct {
	Name, Description string
	Prefix            string    // of variables, such as "RELAY_"
	Version           string    // printed by --version, if the target has a kong.VersionFlag
	Footer            string    // below every help text
	Vars              kong.Vars // values of ${name} in tags
	List              string    // key of a configuration file beside the settings, for the function List
	// Env looks a variable up. Nil: os.Getenv, and Variables are those of os.Environ.
	Env func(string) string
	// Variables are the set variables, as in os.Environ. One that misspells a setting's variable is refused; Unknown
	// returns the others, without those that Kubernetes derives from services. Nil: not checked.
	Variables []string
}

// Parse fills target, a pointer to a struct for package kong; its flag "config", if it has one, names the configuration
// file. It returns nil and no error after it has printed the help or the version. Errors are [UsageError] and contain
// no secret.
func (c CommandLine) Parse(target any, args []string, stdout, stderr io.Writer) (*kong.Context, error) {
	if c.Env == nil {
		c.Env, c.Variables = os.Getenv, os.Environ()
	}
	printed := false
	sources := &sources{line: c}
	parser, err := kong.New(target, kong.Name(c.Name), kong.Description(c.Description), kong.Writers(stdout, stderr),
		c.Vars, kong.Vars{"version": c.Version}, kong.Exit(func(int) { printed = true }),
		kong.Help(c.help), helpOptions, kong.ValueFormatter(c.Meaning),
		kong.Resolvers(sources), kong.TypeMapper(reflect.TypeFor[secret.Value](), kong.MapperFunc(decodeSecret)),
		kong.TypeMapper(reflect.TypeFor[map[string]string](), kong.MapperFunc(decodeMap)),
		kong.KindMapper(reflect.String, kong.MapperFunc(decodeText)))
	if err != nil {
		return nil, fmt.Errorf("the command line of %s is declared wrongly: %w", c.Name, err)
	}
	ctx, err := parser.Parse(args)
	switch {
	case printed:
		return nil, nil
	case sources.err != nil:
		return nil, &UsageError{Err: sources.err}
	case err != nil:
		return nil, Usage("%s%s; see %s --help", withoutArguments(err.Error(), args, vocabulary(parser.Model.Node)),
			wants(err), c.Name)
	}
	if err := once(ctx); err != nil {
		return nil, err
	}
	return ctx, c.checkVariables(parser.Model.Node)
}

// once refuses a repeated flag that takes one value: the other value would be dropped.
func once(ctx *kong.Context) error {
	given := map[string]bool{}
	for _, p := range ctx.Path {
		if p.Flag == nil || p.Resolved || p.Flag.IsCumulative() {
			continue
		}
		if given[p.Flag.Name] {
			return Usage("--%s is given twice", p.Flag.Name)
		}
		given[p.Flag.Name] = true
	}
	return nil
}

// ofKubernetes matches the variables that a pod gets for each service, such as "relay".
var ofKubernetes = regexp.MustCompile(`_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?$`)

// checkVariables refuses misspelt variables of settings.
func (c CommandLine) checkVariables(root *kong.Node) error {
	unknown, known := c.unknown(root)
	for _, name := range unknown {
		if meant := DidYouMean(name, maps.Keys(known)); meant != "" {
			return Usage("%s is no setting's variable%s", name, meant)
		}
	}
	return nil
}

// Unknown returns the variables with the settings' prefix that belong to no setting, for the log.
func (c CommandLine) Unknown(root *kong.Node) []string {
	unknown, _ := c.unknown(root)
	return unknown
}

func (c CommandLine) unknown(root *kong.Node) (unknown []string, known map[string]bool) {
	known = map[string]bool{c.Prefix + "CONFIG": true}
	_ = kong.Visit(root, func(n kong.Visitable, next kong.Next) error {
		if flag, ok := n.(*kong.Flag); ok {
			known[c.Variable(flag.Name)] = true
			known[c.Variable(flag.Name)+"_FILE"] = isSecret(flag)
		}
		return next(nil)
	})
	maps.DeleteFunc(known, func(_ string, is bool) bool { return !is })
	for _, set := range c.Variables {
		name, _, _ := strings.Cut(set, "=")
		if c.Prefix != "" && strings.HasPrefix(name, c.Prefix) && !known[name] && !ofKubernetes.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	return unknown, known
}

// wants explains a surplus argument: the command takes flags.
func wants(err error) string {
	parse, ok := errors.AsType[*kong.ParseError](err)
	if !ok || !strings.Contains(err.Error(), "unexpected argument") || parse.Context == nil ||
		parse.Context.Selected() == nil {
		return ""
	}
	node, flags := parse.Context.Selected(), []string{}
	for _, flag := range node.Flags {
		if flag.Tag.Get("shown") == "(required)" && !isSecret(flag) {
			flags = append(flags, "--"+flag.Name+"=...")
		}
	}
	if len(flags) == 0 {
		return ""
	}
	return fmt.Sprintf(": %s wants %s", node.FullPath(), strings.Join(flags, " "))
}

// vocabulary has the words of the program itself: names, and the values that settings may have.
func vocabulary(root *kong.Node) map[string]bool {
	words := map[string]bool{}
	_ = kong.Visit(root, func(n kong.Visitable, next kong.Next) error {
		switch n := n.(type) {
		case *kong.Flag:
			words["--"+n.Name] = true
			for word := range n.EnumMap() {
				words[word] = true
			}
		case *kong.Node:
			words[n.Name] = true
		}
		return next(nil)
	})
	return words
}

// Variable returns the name of a flag's variable.
func (c CommandLine) Variable(flag string) string {
	return c.Prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// onLine reports whether a flag is accepted on the command line only.
func onLine(flag *kong.Flag) bool { return flag.Tag.Has("line") }

// isSecret reports whether a flag's value must not be shown.
func isSecret(flag *kong.Flag) bool {
	return flag.Tag.Has("secret") || flag.Target.Type() == reflect.TypeFor[secret.Value]()
}

// decodeSecret decodes a text, or the Value that find made from a file.
func decodeSecret(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("secret")
	if err != nil {
		return err
	}
	value, ok := token.Value.(secret.Value)
	if !ok {
		value = secret.Of(token.String())
	}
	target.Set(reflect.ValueOf(value))
	return nil
}

// decodeText decodes a text byte for byte: kong's own mapper replaces what is no UTF-8, and a key then names another.
func decodeText(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("string")
	if err == nil {
		target.SetString(token.String())
	}
	return err
}

// decodeMap decodes names with their values, each name once: of two values one would be dropped.
func decodeMap(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("map")
	if err != nil {
		return err
	}
	parts := []string{token.String()}
	if sep := ctx.Value.Tag.MapSep; sep != -1 {
		parts = kong.SplitEscaped(token.String(), sep)
	}
	if target.IsNil() {
		target.Set(reflect.ValueOf(map[string]string{}))
	}
	for _, part := range parts {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return errors.New("want NAME=VALUE")
		}
		key := reflect.ValueOf(name)
		if target.MapIndex(key).IsValid() {
			return errors.New("a name is there twice")
		}
		target.SetMapIndex(key, reflect.ValueOf(value))
	}
	return nil
}

// sources looks for settings that are not on the command line.
type sources struct {
	line CommandLine
	file map[string]string // of the configuration file, by flag; nil: not read yet
	at   map[string]string // their places in the file
	err  error             // the first error; Kong's wrapping would show secrets
}

// Validate is called by Kong and has nothing to do: Resolve checks.
func (s *sources) Validate(*kong.Application) error { return nil }

// Resolve is called by Kong for every flag that is not on the command line.
func (s *sources) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	value, from, err := s.find(ctx, flag)
	if err == nil && from != "" {
		err = s.check(flag, value, from)
	}
	if err != nil {
		if s.err == nil {
			s.err = err
		}
		return nil, err
	}
	if from == "" {
		return nil, nil
	}
	return value, nil
}

// find returns a text, or a secret.Value for a file; from is "" if the flag is not set.
func (s *sources) find(ctx *kong.Context, flag *kong.Flag) (value any, from string, err error) {
	if flag.Name == "help" || flag.Name == "version" {
		return "", "", nil
	}
	variable := s.line.Variable(flag.Name)
	if value := s.line.Env(variable); value != "" {
		if onLine(flag) {
			return "", "", fmt.Errorf("%s is set: --%s is accepted on the command line only, for it says what one run "+
				"is to do", variable, flag.Name)
		}
		return value, variable, nil
	}
	if isSecret(flag) {
		if path := s.line.Env(variable + "_FILE"); path != "" {
			value := secret.InFile(path)
			text, err := value.Reveal()
			if err != nil {
				return "", "", fmt.Errorf("%s_FILE: %w", variable, err)
			}
			if flag.Target.Type() == reflect.TypeFor[secret.Value]() {
				return value, variable + "_FILE", nil
			}
			return text, variable + "_FILE", nil
		}
	}
	if flag.Name == "config" {
		return "", "", nil
	}
	if err := s.read(ctx); err != nil {
		return "", "", err
	}
	if value, ok := s.file[flag.Name]; ok {
		if onLine(flag) {
			return "", "", fmt.Errorf("%s: --%s is accepted on the command line only, for it says what one run "+
				"is to do", s.at[flag.Name], flag.Name)
		}
		return value, s.at[flag.Name] + ": " + flag.Name, nil
	}
	return "", "", nil
}

// check parses the value in advance, so that the error names its source.
func (s *sources) check(flag *kong.Flag, value any, from string) error {
	into := reflect.New(flag.Target.Type()).Elem()
	err := flag.Parse(kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: value}), into)
	switch {
	case err == nil && flag.Enum != "" && !flag.EnumMap()[fmt.Sprint(value)]:
		return fmt.Errorf("%s: want one of %s, not %q", from, strings.ReplaceAll(flag.Enum, ",", ", "), value)
	case err == nil:
		return nil
	case isSecret(flag):
		return fmt.Errorf("%s: not a value for --%s", from, flag.Name)
	}
	return fmt.Errorf("%s: %s", from, strings.TrimPrefix(err.Error(), "--"+flag.Name+": "))
}

// read reads the configuration file, once.
func (s *sources) read(ctx *kong.Context) error {
	if s.file != nil {
		return nil
	}
	s.file = map[string]string{}
	path := ""
	for _, flag := range ctx.Model.Flags {
		if flag.Name != "config" {
			continue
		}
		path = s.line.Env(s.line.Variable(flag.Name))
		if given, ok := ctx.FlagValue(flag).(string); ok && given != "" {
			path = given
		}
	}
	if path == "" {
		return nil
	}
	var err error
	s.file, s.at, err = readYAML(path, settingNames(ctx.Model.Node), s.line.List)
	return err
}

// settingNames returns the flags of all commands: one file may serve them all.
func settingNames(node *kong.Node) map[string]bool {
	names := map[string]bool{}
	_ = kong.Visit(node, func(n kong.Visitable, next kong.Next) error {
		if flag, ok := n.(*kong.Flag); ok {
			names[flag.Name] = true
		}
		return next(nil)
	})
	for _, own := range []string{"help", "version", "config"} {
		delete(names, own)
	}
	return names
}

// withoutArguments hides arguments that may hold a password: Kong repeats an argument that it does not understand. It
// keeps the program's own words, and arguments that hold no password.
func withoutArguments(text string, args []string, vocabulary map[string]bool) string {
	suspect := func(s string) bool {
		return strings.Contains(s, "://") || strings.Contains(s, "password") || strings.Contains(s, "@")
	}
	awaits := func(arg string) bool { // its value is the next argument
		return strings.HasPrefix(arg, "-") && (!strings.Contains(arg, "=") || strings.HasSuffix(arg, "="))
	}
	suspects, harmless := false, maps.Clone(vocabulary)
	for i, arg := range args {
		flag, value, _ := strings.Cut(arg, "=")
		hide := []string{arg}
		switch {
		case suspect(flag) && !strings.HasPrefix(flag, "-"), suspect(value), suspect(flag) && value != "":
			hide = append(hide, value)
		case i > 0 && awaits(args[i-1]) && suspect(args[i-1]): // the value of a flag like --kafka-pasword
		default:
			harmless[arg], harmless[value] = true, true
			continue
		}
		suspects = true
		for _, part := range hide {
			if part != "" {
				text = strings.ReplaceAll(text, part, "(an argument)")
			}
		}
	}
	if !suspects {
		return text
	}
	// Each library quotes in its own way, and shows only one element of a list.
	return inQuotes.ReplaceAllStringFunc(text, func(quoted string) string {
		if harmless[quoted[1:len(quoted)-1]] {
			return quoted
		}
		return "(an argument)"
	})
}

var inQuotes = regexp.MustCompile(`(?s)"(?:[^"\\]|\\.)*"`)
