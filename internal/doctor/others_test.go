package doctor

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestOthers: what speaks Postgres' protocol and is none is told by its version() and refused before anything else is
// asked; of Citus, tables that are distributed.
func TestOthers(t *testing.T) {
	t.Parallel()
	examine := func(t *testing.T, statements ...string) []Finding {
		t.Helper()
		db := pgtest.New(t, migrations.Outbox)
		for _, sql := range statements {
			db.Exec(t, sql)
		}
		cfg, err := pgxpool.ParseConfig(db.URL)
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.RuntimeParams["search_path"] = db.Schema + ", pg_catalog" // its functions win
		delete(cfg.ConnConfig.RuntimeParams, "options")
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return Examine(t.Context(), Subject{DB: pool, Schema: db.Schema})
	}
	for version, why := range map[string]string{
		"CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)":     "advisory locks",
		"PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64-pc-linux": "sequences",
	} {
		list := examine(t, `create function version() returns text language sql as $$ select '`+version+`' $$`)
		if len(list) != 1 || list[0].Severity != Fail || list[0].Found != version ||
			!strings.Contains(list[0].Means, why) {
			t.Errorf("%s: %+v", version, list)
		}
	}
	list := examine(t, `create table pg_dist_partition (logicalrelid regclass)`, `create table mine (n int)`,
		`insert into pg_dist_partition values ('mine'), ('outbox_lane'), ('outbox_event')`)
	if severity, text := worst(list, "citus"); severity != Fail ||
		!strings.Contains(text, "distributed: outbox_event, outbox_lane") {
		t.Errorf("%s %s", severity, text)
	}
	if severity, _ := worst(list, "primary"); severity != OK {
		t.Errorf("the rest is not looked at: %+v", list)
	}
}
