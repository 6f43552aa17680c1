package operator

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestQueriesPrepare(t *testing.T) {
	t.Parallel()
	pgtest.PrepareAll(t, pgtest.New(t, "idempotency"), pgtest.Queries(t, "queries.go"))
}

// TestNothingReadsTheWholeTable: a connection keeps the plans that it made for an empty table, which then grows.
func TestNothingReadsTheWholeTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "idempotency")
	prefix, err := pgschema.Prefix(db.Schema)
	if err != nil {
		t.Fatal(err)
	}
	conn := db.Connect(t)
	if _, err := conn.Exec(t.Context(), "set plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatal(err)
	}
	for name, sql := range pgtest.Queries(t, "queries.go") {
		sd, err := conn.Prepare(t.Context(), name, pgschema.Expand(sql, prefix))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		nulls := strings.TrimSuffix(strings.Repeat("null, ", len(sd.ParamOIDs)), ", ")
		if nulls != "" {
			nulls = "(" + nulls + ")"
		}
		rows, err := conn.Query(t.Context(), `explain execute "`+name+`"`+nulls, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan on idempotency_key") {
			t.Errorf("%s reads the whole table:\n%s", name, text)
		}
	}
}
