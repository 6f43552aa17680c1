package pgschema_test

import (
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/pgschema"
)

func TestPrefix(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		"":                      "",
		"public":                `"public".`,
		"user":                  `"user".`,
		"_a1":                   `"_a1".`,
		strings.Repeat("a", 63): `"` + strings.Repeat("a", 63) + `".`,
	} {
		if got, err := pgschema.Prefix(schema); err != nil || got != want {
			t.Errorf("Prefix(%q) = %q, %v; want %q", schema, got, err, want)
		}
	}
	for _, schema := range []string{
		"Public", "1a", "a-b", "a.b", `a"b`, "a b", "a\n", "ä", "a;drop", " ", strings.Repeat("a", 64),
	} {
		if got, err := pgschema.Prefix(schema); err == nil || got != "" {
			t.Errorf("Prefix(%q) = %q, %v; want an error", schema, got, err)
		}
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	const query = "select 1 from {schema}outbox_event join {schema}outbox_lane using (lane)"
	if got, want := pgschema.Expand(query, `"app".`),
		`select 1 from "app".outbox_event join "app".outbox_lane using (lane)`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := pgschema.Expand(query, ""),
		"select 1 from outbox_event join outbox_lane using (lane)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
