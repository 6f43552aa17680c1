package pgtest

import (
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/migrations"
)

func TestMain(m *testing.M) { Main(m) }

func TestSchemaPerTest(t *testing.T) {
	t.Parallel()
	a, b := New(t), New(t)
	a.Exec(t, "create table x (i int)")
	b.Exec(t, "create table x (i int)")
	a.Exec(t, "insert into x values ($1)", 1)
	if n := One[int](t, b, "select count(*)::int from x"); n != 0 {
		t.Fatalf("the schemas share a table: %d rows", n)
	}
	if s := One[string](t, a, "select current_schema()"); s != a.Schema {
		t.Fatalf("current schema %q, want %q", s, a.Schema)
	}
	PrepareAll(t, a, map[string]string{"all": "select i from {schema}x where i = $1"})
}

func TestURLWorksInPsql(t *testing.T) {
	t.Parallel()
	psql, err := program("psql")
	if err != nil {
		t.Skip(err)
	}
	db := New(t)
	out, err := exec.Command(psql, "-XAt", db.URL, "-c", "select current_schema()").CombinedOutput()
	if err != nil || string(out) != db.Schema+"\n" {
		t.Fatalf("psql: %q, %v; want %q", out, err, db.Schema)
	}
}

func TestDatabasePerTest(t *testing.T) {
	t.Parallel()
	db := NewDatabase(t)
	db.Exec(t, "create table public.x (i int)")
	if a, b := One[string](t, db, "select current_database()"),
		One[string](t, New(t), "select current_database()"); a == b {
		t.Fatalf("both are in database %s", a)
	}
}

func TestServerRestarts(t *testing.T) {
	t.Parallel()
	s := NewServer(t)
	db := s.Database(t)
	db.Exec(t, "create table x (i int)")
	for i, stop := range []func(){s.Kill, s.StopImmediate, s.StopFast} {
		db.Exec(t, "insert into x values ($1)", i)
		stop()
		// A new connection: after SIGKILL of the postmaster an existing backend may answer once more.
		if conn, err := pgx.Connect(t.Context(), s.URL()); err == nil {
			_ = conn.Close(t.Context())
			t.Fatal("a stopped server accepts a connection")
		}
		db.Pool.Reset() // its connections are dead
		s.Start(t)
		AwaitSQL(t, db, "select count(*) = $1 from x", i+1)
	}
}

// TestServerStartsBesideOrphans: a backend of a killed postmaster that does not end keeps its memory, and with it the
// next server from starting.
func TestServerStartsBesideOrphans(t *testing.T) {
	t.Parallel()
	s := NewServer(t)
	db := s.Database(t)
	backend := One[string](t, db, "select pg_backend_pid()::text")
	if err := exec.Command("kill", "-STOP", backend).Run(); err != nil {
		t.Skip(err)
	}
	s.Kill()
	db.Pool.Reset()
	s.Start(t)
	AwaitSQL(t, db, "select true")
}

func TestMigratedSchema(t *testing.T) {
	t.Parallel()
	db := New(t, migrations.Outbox)
	db.Exec(t, "insert into outbox_event (topic, key, type, payload) values ('t', 'k', 'T', 'p')")
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		New(b, migrations.Outbox)
	}
}
