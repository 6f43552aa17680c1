package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/sqltx"
)

func newDB(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	db.Exec(t, "create table written (n int primary key)")
	return db
}

func written(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	return pgtest.One[string](t, db, "select coalesce(string_agg(n::text, ' ' order by n), '') from written")
}

// TestBothAreOneTransaction: each reads the rows that the other writes, with and without a prepared statement.
func TestBothAreOneTransaction(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "insert into written values (1)"); err != nil {
			return err
		}
		err := sqltx.Do(t.Context(), tx, func(tx *sql.Tx) error {
			insert, err := tx.Prepare("insert into written values ($1)")
			if err != nil {
				return err
			}
			for n := range 2 {
				res, err := insert.ExecContext(t.Context(), n+2)
				if err != nil {
					return err
				}
				if rows, err := res.RowsAffected(); rows != 1 || err != nil {
					t.Errorf("%d rows were inserted (%v), want 1", rows, err)
				}
			}
			var sum int
			err = tx.QueryRow("select sum(n) from written where n < $1", 9).Scan(&sum)
			if sum != 6 {
				t.Errorf("the sum is %d, want 6", sum)
			}
			return err
		})
		if n := written(t, db); n != "" {
			t.Errorf("others see %s before the commit", n)
		}
		return err
	})
	if got := written(t, db); got != "1 2 3" || err != nil {
		t.Errorf("written: %s (%v), want 1 2 3", got, err)
	}
}

// TestEndIsRefused: Commit and Rollback do nothing, and Do returns their error.
func TestEndIsRefused(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(tx *sql.Tx) error{
		"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			tx, err := db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(t.Context()) }()
			err = sqltx.Do(t.Context(), tx, func(tx *sql.Tx) error {
				if _, err := tx.Exec("insert into written values (1)"); err != nil {
					t.Error(err)
				}
				if err := end(tx); err == nil || !strings.Contains(err.Error(), "is lent") {
					t.Errorf("%s: %v, want a refusal", name, err)
				}
				if _, err := tx.Exec("insert into written values (2)"); !errors.Is(err, sql.ErrTxDone) {
					t.Errorf("a statement behind it: %v", err)
				}
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), "is lent") {
				t.Errorf("Do returned %v, want the refusal", err)
			}
			if got := written(t, db); got != "" {
				t.Errorf("%s was committed", got)
			}
			var n int
			if err := tx.QueryRow(t.Context(), "select count(*) from written").Scan(&n); err != nil || n != 1 {
				t.Errorf("the transaction has %d rows (%v), want 1", n, err)
			}
		})
	}
}

// TestAfterDo: rows, statements and goroutines that outlive do cannot use the connection, which is the caller's again.
func TestAfterDo(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		var kept *sql.Tx
		var open *sql.Rows
		err := sqltx.Do(t.Context(), tx, func(tx *sql.Tx) (err error) {
			kept = tx
			if open, err = tx.Query("select generate_series(1, 10000)"); err == nil && !open.Next() {
				t.Error("no row")
			}
			return err
		})
		if open.Next() {
			t.Error("rows can still be read")
		}
		if _, err := kept.Exec("insert into written values (1)"); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("a late statement: %v", err)
		}
		_, after := tx.Exec(t.Context(), "insert into written values (2)")
		return errors.Join(err, after)
	})
	if got := written(t, db); got != "2" || err != nil {
		t.Errorf("written: %s (%v), want 2", got, err)
	}
}

// TestPanic: a panic of do passes through, and the connection is the caller's again.
func TestPanic(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		func() {
			defer func() {
				if p := recover(); p != "no" {
					t.Errorf("recovered %v", p)
				}
			}()
			_ = sqltx.Do(t.Context(), tx, func(tx *sql.Tx) error {
				rows, err := tx.Query("select generate_series(1, 10000)")
				if err != nil || !rows.Next() {
					t.Error("no row", err)
				}
				panic("no")
			})
		}()
		_, err := tx.Exec(t.Context(), "insert into written values (1)")
		return err
	})
	if got := written(t, db); got != "1" || err != nil {
		t.Errorf("written: %s (%v), want 1", got, err)
	}
}

// TestContextEndsInStatement: a statement that names no context ends with Do's.
func TestContextEndsInStatement(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			return sqltx.Do(ctx, tx, func(tx *sql.Tx) error {
				_, err := tx.Exec("insert into written select 1 from pg_sleep(600)")
				return err
			})
		})
	}()
	pgtest.AwaitSQL(t, db, "select exists (select from pg_stat_activity where wait_event = 'PgSleep' and "+
		"query like 'insert into written%' and datname = current_database())")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Do returned %v, want %v", err, context.Canceled)
	}
}

// TestContextEnds: database/sql rolls back in a goroutine of its own. Do has waited for it, and returns an
// error.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(tx *sql.Tx, cancel func()) error{
		"between rows": func(tx *sql.Tx, cancel func()) error {
			rows, err := tx.Query("select generate_series(1, 100000)")
			if err != nil {
				return err
			}
			cancel()
			for rows.Next() {
			}
			return rows.Err()
		},
		"unnoticed": func(_ *sql.Tx, cancel func()) error { cancel(); return nil },
		"before an own rollback": func(tx *sql.Tx, cancel func()) error {
			cancel()
			_ = tx.Rollback()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				err := sqltx.Do(ctx, tx, func(tx *sql.Tx) error {
					if _, err := tx.Exec("insert into written values (1)"); err != nil {
						t.Error(err)
					}
					return do(tx, cancel)
				})
				if !errors.Is(err, context.Canceled) && !errors.Is(err, sql.ErrTxDone) {
					t.Errorf("Do returned %v", err)
				}
				return err
			})
			if got := written(t, db); got != "" || err == nil {
				t.Errorf("written: %s (%v), want nothing", got, err)
			}
		})
	}
}

// TestContextEndedBefore: nothing is run.
func TestContextEndedBefore(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return sqltx.Do(ctx, tx, func(*sql.Tx) error { t.Error("do was called"); return nil })
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}

// TestErrors: the database's errors come as pgx has them, and a named argument is refused before it is sent.
func TestErrors(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	lend(t, db, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "insert into written values (@n)", sql.Named("n", 1)); err == nil ||
			!strings.Contains(err.Error(), "Postgres knows $1") {
			t.Errorf("a named argument: %v", err)
		}
		if _, err := tx.ExecContext(ctx, "savepoint a"); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "insert into written values (1), (1)")
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "23505" {
			t.Errorf("a repeated key: %v", err)
		}
		_, err = tx.ExecContext(ctx, "rollback to a")
		return err
	})
	if err := sqltx.Do(t.Context(), nil, nil); err == nil {
		t.Error("Do took a nil tx")
	}
}
