package migrations_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// catalog describes everything in the schema app: columns, constraints, indexes, sequences, options.
const catalog = `
select format('column %s.%s %s notnull=%s identity=%s generated=%s default=%s collation=%s', c.relname, a.attname,
		format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, pg_get_expr(d.adbin,
			d.adrelid), a.attcollation::regcollation)
	from pg_attribute a join pg_class c on c.oid = a.attrelid left join pg_attrdef d on d.adrelid = c.oid
		and d.adnum = a.attnum
	where c.relnamespace = 'app'::regnamespace and a.attnum > 0
union all
select format('constraint %s.%s %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) from pg_constraint
	where connamespace = 'app'::regnamespace
union all
select 'index ' || indexdef from pg_indexes where schemaname = 'app'
union all
select format('relation %s %s %s', relname, relkind, reloptions) from pg_class where relnamespace = 'app'::regnamespace
union all
select format('sequence %s %s %s %s %s', sequencename, start_value, increment_by, cycle, cache_size) from pg_sequences
	where schemaname = 'app'
union all
select format('function %s', pg_get_functiondef(oid)) from pg_proc where pronamespace = 'app'::regnamespace
order by 1`

func TestPrintIsWhatUpDoes(t *testing.T) {
	t.Parallel()
	opt := migrations.Options{Schema: "app"}
	var script strings.Builder
	if err := migrations.Print(&script, opt); err != nil {
		t.Fatal(err)
	}
	byUp := pgtest.NewDatabase(t)
	up(t, byUp.URL, opt)
	want := lines(t, byUp, catalog)

	for name, run := range map[string]func(t *testing.T, db *pgtest.DB){
		"pgx": func(t *testing.T, db *pgtest.DB) {
			if err := simple(t, db.Connect(t), script.String()); err != nil {
				t.Fatal(err)
			}
		},
		"psql": func(t *testing.T, db *pgtest.DB) {
			psql, err := exec.LookPath("psql")
			if err != nil {
				t.Skip(err)
			}
			cmd := exec.Command(psql, "-X", "-v", "ON_ERROR_STOP=1", "-1", "-f", "-", db.URL)
			cmd.Stdin = strings.NewReader(script.String())
			if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "WARNING") {
				t.Fatalf("%v\n%s", err, out)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.NewDatabase(t)
			run(t, db)
			if err := migrations.Check(t.Context(), db.Pool, opt); err != nil {
				t.Error(err)
			}
			const versions = "select (id, version_id, is_applied)::text from app.effectonce_migration order by id"
			before := lines(t, db, versions)
			if byUp := lines(t, byUp, versions); !slices.Equal(before, byUp) {
				t.Errorf("version rows are %q, Up makes %q", before, byUp)
			}
			up(t, db.URL, opt)
			if after := lines(t, db, versions); !slices.Equal(before, after) {
				t.Errorf("Up applied something after it: %q became %q", before, after)
			}
			got := lines(t, db, catalog)
			for _, line := range want {
				if !slices.Contains(got, line) {
					t.Errorf("only with Up: %s", line)
				}
			}
			for _, line := range got {
				if !slices.Contains(want, line) {
					t.Errorf("only with Print: %s", line)
				}
			}
			if got := relations(t, db, "public"); len(got) > 0 {
				t.Errorf("public has %q", got)
			}
		})
	}
}

func TestPrintTwice(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var script strings.Builder
	if err := migrations.Print(&script, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	conn := db.Connect(t)
	if err := simple(t, conn, script.String()); err != nil {
		t.Fatal(err)
	}
	err := simple(t, conn, script.String())
	if err == nil || !strings.Contains(err.Error(), "migration 10001_outbox is applied already") {
		t.Errorf("the second time: %v", err)
	}
}

func TestPrintPending(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	upFrom(t, one(), db.URL, migrations.Options{Sets: []migrations.Set{"a"}})
	conn := db.Connect(t)
	var script strings.Builder
	if err := migrations.PrintPendingFrom(t.Context(), two(), &script, conn, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := simple(t, conn, script.String()); err != nil {
		t.Fatal(err)
	}
	if err := migrations.CheckFrom(t.Context(), two(), conn, migrations.Options{}); err != nil {
		t.Error(err)
	}
	script.Reset()
	if err := migrations.PrintPendingFrom(t.Context(), two(), &script, conn, migrations.Options{}); err != nil ||
		script.Len() > 0 {
		t.Errorf("with nothing pending: %q, %v", script.String(), err)
	}
}

// simple runs a script as one message, hence in one transaction.
func simple(t *testing.T, conn *pgx.Conn, script string) error {
	t.Helper()
	_, err := conn.PgConn().Exec(t.Context(), script).ReadAll()
	return err
}
