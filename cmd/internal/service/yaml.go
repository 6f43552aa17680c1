package service

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// line and cause are the only parts of the YAML parser's errors that cannot be a password: its others repeat the file.
var (
	line  = regexp.MustCompile(`line \d+`)
	cause = regexp.MustCompile(
		`: (mapping values are not allowed in this context|did not find expected [a-z '",:\[\]{}<>-]+|could not find expected ':'` +
			`|found character that cannot start any token|found unexpected end of stream|block sequence entries are not allowed in this context` +
			`|found a tab character [a-z ]+)$`)
)

// readYAML reads a file of settings, one a line: the names of flags without dashes in front, with a value or a list.
// A name that is not among known is refused, so that a mistyped one does not quietly mean the default. What stands
// under list is left to List. It also returns where each name stands: the path and the line.
func readYAML(path string, known map[string]bool, list string) (settings, at map[string]string, err error) {
	root, err := openYAML(path)
	if root == nil {
		return map[string]string{}, nil, err
	}
	if list != "" {
		known = maps.Clone(known)
		known[list] = true
	}
	at = map[string]string{}
	settings, err = mapping(path, root, known, func(name, value *yaml.Node, into map[string]string) (err error) {
		if name.Value != list || list == "" {
			at[name.Value] = fmt.Sprintf("%s:%d", path, name.Line)
			into[name.Value], err = scalar(value)
		}
		return err
	})
	return settings, at, err
}

// openYAML is the mapping that a file has; nil when it has nothing.
func openYAML(path string) (*yaml.Node, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration file: %w", err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: not YAML, %s%s", path, line.FindString(err.Error()), cause.FindString(err.Error()))
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: want one YAML document", path)
	}
	if root := document.Content[0]; root.Kind == yaml.MappingNode {
		return root, nil
	}
	return nil, fmt.Errorf("%s: want lines like `lease: 15s`", path)
}

// mapping reads a mapping of known names, each once; take puts a name's value into what is returned.
func mapping(path string, node *yaml.Node, known map[string]bool,
	take func(name, value *yaml.Node, into map[string]string) error,
) (map[string]string, error) {
	settings, seen := map[string]string{}, map[string]bool{}
	for i := 0; i < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		at := fmt.Sprintf("%s:%d", path, name.Line)
		if !known[name.Value] {
			return nil, fmt.Errorf("%s: unknown setting%s%s; there are %s", at, mention(name),
				DidYouMean(name.Value, maps.Keys(known)), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if seen[name.Value] {
			return nil, fmt.Errorf("%s: %s is set twice", at, name.Value)
		}
		seen[name.Value] = true
		if err := take(name, value, settings); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", at, name.Value, err)
		}
	}
	return settings, nil
}

// List reads what a configuration file has under CommandLine.List: mappings of these names to values. Under one that
// ends in a dot, as "labels.", stands a mapping, whose names follow the dot in what is returned. A file without the
// list has none. Errors are [UsageError] and repeat no value.
func List(path, list string, names ...string) ([]map[string]string, error) {
	root, err := openYAML(path)
	if err != nil || root == nil {
		return nil, usageOf(err)
	}
	known := map[string]bool{}
	for _, name := range names {
		known[strings.TrimSuffix(name, ".")] = true
	}
	var entries []map[string]string
	for i := 0; i < len(root.Content); i += 2 {
		if root.Content[i].Value != list {
			continue
		}
		if root.Content[i+1].Kind != yaml.SequenceNode {
			return nil, Usage("%s:%d: %s: want a list", path, root.Content[i].Line, list)
		}
		for _, node := range root.Content[i+1].Content {
			if node.Kind != yaml.MappingNode {
				return nil, Usage("%s:%d: %s: want entries like `- name: billing`", path, node.Line, list)
			}
			entry, err := mapping(path, node, known, func(name, value *yaml.Node, into map[string]string) error {
				return takeEntry(name.Value, value, slices.Contains(names, name.Value+"."), into)
			})
			if err != nil {
				return nil, usageOf(err)
			}
			entries = append(entries, entry)
		}
	}
	return entries, nil
}

func takeEntry(name string, value *yaml.Node, nested bool, into map[string]string) (err error) {
	switch {
	case !nested && value.Kind == yaml.ScalarNode:
		into[name] = value.Value
		return nil
	case !nested:
		return errors.New("want a value")
	case value.Kind != yaml.MappingNode:
		return errors.New("want a mapping of names to values")
	}
	for i := 0; i < len(value.Content); i += 2 {
		if value.Content[i+1].Kind != yaml.ScalarNode {
			return errors.New("want a mapping of names to values")
		}
		into[name+"."+value.Content[i].Value] = value.Content[i+1].Value
	}
	return nil
}

func usageOf(err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{Err: err}
}

func scalar(node *yaml.Node) (string, error) {
	switch node.Kind {
	case yaml.ScalarNode:
		return node.Value, nil
	case yaml.SequenceNode:
		parts := make([]string, len(node.Content))
		for i, part := range node.Content {
			if part.Kind != yaml.ScalarNode || strings.Contains(part.Value, ",") {
				return "", errors.New("want a list of plain values")
			}
			parts[i] = part.Value
		}
		return strings.Join(parts, ","), nil
	}
	return "", errors.New("want a value or a list of values")
}

// mention repeats a name that looks like one, and nothing else.
func mention(name *yaml.Node) string {
	if regexp.MustCompile(`^[a-zA-Z0-9_-]{1,40}$`).MatchString(name.Value) {
		return fmt.Sprintf(" %q", name.Value)
	}
	return ""
}

// DidYouMean names what is within two slips of a name, and nothing when nothing is.
func DidYouMean(name string, known iter.Seq[string]) string {
	best, least := "", 3
	for _, one := range slices.Sorted(known) {
		if n := slips(name, one); n < least && n < len(one)/2 {
			best, least = one, n
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", best)
}

// slips is how many letters were left out, put in, changed or swapped with their neighbour.
func slips(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
