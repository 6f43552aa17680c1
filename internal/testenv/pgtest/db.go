package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// maxConns is the size of DB.Pool; the server takes 300 connections, and two test binaries run a few tests each at
// once.
const maxConns = 20

// DB is one test's corner of a server: a schema of its own, or a database of its own.
type DB struct {
	Pool     *pgxpool.Pool // 20 connections at most, its search_path is the schema
	URL      string        // as the pool's; carries the search_path in `options`, and works with pgx, lib/pq and psql
	Schema   string        // unquoted; "public" for NewDatabase
	AdminURL string        // the same database as superuser, without the search_path
}

// New makes a schema for this test, with the given migration sets in it. The schema is dropped at the end of the test.
func New(t testing.TB, sets ...Set) *DB {
	t.Helper()
	admin := AdminURL(t)
	name := uniqueName(t)
	adminExec(t, admin, "create schema "+name)
	t.Cleanup(func() { dropSchema(t, admin, name) })
	db := open(t, admin, name)
	migrate(t, db, sets)
	return db
}

// NewDatabase makes a database for this test in the shared server, migrated in its schema public: for what is counted
// per database, such as advisory locks, replication slots or long transactions elsewhere. It is dropped at the end of
// the test.
func NewDatabase(t testing.TB, sets ...Set) *DB {
	t.Helper()
	return databaseAt(t, AdminURL(t), sets)
}

// Database makes a database in this server, as NewDatabase does in the shared one.
func (s *Server) Database(t testing.TB, sets ...Set) *DB {
	t.Helper()
	name := uniqueName(t)
	adminExec(t, s.URL(), "create database "+name)
	db := open(t, withDatabase(t, s.URL(), name), "public")
	migrate(t, db, sets)
	return db
}

func databaseAt(t testing.TB, admin string, sets []Set) *DB {
	t.Helper()
	name := uniqueName(t)
	adminExec(t, admin, "create database "+name)
	t.Cleanup(func() { adminExec(t, admin, "drop database if exists "+name+" with (force)") })
	db := open(t, withDatabase(t, admin, name), "public")
	migrate(t, db, sets)
	return db
}

// Copy makes another database of what a NewDatabase holds now, as a backup would, and drops it at the end of the test.
// It ends the connections that the first one's pool has idle; others must be closed.
func (db *DB) Copy(t testing.TB) *DB {
	t.Helper()
	u, err := url.Parse(db.AdminURL)
	if err != nil {
		t.Fatalf("pgtest: parse %s: %v", db.AdminURL, err)
	}
	admin, name, template := withDatabase(t, db.AdminURL, "postgres"), uniqueName(t), strings.TrimPrefix(u.Path, "/")
	db.Pool.Reset()
	// A backend takes a moment to leave.
	Await(t, "a database without connections", func() (bool, error) {
		return One[bool](t, &DB{Pool: db.Pool}, "select count(*) = 1 from pg_stat_activity where datname = $1",
			template), nil
	})
	db.Pool.Reset()
	adminExec(t, admin, "create database "+name+" template "+template)
	t.Cleanup(func() { adminExec(t, admin, "drop database if exists "+name+" with (force)") })
	return open(t, withDatabase(t, admin, name), "public")
}

// Connect opens one connection of its own to the DB, closed at the end of the test: for a session that holds something.
func (db *DB) Connect(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

// Exec runs sql through the pool and fails the test when that fails.
func (db *DB) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// One runs a query that gives one row with one column, and returns that value.
func One[T any](t testing.TB, db *DB, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.Pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
	return v
}

func open(t testing.TB, admin, schema string) *DB {
	t.Helper()
	db := &DB{Schema: schema, AdminURL: admin, URL: WithSearchPath(t, admin, schema)}
	cfg, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatalf("pgtest: parse %s: %v", db.URL, err)
	}
	cfg.MaxConns = maxConns
	if db.Pool, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
		t.Fatalf("pgtest: open the pool: %v", err)
	}
	t.Cleanup(func() { closePool(t, db.Pool) })
	return db
}

// closePool fails the test instead of hanging it when a transaction or connection was never given back.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		t.Errorf("pgtest: %d connections of the pool were never released: a transaction was left open",
			pool.Stat().AcquiredConns())
	}
}

// dropSchema first ends what the test left open in its schema, which would make the drop wait for ever.
func dropSchema(t testing.TB, admin, name string) {
	t.Helper()
	adminExec(t, admin,
		`select pg_terminate_backend(pid) from pg_stat_activity a where pid <> pg_backend_pid() and exists (
		select from pg_locks l join pg_class c on c.oid = l.relation where l.pid = a.pid
			and c.relnamespace = '`+name+`'::regnamespace
		and l.database = (select oid from pg_database where datname = current_database()))`)
	adminExec(t, admin, "set lock_timeout = '30s'; drop schema "+name+" cascade")
}

func adminExec(t testing.TB, admin, sql string) {
	t.Helper()
	// Not the test's context: that one is cancelled before cleanups run.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		t.Fatalf("pgtest: connect as superuser: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// WithSearchPath returns rawURL with the search_path set to schema by the connection's startup options.
func WithSearchPath(t testing.TB, rawURL, schema string) string {
	t.Helper()
	return editURL(t, rawURL, func(u *url.URL) {
		q := u.Query()
		q.Set("options", "-csearch_path="+schema)
		// libpq does not read a plus sign as a space.
		u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	})
}

func withDatabase(t testing.TB, rawURL, name string) string {
	t.Helper()
	return editURL(t, rawURL, func(u *url.URL) { u.Path = "/" + name })
}

func editURL(t testing.TB, rawURL string, edit func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatalf("pgtest: %s is no URL: %v", EnvURL, err)
	}
	edit(u)
	return u.String()
}

// uniqueName tells in a process list or a log whose schema this is; the random end keeps runs apart.
func uniqueName(t testing.TB) string {
	var b strings.Builder
	for _, r := range strings.ToLower(t.Name()) {
		if b.Len() == 40 {
			break
		}
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			r = '_'
		}
		b.WriteRune(r)
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails since Go 1.24
	return b.String() + "_" + hex.EncodeToString(random[:])
}
