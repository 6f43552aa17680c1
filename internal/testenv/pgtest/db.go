package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// maxConns is the size of DB.Pool. The shared server accepts 1,000 connections.
const maxConns = 20

// DB is the database of one test, and its schema there.
type DB struct {
	Pool     *pgxpool.Pool // at most maxConns connections; the search_path is the schema
	URL      string        // of the pool, with the search_path in `options`; for pgx, lib/pq and psql
	Schema   string        // unquoted; "public" for NewDatabase
	AdminURL string        // the same database as superuser, without the search_path
}

// New creates a database for this test in the shared server, and in it a schema that is migrated. The end of the test
// drops it.
func New(t testing.TB, sets ...Set) *DB {
	t.Helper()
	admin, name := AdminURL(t), uniqueName(t)
	here := withDatabase(t, admin, name)
	dropAfter(t, admin, name)
	if len(sets) == 0 {
		adminExec(t, admin, "create database "+name)
		adminExec(t, here, "create schema "+name)
	} else {
		copyTemplate(t, admin, name, sets)
		adminExec(t, here, strings.ReplaceAll(own, "{schema}", name))
	}
	return open(t, here, name)
}

// Beside creates another schema in the same database.
func (db *DB) Beside(t testing.TB, sets ...Set) *DB {
	t.Helper()
	other := open(t, db.AdminURL, uniqueName(t))
	adminExec(t, db.AdminURL, "create schema "+other.Schema)
	migrate(t, other, sets)
	return other
}

// NewDatabase is New with the schema public, as most applications have it.
func NewDatabase(t testing.TB, sets ...Set) *DB {
	t.Helper()
	admin, name := AdminURL(t), uniqueName(t)
	dropAfter(t, admin, name)
	return databaseAt(t, admin, name, sets)
}

// Database creates a database in this server, as NewDatabase does in the shared one.
func (s *Server) Database(t testing.TB, sets ...Set) *DB {
	t.Helper()
	return databaseAt(t, s.URL(), uniqueName(t), sets)
}

// dropAfter drops a database at the end of the test.
func dropAfter(t testing.TB, admin, name string) {
	t.Helper()
	t.Cleanup(func() { adminExec(t, admin, "drop database if exists "+name+" with (force)") })
}

func databaseAt(t testing.TB, admin, name string, sets []Set) *DB {
	t.Helper()
	adminExec(t, admin, "create database "+name)
	db := open(t, withDatabase(t, admin, name), "public")
	migrate(t, db, sets)
	return db
}

// Copy makes a copy of a NewDatabase, as a restored backup would be. The end of the test drops it. It closes the idle
// connections of db.Pool; the caller must have closed all others.
func (db *DB) Copy(t testing.TB) *DB {
	t.Helper()
	u, err := url.Parse(db.AdminURL)
	if err != nil {
		t.Fatalf("pgtest: parse %s: %v", db.AdminURL, err)
	}
	admin, name, template := withDatabase(t, db.AdminURL, "postgres"), uniqueName(t), strings.TrimPrefix(u.Path, "/")
	db.Pool.Reset()
	adminExec(t, admin, "create database "+name+" template "+template)
	dropAfter(t, admin, name)
	return open(t, withDatabase(t, admin, name), "public")
}

// Begin begins a transaction. The end of the test rolls it back, if the test has not ended it.
func (db *DB) Begin(t testing.TB) pgx.Tx {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatalf("pgtest: begin: %v", err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// Connect opens a connection outside the pool. The end of the test closes it.
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

// Pool opens another pool, for whoever needs one of its own. The end of the test closes it.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatalf("pgtest: open a pool: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// Exec runs sql in the pool and fails the test on an error.
func (db *DB) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// One runs a query that returns one row with one column, and returns the value.
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

// closePool fails the test, instead of hanging, if a connection was not released.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	timer := time.NewTimer(awaitLimit)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		t.Errorf("pgtest: %d connections of the pool were never released: a transaction was left open",
			pool.Stat().AcquiredConns())
	}
}

func adminExec(t testing.TB, admin, sql string) {
	t.Helper()
	if err := tryExec(admin, sql); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

func tryExec(admin, sql string) error {
	// A test's context is cancelled before its cleanups run.
	ctx, cancel := context.WithTimeout(context.Background(), 2*awaitLimit)
	defer cancel()
	config, err := pgx.ParseConfig(admin)
	if err != nil {
		return err
	}
	config.RuntimeParams["log_min_messages"] = "fatal" // the caller has the error; a failed test shows the server's log
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect as superuser: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		// Postgres itself waits for the end of a database's sessions for five seconds only.
		if _, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); !pgerr.Is(err, "55006") {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
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
		t.Fatalf("pgtest: %s is not a URL: %v", envURL, err)
	}
	edit(u)
	return u.String()
}

// uniqueName has the test's name, for process lists and logs, and a random suffix.
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
