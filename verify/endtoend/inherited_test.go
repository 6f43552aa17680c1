package endtoend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// inherited is a setting that sessions begin with, as of a role, a database or a URL.
type inherited struct {
	name, value string
	exec        bool // pgx sends texts and reads texts, as behind a pooler
}

func (s inherited) String() string {
	mode := ""
	if s.exec {
		mode = " (exec)"
	}
	return fmt.Sprintf("%s=%q%s", s.name, s.value, mode)
}

// settable is a row of pg_settings that a role, a database or a URL may set.
type settable struct {
	Name, Kind, Low, High string
	Values                []string
	Now                   string
	Client                bool // it is about what clients send and read
}

// querySettable leaves out what needs a restart or the server's file.
const querySettable = `select name, vartype, coalesce(min_val, ''), coalesce(max_val, ''), coalesce(enumvals, '{}'),
	coalesce(setting, ''), category ~ '^(Client Connection Defaults|Version and Platform Compatibility)'
from pg_settings where context in ('user', 'superuser', 'backend', 'superuser-backend') order by name`

// texts are values of settings that are texts, for pg_settings does not say what they take. All others get an empty
// value and one that names nothing.
var texts = map[string][]string{
	"client_encoding":                  {"LATIN1", "SQL_ASCII", "WIN1252"},
	"DateStyle":                        {"ISO, DMY", "SQL, DMY", "German", "Postgres, MDY"},
	"TimeZone":                         {"Pacific/Kiritimati", "America/St_Johns", "<+23:59:59>-23:59:59", "GMT0"},
	"log_timezone":                     {"Pacific/Kiritimati"},
	"timezone_abbreviations":           {"India"},
	"search_path":                      {"", "nowhere", "pg_temp, pg_catalog"},
	"log_connections":                  {"", "all"},
	"createrole_self_grant":            {"", "set, inherit"},
	"wal_consistency_checking":         {"", "all"},
	"restrict_nonsystem_relation_kind": {"view", "foreign-table", "view, foreign-table"},
}

// extremes are the values of a setting: each that there is of few, the ends of a range, and the least that is not off.
func (s settable) extremes() []string {
	switch s.Kind {
	case "bool":
		return []string{"on", "off"}
	case "enum":
		return s.Values
	case "integer", "real":
		list := []string{s.Low}
		if low, err := strconv.ParseFloat(s.Low, 64); err == nil && (low == 0 || low == -1) {
			list = append(list, strconv.Itoa(int(low)+1))
		}
		return append(list, s.High)
	}
	if list, ok := texts[s.Name]; ok {
		return list
	}
	return []string{"", "nothing_of_this_name"}
}

// refusals are the settings that the product may stop at, each with what it then says instead of the setting's name.
// What is in here and passes is none the worse.
var refusals = map[string]string{
	"default_transaction_read_only":       "25006",
	"transaction_read_only":               "25006",
	"statement_timeout":                   "57014",
	"transaction_timeout":                 "25P04",
	"idle_in_transaction_session_timeout": "25P03",
	"idle_session_timeout":                "57P05",
	"lock_timeout":                        "55P03",
	"max_stack_depth":                     "54001",
	"temp_file_limit":                     "53400",
	"dynamic_library_path":                "58P01", // from Postgres 18 on plpgsql is found by it
}

// named tells whether what was said names the setting, or the error that it means.
func (s inherited) named(said string) bool {
	code, ok := refusals[s.name]
	return strings.Contains(strings.ToLower(said), strings.ToLower(s.name)) || ok && strings.Contains(said, code)
}

// verdict is what became of a cell.
type verdict string

const (
	passed    verdict = "passed"
	noServer  verdict = "refused by the server"
	byName    verdict = "refused by name"
	unnamed   verdict = "failed without a name"
	noConnect         = 20 * time.Second // a session that takes longer to begin cannot be used
)

// TestInheritedSettings: sessions inherit settings from a role, a database or a URL. Under each setting that there is,
// at its extremes, producer, relay, worker, edge and operators do what they do without it, or say what is wrong. The
// gate draws some, and the nightly run has all.
func TestInheritedSettings(t *testing.T) {
	t.Parallel()
	cells, settings := drawCells(t)
	var mu sync.Mutex
	found := map[verdict][]string{}
	var group errgroup.Group
	group.SetLimit(6) // most of a cell is waiting
	for _, cell := range cells {
		group.Go(func() error {
			t.Run(cell.String(), func(t *testing.T) {
				v, parts, said := cell.examine(t)
				if v == unnamed {
					t.Errorf("nothing names it:\n%s", said)
				}
				mu.Lock()
				defer mu.Unlock()
				found[v] = append(found[v], strings.TrimSpace(cell.String()+" "+strings.Join(parts, " and ")))
			})
			return nil
		})
	}
	_ = group.Wait()
	t.Logf("%d settings, %d cells", settings, len(cells))
	for _, v := range []verdict{passed, noServer, byName, unnamed} {
		list := found[v]
		if slices.Sort(list); v == passed {
			list = nil
		}
		t.Logf("%s: %d %s", v, len(found[v]), strings.Join(list, ", "))
	}
}

