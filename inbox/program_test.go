package inbox

import (
	"bytes"
	"context"
	"log/slog"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/build"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// player is a process of a consumer, with its log.
type player struct {
	*Inbox
	t   *testing.T
	log *bytes.Buffer
}

func newPlayer(t *testing.T, db *pgtest.DB, program, host string) player {
	t.Helper()
	p := player{t: t, log: &bytes.Buffer{}}
	in, err := New(db.Pool, "ledger", Config{
		Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 1,
		Program: program, Logger: slog.New(slog.NewTextHandler(p.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	in.programs.host = host
	p.Inbox = in
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// warned returns how many times the process logged a warning about the program of.
func (p player) warned(of string) int {
	p.t.Helper()
	if err := p.present(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	return strings.Count(p.log.String(), "other="+of+" ")
}

// aMinuteLater moves the recorded times of all programs one minute back.
func aMinuteLater(t *testing.T, db *pgtest.DB) {
	t.Helper()
	db.Exec(t,
		`update inbox_consumer set programs = coalesce((select jsonb_object_agg(key, value || jsonb_build_object('seen',
				(value ->> 'seen')::timestamptz - interval '1 min'))
		from jsonb_each(programs)), '{}')`)
}

// TestSecondProgramIsReported: two programs that run one consumer each log one warning about the other, and the
// database lists both. There is no warning about another process of the same program, or about a program that has
// ended.
func TestSecondProgramIsReported(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "inbox")
	gone := newPlayer(t, db, "old/ledger", "x")
	aMinuteLater(t, db)
	a, again := newPlayer(t, db, "acme/ledger", "a"), newPlayer(t, db, "acme/ledger", "b")
	for range 3 {
		aMinuteLater(t, db)
		if a.warned("") != 0 || again.warned("") != 0 || a.log.Len()+again.log.Len() > 0 {
			t.Fatalf("a program was warned of itself, or of one that ended: %s%s", a.log, again.log)
		}
	}
	b := newPlayer(t, db, "acme/copy", "c")
	if n := a.warned("acme/copy"); n != 1 {
		t.Errorf("the first program was warned %d times, want 1: %s", n, a.log)
	}
	for range 3 {
		aMinuteLater(t, db)
		a.warned("")
		again.warned("")
		b.warned("")
	}
	for _, p := range []struct {
		player
		other string
	}{{a, "acme/copy"}, {again, "acme/copy"}, {b, "acme/ledger"}} {
		if n := p.warned(p.other); n != 1 || strings.Contains(p.log.String(), "old/ledger") {
			t.Errorf("%s was warned %d times of %s, want 1: %s", p.cfg.Program, n, p.other, p.log)
		}
	}
	// A program that was last seen a day ago is removed.
	db.Exec(t,
		`update inbox_consumer set programs = programs ||
			'{"acme/copy": {"host": "c", "seen": "2026-01-02 03:04:05+00"}}'`)
	aMinuteLater(t, db)
	a.warned("")
	if got := pgtest.One[string](t, db,
		`select string_agg(key, ' ' order by key) from inbox_consumer, jsonb_object_keys(programs) key`); got != "acme/ledger old/ledger" {
		t.Errorf("the database lists %s", got)
	}
	if strings.Contains(gone.log.String(), "other=") {
		t.Error(gone.log)
	}
}

// TestTwoOfOneProcess: two inboxes of one process under one name, as copied lines make them, are told; the other
// processes of the program are not.
func TestTwoOfOneProcess(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "inbox")
	before, a, other := newPlayer(t, db, "acme/ledger", "a"), newPlayer(t, db, "acme/ledger", "a"),
		newPlayer(t, db, "acme/ledger", "b")
	const said = "another Inbox of this process"
	before.warned("") // it ends then, in a container whose next process has its number
	for range 3 {
		a.warned("")
		other.warned("")
		aMinuteLater(t, db)
	}
	if strings.Contains(a.log.String()+other.log.String(), said) {
		t.Errorf("one inbox is told of itself, or of a process that ended: %s%s", a.log, other.log)
	}
	b := newPlayer(t, db, "acme/ledger", "a")
	for range 3 {
		b.warned("")
		a.warned("")
		aMinuteLater(t, db)
	}
	if n := strings.Count(a.log.String()+b.log.String(), said); n == 0 || n > 2 {
		t.Errorf("two inboxes of one process were told %d times: %s%s", n, a.log, b.log)
	}
	other.warned("")
	if strings.Contains(other.log.String(), said) {
		t.Error(other.log)
	}
}

// TestTheGroupIsShown: a program records the Kafka group in which it runs the consumer, and its version.
func TestTheGroupIsShown(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "inbox")
	p := newPlayer(t, db, "acme/ledger", "a")
	h := p.Each(func(context.Context, pgx.Tx, event.Event) error { return nil })
	if err := h.Prepare(t.Context(), "ledgers"); err != nil {
		t.Fatal(err)
	}
	aMinuteLater(t, db)
	p.warned("")
	const say = `select coalesce((programs -> 'acme/ledger' ->> 'group') || ' ' || (programs -> 'acme/ledger' ->> 'version'),
		'none') from inbox_consumer`
	if got := pgtest.One[string](t, db, say); got != "ledgers "+build.Version() {
		t.Errorf("the program records %s", got)
	}
}

// TestRunSaysWhoRuns: Run records its program repeatedly, with and without maintenance.
func TestRunSaysWhoRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "inbox")
	p := newPlayer(t, db, "", "a")
	p.cfg.MaintainEvery = -1
	db.Exec(t, `update inbox_consumer set programs = '{}'`)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- p.Run(ctx) }()
	pgtest.AwaitSQL(t, db, `select programs ? '`+thisProgram()+`' from inbox_consumer`)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestProgramName: all releases of a program have one name, and two programs of a module have different ones.
func TestProgramName(t *testing.T) {
	t.Parallel()
	for want, builds := range map[string][]*debug.BuildInfo{
		"example.com/acme/cmd/worker": {
			{Path: "example.com/acme/cmd/worker", Main: debug.Module{Version: "v1.0.0"}},
			{Path: "example.com/acme/cmd/worker", Main: debug.Module{Version: "(devel)"}},
			{Path: "example.com/acme/v2/cmd/worker", Main: debug.Module{Version: "v2.3.4"}},
		},
		"example.com/acme/cmd/mailer": {{Path: "example.com/acme/cmd/mailer"}},
		"example.com/vault":           {{Path: "example.com/vault"}, {Path: "example.com/vault/v3"}},
		"worker":                      {nil, {}, {Path: "command-line-arguments"}},
	} {
		for _, build := range builds {
			if got := programName(build, "/usr/bin/worker"); got != want {
				t.Errorf("%+v: %s, want %s", build, got, want)
			}
		}
	}
	for _, bad := range []string{strings.Repeat("x", 256), "a\x00b", "\xff"} {
		if _, err := (Config{Program: bad}).settings(nil); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
