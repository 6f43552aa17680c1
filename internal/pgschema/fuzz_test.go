package pgschema_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// FuzzPrefix: a schema's name is refused, or Postgres understands the prefix as exactly this name: one identifier, none
// of it cut off, nothing beside it. A query text keeps everything else that it has.
func FuzzPrefix(f *testing.F) {
	conn, err := pgx.Connect(f.Context(), pgtest.AdminURL(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = conn.Close(f.Context()) })
	for _, seed := range []string{
		"", "app", "user", "select", "_", "Ä", `a"b`, `a".b`, `"; drop schema public; --`, "a.b", "a b", "a\x00", "a\n",
		"$1", "{schema}", "pg_temp", strings.Repeat("a", 63), strings.Repeat("a", 64),
	} {
		f.Add(seed, "select 1 from {schema}outbox_event where '{schema' = '$1'")
	}
	f.Fuzz(func(t *testing.T, schema, query string) {
		prefix, err := pgschema.Prefix(schema)
		if err != nil {
			if prefix != "" {
				t.Fatalf("%q is refused and still has the prefix %q", schema, prefix)
			}
			return
		}
		if got, want := strings.Count(pgschema.Expand(query, prefix), prefix),
			strings.Count(query, pgschema.Placeholder); prefix != "" && got < want {
			t.Fatalf("%q expanded %d of %d times", query, got, want)
		}
		if schema == "" {
			return
		}
		var parts []string
		if err := conn.QueryRow(t.Context(), `select parse_ident($1)`, pgschema.Expand("{schema}outbox_event",
			prefix)).Scan(&parts); err != nil {
			t.Fatalf("%q: %v", prefix, err)
		}
		if len(parts) != 2 || parts[0] != schema || parts[1] != "outbox_event" {
			t.Fatalf("%q is understood as %q", prefix, parts)
		}
		// What is quoted by hand is what the server itself would quote, and is not cut.
		var name string
		if err := conn.QueryRow(t.Context(), `select nspname from (select $1::name::text as nspname) n`, schema).Scan(
			&name); err != nil || name != schema {
			t.Fatalf("%q is the name %q: %v", schema, name, err)
		}
	})
}