// drawCells lists the cells that the server's own settings make, or draws some of them.
func drawCells(t *testing.T) (cells []inherited, settings int) {
	t.Helper()
	db := pgtest.New(t)
	rows, err := db.Pool.Query(t.Context(), querySettable)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[settable])
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		for _, value := range s.extremes() {
			cells = append(cells, inherited{s.Name, value, false})
			if s.Client {
				cells = append(cells, inherited{s.Name, value, true})
			}
		}
	}
	if only := os.Getenv("EFFECTONCE_SETTING"); only != "" { // to look at some of them
		return slices.DeleteFunc(cells, func(c inherited) bool {
			return !slices.Contains(strings.Split(only, ","), c.name)
		}), len(list)
	}
	if !draw.Nightly() {
		source := rand.New(rand.NewPCG(draw.Seed(t), 0)) //nolint:gosec // repeatable
		source.Shuffle(len(cells), func(i, k int) { cells[i], cells[k] = cells[k], cells[i] })
		cells = cells[:min(gateCells, len(cells))]
	}
	return cells, len(list)
}

// gateCells is how many cells the gate has time for.
const gateCells = 20

// words are what a part of the way has logged.
type words struct {
	mu    sync.Mutex
	b     strings.Builder
	parts int
}

// next begins another part.
func (w *words) next() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Reset()
	w.parts++
}

func (w *words) part() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.parts
}

// Write implements io.Writer.
func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// examine runs a cell. Where a part is refused by name, the others are examined without it.
func (s inherited) examine(t *testing.T) (v verdict, parts []string, said string) {
	t.Helper()
	plain := map[string]bool{}
	for {
		now, part, text := s.once(t, plain)
		switch {
		case now != byName:
			if len(parts) > 0 && now == passed {
				now = byName
			}
			return now, parts, text
		case !draw.Nightly():
			return now, []string{part}, text
		case plain[part]:
			return unnamed, parts, "without the setting: " + text
		}
		plain[part], parts = true, append(parts, part)
	}
}

// once runs a cell in a database of its own.
func (s inherited) once(t *testing.T, plain map[string]bool) (v verdict, part, said string) {
	t.Helper()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox, migrations.Idempotency)
	cfg := db.Pool.Config()
	cfg.ConnConfig.RuntimeParams[s.name] = s.value
	cfg.ConnConfig.ConnectTimeout = noConnect
	cfg.MaxConns = 6
	if strings.HasSuffix(s.name, "_cost") || strings.HasPrefix(s.name, "enable_") {
		// Costs decide about it, and it compiles each statement of a worker for a second: slow, and nothing else.
		cfg.ConnConfig.RuntimeParams["jit"] = "off"
	}
	if s.exec {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if why := s.refused(t, cfg); why != "" {
		return noServer, "", why
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	out := &words{}
	c := newCore(t, db, pool, slog.New(slog.NewTextHandler(out, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.run(ctx, plain, out.next) }()
	if err = s.await(done, out, cancel); err == nil {
		return passed, "", ""
	}
	if failed, ok := errors.AsType[*partError](err); ok {
		part = failed.part
	}
	said = out.String() + "\nTHE END: " + err.Error()
	if s.named(said) {
		return byName, part, said
	}
	return unnamed, part, said
}

// refused tells why the server does not take the setting.
func (s inherited) refused(t *testing.T, cfg *pgxpool.Config) string {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), cfg.ConnConfig)
	if err == nil {
		defer func() { _ = conn.Close(t.Context()) }()
		var source string
		// A session that cannot be asked has the setting.
		const from = "select source from pg_settings where name = $1"
		if err := conn.QueryRow(t.Context(), from, s.name).Scan(&source); err == nil && source != "client" {
			return "it is from " + source
		}
		return ""
	}
	if _, said := errors.AsType[*pgconn.PgError](err); !said && !pgconn.Timeout(err) {
		t.Errorf("the server ends without a word: %v", err)
	}
	return err.Error()
}

// await waits for the end of a run, for a while after the setting was named, or for much longer when nothing names it:
// some errors pass, and a silence is found late.
func (s inherited) await(done <-chan error, out *words, cancel func()) error {
	const afterName, withoutName = 3 * time.Second, 40 * time.Second
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var named time.Time
	part := 0
	for began := time.Now(); ; {
		select {
		case err := <-done:
			return err
		case <-tick.C:
		}
		switch {
		case out.part() != part:
			part, named = out.part(), time.Time{}
		case named.IsZero() && s.named(out.String()):
			named = time.Now()
		}
		if !named.IsZero() && time.Since(named) > afterName || time.Since(began) > withoutName {
			cancel()
			return errors.Join(<-done, errors.New("the run has not come to its end"))
		}
	}
}

// TestAnotherEncodingIsRefused: a session in another encoding than Go's would store other texts than it was given.
func TestAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox, migrations.Idempotency)
	cfg := db.Pool.Config()
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "LATIN1"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c := newCore(t, db, pool, slog.New(slog.DiscardHandler))
	for name, part := range map[string]func(context.Context) error{
		"a producer":          c.produce,
		"a worker":            func(ctx context.Context) error { return c.work(ctx, inbox.ByID) },
		"an operator":         c.release,
		"a request in itself": func(ctx context.Context) error { return c.pay(ctx, false) },
		"a guarded request":   func(ctx context.Context) error { return c.charge(ctx, false) },
	} {
		if err := part(t.Context()); err == nil || !strings.Contains(err.Error(), "client_encoding is LATIN1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
