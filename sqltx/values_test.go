package sqltx_test

import (
	"context"
	"database/sql"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver to compare with

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/sqltx"
)

// expressions are values of the types that tables have, with their extremes.
var expressions = []string{
	"true", "null::bool", "'-32768'::int2", "2147483647", "9223372036854775807", "null::int8", "1.1::float4",
	"'NaN'::float4",
	"1.1::float8", "'-Infinity'::float8", "1.10::numeric", "'NaN'::numeric", "123456789012345678901234567890::numeric",
	"'text'::text", "''", "'v'::varchar(9)", "'c'::char(3)", `'\x00ff'::bytea`, "''::bytea", "null::bytea",
	"date '2026-01-02'", "'infinity'::date", "timestamp '2026-01-02 03:04:05.678901'",
	"timestamptz '2026-01-02 03:04:05.678901+02'", "'infinity'::timestamptz", "time '03:04:05'",
	"interval '1 day 2 hours'",
	"'019b76da-a800-7000-8000-000000000000'::uuid", `'{"a": [1, null]}'::json`, `'{"a": [1, null]}'::jsonb`,
	"'{1,2,null}'::int[]", `array['a"b', null]`, "'<a/>'::xml", "'10.0.0.0/8'::cidr", "42::oid", "'42'::xid", "'42'::cid",
	"int4range(1, 5)", "row(1, 'a')", "'(1,2)'::point", "'x'::\"char\"",
}

// TestValues: values are read as pgx's own driver reads them, in every mode of pgx.
func TestValues(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	query := "select " + strings.Join(expressions, ", ")
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			theirs, err := sql.Open("pgx", db.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = theirs.Close() }()
			want := readAll(t, theirs, mode, query)
			lend(t, db, func(ctx context.Context, tx *sql.Tx) error {
				for i, got := range readAll(t, tx, mode, query) {
					if !reflect.DeepEqual(got, want[i]) && !strings.Contains(expressions[i], "NaN") {
						t.Errorf("%s:\ngot  %#v\nwant %#v", expressions[i], got, want[i])
					}
				}
				return nil
			})
		})
	}
}

// read is a column's value and type as database/sql reports them.
type read struct {
	name, typ, scan string
	value           any
}

func readAll(t *testing.T, q interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, mode pgx.QueryExecMode, query string,
) []read {
	t.Helper()
	rows, err := q.QueryContext(t.Context(), query, mode)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	types, err := rows.ColumnTypes()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]read, len(types))
	into := make([]any, len(types))
	for i, c := range types {
		all[i] = read{name: c.Name(), typ: c.DatabaseTypeName(), scan: c.ScanType().String()}
		into[i] = &all[i].value
	}
	if !rows.Next() {
		t.Fatal(rows.Err())
	}
	if err := rows.Scan(into...); err != nil {
		t.Fatal(err)
	}
	if rows.Next() || rows.Err() != nil {
		t.Fatalf("another row, or %v", rows.Err())
	}
	return all
}

// lend runs do in a transaction of its own, which is committed.
func lend(t *testing.T, db *pgtest.DB, do func(ctx context.Context, tx *sql.Tx) error) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return sqltx.Do(t.Context(), tx, func(tx *sql.Tx) error { return do(t.Context(), tx) })
	})
	if err != nil {
		t.Error(err)
	}
}
