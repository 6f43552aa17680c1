// Package pgschema puts a schema's name into query texts. It is the only place where an identifier
// meets SQL, so it is also the only place where one is checked and quoted.
package pgschema

import (
	"fmt"
	"regexp"
	"strings"
)

// Placeholder stands in a query text wherever the schema's prefix belongs: directly before a table's
// name, without a dot, as in `select 1 from {schema}outbox_event`.
const Placeholder = "{schema}"

// Lower case only: an upper-case name would have to be quoted by every tool that ever touches the
// tables, and 63 bytes is where Postgres would cut the name silently.
var valid = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// Validate returns an error that says what is allowed when schema is not a name this module accepts:
// `^[a-z_][a-z0-9_]{0,62}$`. The empty name is accepted; it means the connection's own search_path.
func Validate(schema string) error {
	if schema == "" || valid.MatchString(schema) {
		return nil
	}
	return fmt.Errorf("schema %q: want 1 to 63 of a-z, 0-9 and _, not beginning with a digit", schema)
}

// Prefix validates schema and returns what stands before a table's name: `"schema".`, or the empty
// string when schema is empty, which leaves the choice to the connection's search_path.
func Prefix(schema string) (string, error) {
	if err := Validate(schema); err != nil {
		return "", err
	}
	if schema == "" {
		return "", nil
	}
	// Quoted although the name is plain: a name such as user is a keyword.
	return `"` + schema + `".`, nil
}

// Expand replaces every [Placeholder] in sql by prefix, which must come from [Prefix].
func Expand(sql, prefix string) string {
	return strings.ReplaceAll(sql, Placeholder, prefix)
}
