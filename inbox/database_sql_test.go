package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/sqltx"
)

// writeSQL is write with database/sql, whose statements get no context.
func writeSQL(tx *sql.Tx, e event.Event) error {
	_, err := tx.Exec("insert into effect (id, what) values ($1, $2)", e.ID, e.Type)
	return err
}

// inSQL is an effect that writes and then runs do.
func inSQL(do func(tx *sql.Tx, e event.Event) error) inbox.Effect {
	return func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		return sqltx.Do(ctx, tx, func(tx *sql.Tx) error { return errors.Join(writeSQL(tx, e), do(tx, e)) })
	}
}

// batchSQL is the same for a batch.
func batchSQL(do func(tx *sql.Tx, e event.Event) error) inbox.BatchEffect {
	return func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		return sqltx.Do(ctx, tx, func(tx *sql.Tx) error {
			for _, e := range events {
				if err := errors.Join(writeSQL(tx, e), do(tx, e)); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// TestSQLEffectThatEndsTransaction: the event is parked at once and nothing of it is kept, even if the effect hides the
// error. The others are applied.
func TestSQLEffectThatEndsTransaction(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(tx *sql.Tx) error{
		"commit":            (*sql.Tx).Commit,
		"rollback":          (*sql.Tx).Rollback,
		"commit, unnoticed": func(tx *sql.Tx) error { _ = tx.Commit(); return nil },
		"commit in SQL":     func(tx *sql.Tx) error { _, _ = tx.Exec("commit"); return nil },
		"rollback in SQL": func(tx *sql.Tx) error {
			_, _ = tx.Query("/* all of it */ ROLLBACK")
			return nil
		},
	} {
		for _, batch := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w, events := newWorld(t), keyed("a", "b", "c")
				in := w.inbox(inbox.Config{})
				do := func(tx *sql.Tx, e event.Event) error {
					if e.ID != events[1].ID {
						return nil
					}
					return end(tx)
				}
				h := in.Each(inSQL(do))
				if batch {
					h = in.Batch(batchSQL(do))
				}
				out := handle(t, h, events)
				same(t, "outcomes", out, []inbox.Outcome{inbox.Applied, inbox.Parked, inbox.Applied})
				same(t, "effects", w.effects(), ids([]event.Event{events[0], events[2]}))
				same(t, "parked", w.parked(),
					[]string{"failed " + inbox.CodeTransaction + " " + events[1].ID.String()})
			})
		}
	}
}

// TestSQLEffectFailures: what the inbox knows of effects' failures holds for these too.
func TestSQLEffectFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do      func(tx *sql.Tx) error
		outcome inbox.Outcome
		parked  string // code and a piece of the reason
	}{
		"terminal": {
			func(*sql.Tx) error { return outcome.Terminal("x", errBad) }, inbox.Parked,
			"x: " + errBad.Error(),
		},
		"skip":  {func(*sql.Tx) error { return inbox.Skip }, inbox.Skipped, ""},
		"panic": {func(*sql.Tx) error { panic("no") }, inbox.Parked, "panicked"},
		"statement": {func(tx *sql.Tx) error {
			_, err := tx.Exec("select 1 / 0")
			return err
		}, inbox.Parked, "division by zero"},
		"statement, unnoticed": {func(tx *sql.Tx) error {
			_, _ = tx.Exec("select 1 / 0")
			return nil
		}, inbox.Parked, "returned nil although"},
		"hangs": {func(tx *sql.Tx) error {
			_, err := tx.Exec("select pg_sleep(600)")
			return err
		}, inbox.Parked, "EffectTimeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, events := newWorld(t), keyed("a", "b", "c")
			cfg := inbox.Config{MaxAttempts: 2}
			if name == "hangs" {
				cfg.EffectTimeout = 300 * time.Millisecond
			}
			do := inSQL(func(tx *sql.Tx, e event.Event) error {
				if e.ID == events[1].ID {
					return c.do(tx)
				}
				return nil
			})
			out := handle(t, w.inbox(cfg).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				err := do(ctx, tx, e)
				if e.ID != events[1].ID {
					err = outcome.Retryable(err) // a slow machine may exceed the deadline here, too
				}
				return err
			}), events)
			same(t, "outcomes", out, []inbox.Outcome{inbox.Applied, c.outcome, inbox.Applied})
			same(t, "effects", w.effects(), ids([]event.Event{events[0], events[2]}))
			if c.parked == "" {
				return
			}
			if got := pgtest.One[string](t, w.DB, "select reason from inbox_parked"); !strings.Contains(got, c.parked) {
				t.Errorf("parked for %q, want %q", got, c.parked)
			}
		})
	}
}

// TestSQLEffectConflict: a conflict in the database is not the event's failure.
func TestSQLEffectConflict(t *testing.T) {
	t.Parallel()
	w, r, events, runs := newWorld(t), &retries{}, some(3), 0
	in := w.inbox(inbox.Config{MaxAttempts: 1, Observer: r.observer()})
	same(t, "outcomes", handle(t, in.Each(inSQL(func(tx *sql.Tx, _ event.Event) error {
		if runs++; runs > 2 {
			return nil
		}
		_, err := tx.Exec("do $$ begin raise exception 'deadlock' using errcode = '40P01'; end $$")
		return err
	})), events), repeat(inbox.Applied, 3))
	same(t, "effects", w.effects(), ids(events))
	if r.count("conflict") != 2 {
		t.Errorf("retries %v", r.list)
	}
}

// TestSQLEffectCommitUnknown: the connection is lost around COMMIT; effect and id are there once.
func TestSQLEffectCommitUnknown(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]pgtest.Action{"never sent": pgtest.CutBefore, "reply lost": pgtest.DropReply} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, r := newWorld(t), &retries{}
			proxy := pgtest.NewProxy(t, w.URL)
			in := newInbox(t, pool(t, proxy.URL()), "ledger", small(inbox.Config{Observer: r.observer()}))
			if err := in.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			trap, events := proxy.OnCommit(action), some(10)
			handle(t, in.Batch(batchSQL(func(*sql.Tx, event.Event) error { return nil })), events)
			<-trap.Fired()
			same(t, "effects", w.effects(), ids(events))
			if r.count("commit unknown") != 1 {
				t.Errorf("retries %v", r.list)
			}
		})
	}
}

// TestSQLEffectInProcessTx: the caller's transaction goes on behind an effect that tried to end it.
func TestSQLEffectInProcessTx(t *testing.T) {
	t.Parallel()
	w, events := newWorld(t), some(2)
	in := w.inbox(inbox.Config{})
	err := pgx.BeginFunc(t.Context(), w.Pool, func(tx pgx.Tx) error {
		out, err := in.ProcessTx(t.Context(), tx, events[0],
			inSQL(func(tx *sql.Tx, _ event.Event) error { return tx.Commit() }))
		if _, code := outcome.Of(err); out != inbox.Undecided || code != inbox.CodeTransaction {
			t.Errorf("the effect that commits: %v, %v", out, err)
		}
		out, err = in.ProcessTx(t.Context(), tx, events[1],
			inSQL(func(*sql.Tx, event.Event) error { return nil }))
		if out != inbox.Applied {
			t.Errorf("the other one: %v", out)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	same(t, "effects", w.effects(), ids(events[1:]))
}
