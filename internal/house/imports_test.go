package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// allowed says which rooms each room may import. A room is a package with those below it; internal packages are leaves
// that every room may import, except the ones for tests.
var allowed = map[string][]string{
	"":              {}, // the module's own page
	"event":         {},
	"admin":         {},
	"outbox":        {"event"},
	"outboxtest":    {"event", "outbox", "outcome", "inbox"},
	"publishertest": {"event", "outcome"},
	"metrics":       {"event", "relay", "publisher", "consumer", "inbox"},
	"relay": {
		"event", "outbox", "outcome", "relay/internal/archive", "relay/internal/cycle", "relay/internal/delivery",
		"relay/internal/floors", "relay/internal/keeper", "relay/internal/lanes", "relay/internal/outage",
		"relay/internal/pg", "relay/internal/prober", "relay/internal/pump", "relay/internal/reviver",
		"relay/internal/signal", "relay/internal/sql", "relay/internal/start", "relay/internal/wal",
	},
	"relay/operator": {"admin", "event", "outbox", "relay", "relay/internal/sql"},
	// The actors. Each may know those that are named before it.
	"relay/internal/archive": {"relay/internal/sql"},
	"relay/internal/floors": {
		"relay/internal/outage", "relay/internal/pg", "relay/internal/sql", "relay/internal/start",
	},
	"relay/internal/cycle": {
		"event", "relay/internal/delivery", "relay/internal/lanes", "relay/internal/outage", "relay/internal/pg",
		"relay/internal/sql", "relay/internal/start",
	},
	"relay/internal/pump": {
		"relay/internal/cycle", "relay/internal/lanes", "relay/internal/outage", "relay/internal/start",
	},
	"relay/internal/reviver": {
		"relay/internal/cycle", "relay/internal/delivery", "relay/internal/lanes", "relay/internal/pg",
		"relay/internal/sql", "relay/internal/start",
	},
	"relay/internal/wal": {
		"event", "relay/internal/cycle", "relay/internal/delivery", "relay/internal/lanes", "relay/internal/outage",
		"relay/internal/pg", "relay/internal/sql", "relay/internal/start",
	},
	"relay/internal/keeper": {
		"relay/internal/lanes", "relay/internal/outage", "relay/internal/pg", "relay/internal/sql",
		"relay/internal/start", "relay/internal/wal",
	},
	"relay/internal/prober": {
		"relay/internal/cycle", "relay/internal/keeper", "relay/internal/lanes", "relay/internal/outage",
		"relay/internal/pg", "relay/internal/sql", "relay/internal/start", "relay/internal/wal",
	},
	// What the actors stand on.
	"relay/internal/start": {
		"event", "relay/internal/delivery", "relay/internal/lanes", "relay/internal/outage", "relay/internal/pg",
		"relay/internal/signal", "relay/internal/sql",
	},
	"relay/internal/outage":   {},
	"relay/internal/delivery": {"event", "outcome"},
	"relay/internal/lanes":    {"relay/internal/delivery"}, // for what a lane holds events for
	"relay/internal/pg":       {"relay/internal/sql"},
	"relay/internal/signal":   {},
	"relay/internal/sql":      {},
	"publisher":               {"event", "outcome"},
	"consumer":                {"event", "inbox"},
	"oauthbearer":             {},
	"process":                 {"consumer"},
	"sqltx":                   {},
	"outcome":                 {},
	"inbox":                   {"event", "outcome"},
	"inbox/operator":          {"admin", "event", "inbox"},
	"ui": {
		"admin", "relay", "relay/operator", "inbox/operator", "idempotency", "idempotency/pgstore",
	},
	"watermill":               {"event", "outbox", "outcome", "relay", "inbox"},
	"idempotency":             {},
	"idempotency/keys":        {"idempotency"},
	"idempotency/store":       {"idempotency"},
	"idempotency/guard":       {"idempotency", "outcome", "idempotency/store"},
	"idempotency/memstore":    {"idempotency", "idempotency/store"},
	"idempotency/pgstore":     {"admin", "idempotency", "outcome", "idempotency/store"},
	"idempotency/redisstore":  {"idempotency", "idempotency/store"},
	"idempotency/dynamostore": {"idempotency", "idempotency/store"},
	"idempotency/httpedge": {
		"idempotency", "outcome", "idempotency/keys", "idempotency/store", "idempotency/guard",
	},
	"idempotency/recovery":        {"idempotency", "outcome", "idempotency/store", "idempotency/guard"},
	"idempotency/client":          {},
	"idempotency/idempotencytest": {"idempotency", "idempotency/store", "idempotency/memstore"},
	"idempotency/telemetry":       {"idempotency", "idempotency/store", "idempotency/recovery"},
	"idempotency/internal/netcut": {}, // for tests
	"migrations":                  {},
	"docs":                        {},
	"cmd":                         {"*", "cmd/devstack"},
	"cmd/devstack":                {}, // for the demo, too
	"verify":                      {"*"},
	"examples":                    {"*", "examples"},
	"examples/demo":               {"*", "examples", "cmd/devstack"},
	// internal packages stand on each other, but on a room only where it is named here.
	"internal":       {},
	"internal/audit": {"admin", "event"},
	"internal/doctor": {
		"admin", "consumer", "event", "inbox", "inbox/operator", "migrations", "relay", "relay/operator",
	},
	"internal/kafkaconn": {"oauthbearer"},
	"internal/testenv":   {"*"},
}

