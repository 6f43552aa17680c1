package interop

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	outboxes "github.com/effectonce/effectonce/outbox"
)

// TestAppendSQLWithOtherDrivers compares the rows that lib/pq and bun append with those of pgx.
func TestAppendSQLWithOtherDrivers(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(url string, events []event.Event) error{
		"pq": func(url string, events []event.Event) error { return appendSQL(t, "postgres", url, events) },
		"pq_binary_parameters": func(url string, events []event.Event) error {
			return appendSQL(t, "postgres", url+"&binary_parameters=yes", events)
		},
		"bun": func(url string, events []event.Event) error {
			return inBun(t, url, func(ctx context.Context, tx bun.Tx) error {
				return outboxes.AppendSQL(ctx, tx.Tx, events...)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, by := pgtest.New(t, migrations.Outbox), pgtest.New(t, migrations.Outbox)
			// The numbers cover a single insert, a multi-row insert, and COPY.
			for _, n := range []int{0, 1, 2, 45, 450} {
				events := edgeCases(n)
				if err := pgx.BeginFunc(t.Context(), by.Pool,
					func(tx pgx.Tx) error { return outboxes.Append(t.Context(), tx, events...) }); err != nil {
					t.Fatal(err)
				}
				if err := run(db.URL, events); err != nil {
					t.Fatal(err)
				}
			}
			got, want := pgtest.One[string](t, db, rows), pgtest.One[string](t, by, rows)
			if got != want || strings.Count(want, "\n") < 498-1 {
				t.Fatalf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

const rows = `select string_agg((to_jsonb(e) - 'created_at')::text, E'\n' order by id) from outbox_event e`

// TestAppendSQLInBunTx: bun's own ExecContext rewrites the query and drops the arguments. The error names tx.Tx.
func TestAppendSQLInBunTx(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	err := inBun(t, db.URL, func(ctx context.Context, tx bun.Tx) error {
		return outboxes.AppendSQL(ctx, tx, edgeCases(1)...)
	})
	if err == nil || !strings.Contains(err.Error(), "tx.Tx") {
		t.Fatalf("bun.Tx: %v", err)
	}
	if n := pgtest.One[int](t, db, "select count(*) from outbox_event"); n != 0 {
		t.Fatalf("%d events stored, want none", n)
	}
}

func inBun(t *testing.T, url string, do func(ctx context.Context, tx bun.Tx) error) error {
	return bun.NewDB(open(t, "pgx", url), pgdialect.New()).RunInTx(t.Context(), nil, do)
}

func appendSQL(t *testing.T, driver, url string, events []event.Event) error {
	tx, err := open(t, driver, url).BeginTx(t.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := outboxes.LockKeysSQL(t.Context(), tx, "acc-1"); err != nil {
		return err
	}
	if err := outboxes.AppendSQL(t.Context(), tx, events...); err != nil {
		return err
	}
	return tx.Commit()
}

func open(t *testing.T, driver, url string) *sql.DB {
	t.Helper()
	pool, err := sql.Open(driver, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// edgeCases makes n events with characters that text formats have to escape.
func edgeCases(n int) []event.Event {
	texts := []string{
		"plain", "", `quo"te`, `back\slash`, "NULL", "{}", `{"a",b}`, " spaced ", "é\u2028🎈",
		"new\nline\ttab", "$1 ? %s", `\x41`, "'",
	}
	payloads := [][]byte{nil, {}, {0, 1, 255, '\\'}, []byte(`{"a":1}`), []byte(strings.Repeat("z", 3000))}
	events := make([]event.Event, n)
	for i := range events {
		text := texts[i%len(texts)]
		events[i] = event.Event{
			ID: event.NewID(), Source: "s" + text, Tenant: text, Topic: "payments", Key: text, Type: "T" + text,
			ContentType: text, Payload: payloads[i%len(payloads)],
		}
		if i%2 == 0 {
			events[i].Headers = map[string]string{"h" + text: text}
			events[i].Time = time.Date(2026, 1, 2, 3, 4, i%60, 123456000, time.UTC)
		}
	}
	return events
}
