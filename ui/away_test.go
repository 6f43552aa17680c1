package ui_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

func through(t *testing.T, db *pgtest.DB) (*pgtest.Proxy, ui.Database) {
	t.Helper()
	proxy := pgtest.NewProxy(t, db.URL)
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return proxy, ui.Database{Name: "orders", Pool: pool, Schema: db.Schema}
}

// TestLostReply: whether a change was made is unknown when its COMMIT had no answer. The page says so, the audit tells.
func TestLostReply(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	proxy, database := through(t, db)
	s := serve(t, ui.Config{}, database)
	s.get("/topics")
	trap := proxy.OnCommitAfter(func(sql string) bool { return strings.HasPrefix(sql, "-- relay: pause") },
		pgtest.DropReply)
	status, page := s.post("/db/orders/topics/pause", "topic", "payments")
	<-trap.Fired()
	if status != http.StatusGatewayTimeout {
		t.Errorf("%d", status)
	}
	wants(t, page, "It is unknown whether this was done", "The audit has a row of it if it was.")
	lacks(t, page, "Nothing was changed")
	if audited(t, db, "pause topic") != 1 {
		t.Error("it was not done: the test lost another reply")
	}
	wants(t, s.get("/audit"), "pause topic")
}

// TestRefusedConnections: what Postgres refuses, or its certificate does, is not a server that does not answer.
func TestRefusedConnections(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Standalone()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	db := server.Database(t, migrations.Outbox)
	ca := kafkatest.NewAuthority(t)
	cert, key := ca.IssuePEM(t, time.Now().Add(-time.Hour))
	server.UseTLS(t, cert, key)
	db.Exec(t, "create role gone nologin")
	for parameters, want := range map[string]string{
		"&user=gone": "refuses this user or password",
		"&sslmode=verify-full&sslrootcert=" + ca.File(t): "certificate of Postgres has run out",
	} {
		pool := pgtest.Pool(t, db.URL+parameters)
		page := serve(t, ui.Config{}, ui.Database{Name: "orders", Pool: pool, Schema: db.Schema}).get("/")
		wants(t, page, "This database cannot be looked at", want)
		lacks(t, page, "does not answer in time")
	}
}

// TestPooler: a pooler that answers in the place of Postgres is named.
func TestPooler(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	proxy := pgtest.NewProxy(t, db.URL)
	pool := pgtest.Pool(t, pgtest.NewBouncer(t, proxy.URL(), "session"))
	s := serve(t, ui.Config{}, ui.Database{Name: "orders", Pool: pool, Schema: db.Schema})
	lacks(t, s.get("/"), "cannot be looked at")
	proxy.Refuse(true)
	proxy.CutAll()
	wants(t, s.get("/topics"), "This database cannot be looked at", "the pooler before Postgres has no connection")
}

// TestDatabaseGoesAway: every page says so and stays a page, the others' figures stand, and a change is refused.
func TestDatabaseGoesAway(t *testing.T) {
	t.Parallel()
	db, other := outboxDB(t), outboxDB(t)
	proxy, database := through(t, db)
	s := serve(t, ui.Config{}, database, of("billing", other))
	s.get("/")
	proxy.Refuse(true)
	proxy.CutAll()
	for _, path := range []string{"/", "/topics", "/keys", "/audit"} {
		page := s.get(path)
		wants(t, page, "This database cannot be looked at", "It does not answer in time.")
	}
	wants(t, s.get("/"), "not known: orders: the database", "Outbox 0 events waiting")
	status, page := s.post("/db/orders/topics/pause", "topic", "payments")
	if status != http.StatusServiceUnavailable {
		t.Errorf("%d", status)
	}
	wants(t, page, "Nothing was changed: the database could not be reached.")
	if status, page = s.do(s.request(http.MethodGet, "/db/orders/outbox/events", nil)); status !=
		http.StatusServiceUnavailable {
		t.Errorf("%d", status)
	}
	wants(t, page, "This cannot be shown now")
}

// TestDatabaseHangs: a page that waited in vain does not show what was known before as if it were of now.
func TestDatabaseHangs(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	proxy, database := through(t, db)
	s := serve(t, ui.Config{Timeout: 2 * time.Second}, database)
	for path, nothing := range map[string]string{
		"/keys": "No key is blocked", "/failures": "Nothing waits for a person.", "/": "Outbox 0 events waiting",
	} {
		pgtest.Await(t, "nothing is known to wait", func() (bool, error) { return contains(s.get(path), nothing), nil })
		ui.Settle(s.h)
		proxy.Pause()
		free := ui.Occupy(s.h) // the page's time ends before the read's
		page := s.get(path)
		wants(t, page, "This database cannot be looked at", "Not known since ")
		if contains(page, nothing) {
			t.Errorf("%s says that nothing waits:\n%s", path, words(page))
		}
		free()
		proxy.Resume()
	}
}

// TestAuditsBesideEachOther: no list of the audit waits for another one, and one that is not read is not called empty.
func TestAuditsBesideEachOther(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "outbox", "inbox")
	s := serve(t, ui.Config{}, of("orders", db))
	wants(t, s.get("/audit"), "Nobody has changed anything yet.")
	holder := db.Connect(t)
	if _, err := holder.Exec(t.Context(), "begin; lock table outbox_audit, inbox_audit"); err != nil {
		t.Fatal(err)
	}
	pages := make(chan string)
	go func() { pages <- s.get("/audit") }()
	pgtest.AwaitSQL(t, db, `select count(*) = 2 from pg_locks where not granted
		and relation in ('outbox_audit'::regclass, 'inbox_audit'::regclass)`)
	if _, err := holder.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	wants(t, <-pages, "Nobody has changed anything yet.")
	db.Exec(t, "alter table inbox_audit rename to gone")
	page := s.get("/audit")
	wants(t, page, "This database cannot be looked at", "inbox_audit")
	lacks(t, page, "Nobody has changed anything yet.")
}

// TestLocked: the overview names the session that has locked the tables, and what the doctor could not look at.
func TestLocked(t *testing.T) {
	t.Parallel()
	for table, want := range map[string]string{
		"outbox_lane":          "holds an ACCESS EXCLUSIVE lock on outbox_lane",
		"effectonce_migration": "not known: schema outbox",
	} {
		db := pgtest.New(t, "outbox")
		holder := db.Connect(t)
		if _, err := holder.Exec(t.Context(), "begin; lock table "+table); err != nil {
			t.Fatal(err)
		}
		reads := db.Pool.Config()
		reads.ConnConfig.RuntimeParams["statement_timeout"] = "2s"
		pool, err := pgxpool.NewWithConfig(t.Context(), reads)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		s := serve(t, ui.Config{}, ui.Database{Name: "orders", Pool: pool, Schema: db.Schema})
		s.get("/")
		ui.Settle(s.h)
		wants(t, s.get("/"), want)
	}
}

// TestNoTables: an address that leads to the wrong place says so.
func TestNoTables(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := serve(t, ui.Config{}, of("orders", db))
	wants(t, s.get("/"), "no tables of effectonce are here")
}

// TestRunbooksExist: what a finding leads to is a section of a page.
func TestRunbooksExist(t *testing.T) {
	t.Parallel()
	for _, name := range ui.Runbooks() {
		if name == "" {
			continue
		}
		file, section, _ := strings.Cut(name, "#")
		page, err := os.ReadFile("../docs/runbooks/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.ToLower(string(page)), "\n## "+section+"\n") {
			t.Errorf("%s has no section %s", file, section)
		}
	}
}
