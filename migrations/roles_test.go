package migrations_test

import (
	"strings"
	"testing"

	"github.com/effectonce/effectonce/migrations"
)

// What the roles may do is tested where they are used, in cmd/relay.
func TestPrintRoles(t *testing.T) {
	t.Parallel()
	var all, outbox strings.Builder
	if err := migrations.PrintRoles(&all, migrations.Options{Schema: "app"}, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`set search_path to "app"`, "to effectonce_append;", "to effectonce_relay;",
		"to effectonce_inbox;", "to effectonce_inbox_maintainer;", "to effectonce_idempotency;", "reset search_path",
		"array['effectonce_relay', 'effectonce_inbox', 'effectonce_idempotency']", "to effectonce_operator;",
	} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no %s in\n%s", want, all.String())
		}
	}
	if strings.ContainsAny(all.String(), "{}") {
		t.Error("a placeholder is left")
	}
	if err := migrations.PrintRoles(&outbox, migrations.Options{Sets: []migrations.Set{migrations.Outbox}},
		"shop"); err != nil {
		t.Fatal(err)
	}
	if text := outbox.String(); strings.Contains(text, "inbox") || strings.Contains(text, "effectonce_relay") ||
		strings.Contains(text, "search_path") || !strings.Contains(text, "to shop_relay;") ||
		!strings.Contains(text, "array['shop_relay']") {
		t.Error(text)
	}
	for _, prefix := range []string{"A", "1a", "a-b", `a"`, strings.Repeat("a", 42)} {
		if err := migrations.PrintRoles(&outbox, migrations.Options{}, prefix); err == nil ||
			!strings.Contains(err.Error(), "want 1 to 41") {
			t.Errorf("%s: %v", prefix, err)
		}
	}
}
