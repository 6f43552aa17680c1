package migrations_test

import (
	"context"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// two is a later release: two sets, one of them with a second version.
func two() fstest.MapFS {
	return fstest.MapFS{
		"a/10001_a.sql": sql("create table a_one (i int);"),
		"a/10002_a.sql": sql("alter table a_one add column j int;"),
		"b/20001_b.sql": sql("create table b_one (i int);"),
	}
}

// one is the release before it.
func one() fstest.MapFS {
	root := two()
	delete(root, "a/10002_a.sql")
	return root
}

func sql(text string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte("-- +goose Up\n" + text + "\n")}
}

func config(t testing.TB, url string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func up(t testing.TB, url string, opt migrations.Options) {
	t.Helper()
	if err := migrations.Up(t.Context(), config(t, url), opt); err != nil {
		t.Fatal(err)
	}
}

func upFrom(t testing.TB, root fstest.MapFS, url string, opt migrations.Options) {
	t.Helper()
	if err := migrations.UpFrom(t.Context(), root, config(t, url), opt); err != nil {
		t.Fatal(err)
	}
}

// relations lists what a schema holds, indexes aside.
func relations(t testing.TB, db *pgtest.DB, schema string) []string {
	t.Helper()
	return lines(t, db,
		`select c.relname::text from pg_class c where c.relnamespace = to_regnamespace($1) and c.relkind in ('r', 'p',
				'v', 'S')
		order by 1`, schema)
}

func lines(t testing.TB, db *pgtest.DB, query string, args ...any) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// role makes a login without any right, and returns the database's URL for it. Roles are the whole server's, which
// other processes may use: the database's name is in the role's.
func role(t testing.TB, db *pgtest.DB) (name, url string) {
	t.Helper()
	name = config(t, db.URL).Database + "_role"
	db.Exec(t, "create role "+name+" login")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), db.AdminURL)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.Background())
		if _, err := conn.Exec(context.Background(), fmt.Sprintf("drop owned by %s cascade; drop role %[1]s",
			name)); err != nil {
			t.Error(err)
		}
	})
	cfg := config(t, db.URL)
	return name, fmt.Sprintf("postgres://%s@%s:%d/%s?sslmode=disable", name, cfg.Host, cfg.Port, cfg.Database)
}
