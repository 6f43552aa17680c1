package pgstore

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

var parameter = regexp.MustCompile(`\$([0-9]+)`)

// TestPlansOfAnEmptyTable: a connection keeps the plans that it made for an empty table, which then grows: none may
// scan the whole table, and autovacuum must not analyze it while it is small.
func TestPlansOfAnEmptyTable(t *testing.T) {
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
	for name, sql := range map[string]string{
		"claim": sqlClaim, "get": sqlGet, "regrant": sqlRegrant, "takeOver": sqlTakeOver, "expireLease": sqlExpireLease,
		"claimTombstone": sqlClaimTombstone, "extend": sqlExtend, "save": sqlSave, "finish": sqlFinish,
		"release": sqlRelease, "markUnknown": sqlMarkUnknown, "postpone": sqlPostpone,
		"deleteTombstone": sqlDeleteTombstone, "recover": sqlRecover, "expireBodies": sqlExpireBodies,
		"deleteTombstones": sqlDeleteTombstones,
	} {
		if _, err := conn.Exec(t.Context(), "prepare "+strings.ToLower(name)+" as "+
			pgschema.Expand(sql, prefix)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		most := 0
		for _, p := range parameter.FindAllStringSubmatch(sql, -1) {
			n, _ := strconv.Atoi(p[1])
			most = max(most, n)
		}
		nulls := strings.TrimSuffix(strings.Repeat("null, ", most), ", ")
		rows, err := conn.Query(t.Context(), fmt.Sprintf("explain execute %s(%s)", strings.ToLower(name), nulls),
			pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan on idempotency_key") ||
			!strings.Contains(text, "Index") && !strings.Contains(text, "Bitmap") {
			t.Errorf("%s reads the whole table:\n%s", name, text)
		}
	}
	options := pgtest.One[string](t, db, "select array_to_string(reloptions, ' ') from pg_class where oid = "+
		"'idempotency_key'::regclass")
	for _, want := range []string{
		"autovacuum_vacuum_threshold=5000", "autovacuum_vacuum_insert_threshold=5000",
		"autovacuum_analyze_threshold=5000",
	} {
		if !strings.Contains(options, want) {
			t.Errorf("no %s in %s", want, options)
		}
	}
}
