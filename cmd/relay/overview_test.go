package main

import (
	"encoding/json"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestAllOutboxes: status has a line for each outbox, and doctor its findings; outboxes that cannot be read are listed
// with the others. The exit code is that of a single outbox.
func TestAllOutboxes(t *testing.T) {
	t.Parallel()
	one, two, bare := outboxDB(t), outboxDB(t), pgtest.New(t)
	fill(t, two, "payments", 7)
	away := pgtest.NewProxy(t, one.URL)
	away.Refuse(true)
	two.Exec(t, `update outbox_lane set owner = '00000000-0000-4000-8000-000000000001',
		lease_until = now() + interval '1 h' where lane < 9`)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	well := []string{
		outboxAt("one", one.URL, "  labels: {tier: gold}\n"),
		outboxAt("two", two.URL),
	}
	writeOutboxes(t, path, append(well, outboxAt("bare", bare.URL), outboxAt("away", away.URL()))...)
	env := environment{"RELAY_CONFIG": path}
	code, stdout, stderr := command(t, env, "status")
	if code != codeSchema || !strings.Contains(stderr, "2 of 4 outboxes cannot be read, see above") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if len(lines) != 5 {
		t.Fatal(stdout)
	}
	for i, want := range []string{
		"OUTBOX BACKLOG OLDEST HELD PARKED RELAYS ERROR", "away - - - - - ",
		"bare - - - - - the outbox's tables are missing or old: run `relay migrate`", "one 0 - 0 0 0 -", "two 7 ",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); !strings.HasPrefix(got, want) {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	var overview []overviewLine
	_, stdout, _ = command(t, env, "status", "--json")
	if err := json.Unmarshal([]byte(stdout), &overview); err != nil || len(overview) != 4 || overview[0].Error == "" ||
		overview[2].Labels["tier"] != "gold" || overview[3].Backlog != 7 || overview[3].Relays != 1 {
		t.Errorf("%v: %s", err, stdout)
	}

	code, stdout, _ = command(t, env, "doctor")
	if code != codeFindings || strings.Count(stdout, "outbox away\n") != 1 ||
		strings.Count(stdout, "\noutbox two\n") != 1 {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	var report []outboxFindings
	_, stdout, _ = command(t, env, "doctor", "--json")
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || len(report) != 4 {
		t.Fatalf("%v: %s", err, stdout)
	}
	for i, want := range []struct{ outbox, fails string }{
		{"away", "postgres"}, {"bare", "schema"}, {"one", ""}, {"two", ""},
	} {
		var fails []string
		for _, f := range report[i].Findings {
			if f.Severity == doctor.Fail && f.Check != "durability" { // the test server may run without fsync
				fails = append(fails, f.Check)
			}
		}
		if got := strings.Join(fails, " "); report[i].Outbox != want.outbox || got != want.fails {
			t.Errorf("findings %d are of %s, %q fail, want %+v: %s", i, report[i].Outbox, got, want, stdout)
		}
	}

	writeOutboxes(t, path, well...)
	if code, _, stderr := command(t, env, "status"); code != codeOK {
		t.Errorf("with all outboxes readable: exit code %d: %s", code, stderr)
	}
}

// TestEveryVerbTakesAnOutbox: no command ignores --outbox and uses --database-url instead. With several listed
// outboxes, only the commands that work on all of them run without --outbox.
func TestEveryVerbTakesAnOutbox(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeOutboxes(t, path, outboxAt("one", "postgres://127.0.0.1:1/none"))
	env := environment{"RELAY_CONFIG": path, "RELAY_DATABASE_URL": "postgres://127.0.0.1:1/none"}
	var c cli
	line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: environment{}.get}
	parsed, err := line.Parse(&c, []string{"lanes"}, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	leaves := parsed.Model.Leaves(true)
	for _, leaf := range leaves {
		verb := strings.Fields(leaf.Path())
		if slices.Contains([]string{"completion", "dev", "health", "help", "version"}, verb[0]) {
			continue // it works on no outbox
		}
		if code, _, stderr := command(t, env, append(verb, "--outbox=none")...); code != codeUsage ||
			!strings.Contains(stderr, `no outbox is named "none"`) {
			t.Errorf("%v --outbox=none: exit code %d: %s", verb, code, stderr)
		}
		if slices.Contains([]string{"run", "status", "doctor", "ui"}, verb[0]) {
			continue
		}
		if code, _, stderr := command(t, env, verb...); code != codeUsage ||
			!strings.Contains(stderr, "say which, with --outbox") {
			t.Errorf("%v: exit code %d: %s", verb, code, stderr)
		}
	}
	if len(leaves) < 40 {
		t.Errorf("%d verbs", len(leaves))
	}
}