// onlyForTests may be imported by test files and by notBuiltIn, and by nothing that users build in.
var onlyForTests = []string{"internal/testenv", "verify"}

// notBuiltIn are packages that nobody's program contains.
var notBuiltIn = []string{"internal", "verify", "cmd/devstack", "examples/demo"}

// star is what "*" stands for: everything but commands and examples.
func star(room string) bool { return room != "cmd" && room != "examples" }

// copied are the examples that people copy into modules of their own, with what these import of one another.
var copied = []string{
	"examples/contract", "examples/edge", "examples/email", "examples/embed", "examples/ledger",
	"examples/payments", "examples/watermill", "examples/worker",
}

// TestExamplesCanBeCopied: an internal package cannot be imported from another module.
func TestExamplesCanBeCopied(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, p := range packages(t) {
		for _, room := range copied {
			if !under(p.path, []string{room}) {
				continue
			}
			found[room] = true
			for _, path := range p.imports {
				if strings.Contains("/"+path+"/", "/internal/") ||
					under(path, []string{"examples"}) && !under(path, copied) {
					t.Errorf("%s imports %s: nobody can copy it", p.path, path)
				}
			}
		}
	}
	if len(found) != len(copied) {
		t.Errorf("of the examples %v only %v are there", copied, found)
	}
}

func TestImports(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		room := roomOf(p.path)
		may, known := allowed[room]
		if !known {
			t.Errorf("%s is in no room: add it to the table here and to the design", p.path)
			continue
		}
		for _, path := range p.imports {
			to := roomOf(path)
			switch {
			case strings.HasPrefix(path, "internal/"):
				if under(path, onlyForTests) && !under(p.path, notBuiltIn) {
					t.Errorf("%s imports %s, which is for tests", p.path, path)
				}
			case to == room || slices.Contains(may, to) || (slices.Contains(may, "*") && star(to)):
			default:
				t.Errorf("%s may not import %s: its room may import %v", p.path, path, may)
			}
		}
	}
}

type goPackage struct {
	path    string   // relative to the module; "" is its root
	imports []string // of ours, likewise; test files left out
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,GoFiles", "work")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath       string
			Imports, GoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		if len(p.GoFiles) == 0 {
			continue
		}
		one := goPackage{path: ours(p.ImportPath)}
		for _, i := range p.Imports {
			if strings.HasPrefix(i, module+"/") {
				one.imports = append(one.imports, ours(i))
			}
		}
		all = append(all, one)
	}
	return all
}

func ours(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

// roomOf is the longest entry of the table that path is in or under; the path itself when there is none.
func roomOf(path string) string {
	best := ""
	for room := range allowed {
		if len(room) > len(best) && under(path, []string{room}) {
			best = room
		}
	}
	if best == "" {
		return path
	}
	return best
}

func under(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return path == d || strings.HasPrefix(path, d+"/") })
}
