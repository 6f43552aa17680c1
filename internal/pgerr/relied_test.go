package pgerr_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// What relay and inbox rely on in pgx without asking, each with who does.

// A batch without begin is one transaction: a day is dropped under the lock time-out that the same batch sets (inbox).
func TestReliedOneImplicitTransaction(t *testing.T) {
	t.Parallel()
	l := newLost(t)
	var b pgx.Batch
	b.Queue("select set_config('lock_timeout', '1234ms', true)")
	b.Queue("insert into written values ($1)", "gone")
	b.Queue("select current_setting('lock_timeout')").QueryRow(func(row pgx.Row) error {
		var now string
		if err := row.Scan(&now); err != nil || now != "1234ms" {
			t.Errorf("within the batch lock_timeout is %q: %v", now, err)
		}
		return nil
	})
	b.Queue("select 1 / $1::int", 0)
	if err := l.conn.SendBatch(t.Context(), &b).Close(); !pgerr.Is(err, pgerr.DivisionByZero) ||
		pgerr.CommitUnknown(err) {
		t.Errorf("the batch ended in %v", err)
	}
	if l.rows() != 0 || l.conn.PgConn().TxStatus() != 'I' {
		t.Errorf(changed, "a batch that failed has left something")
	}
}

// A batch with begin and commit stops at the first error, and its COMMIT is not run: claim and settle (relay), insert
// (inbox).
func TestReliedPipelineStops(t *testing.T) {
	t.Parallel()
	l := newLost(t)
	var b pgx.Batch
	b.Queue("begin")
	b.Queue("insert into written values ($1)", "gone")
	b.Queue("select 1 / $1::int", 0)
	b.Queue("insert into written values ($1)", "never")
	b.Queue("commit")
	if err := l.conn.SendBatch(t.Context(), &b).Close(); !pgerr.Is(err, pgerr.DivisionByZero) ||
		pgerr.CommitUnknown(err) {
		t.Errorf("the batch ended in %v", err)
	}
	if status := l.conn.PgConn().TxStatus(); status != 'E' {
		t.Errorf(changed, "after a failed pipeline the transaction is "+string(status))
	}
	tag, err := l.conn.Exec(t.Context(), "commit")
	if err != nil || tag.String() != "ROLLBACK" {
		t.Errorf(changed, "commit of a failed transaction says "+tag.String())
	}
	if l.rows() != 0 {
		t.Error("a failed pipeline has written")
	}
}

// Warnings have arrived when the batch's results are closed: the barrier looks for them then (relay). COMMIT's own,
// too.
func TestReliedNoticesComeFirst(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	var warnings []string
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		warnings = append(warnings, n.SeverityUnlocalized+" "+n.Message)
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var b pgx.Batch
	b.Queue("begin")
	b.Queue("do $$ begin raise warning 'of a statement'; end $$")
	b.Queue("commit")
	b.Queue("commit") // "there is no transaction in progress", with its CommandComplete right behind
	if err := conn.SendBatch(t.Context(), &b).Close(); err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 2 || warnings[0] != "WARNING of a statement" || warnings[1] != "WARNING there is no "+
		"transaction in progress" {
		t.Errorf(changed, "Close returns before the warnings have come")
		t.Logf("warnings: %q", warnings)
	}
}

// Queued functions run in order, before Close returns, and Close returns the error of the first that fails (relay,
// inbox).
func TestReliedQueuedFunctions(t *testing.T) {
	t.Parallel()
	l := newLost(t)
	var order []int
	mine := errors.New("mine")
	var b pgx.Batch
	for i := range 3 {
		b.Queue("select $1::int", i).QueryRow(func(row pgx.Row) error {
			var n int
			if err := row.Scan(&n); err != nil {
				return err
			}
			if order = append(order, n); n == 1 {
				return mine
			}
			return nil
		})
	}
	if err := l.conn.SendBatch(t.Context(), &b).Close(); !errors.Is(err, mine) {
		t.Errorf(changed, "Close returns "+errText(err))
	}
	if len(order) < 2 || order[0] != 0 || order[1] != 1 {
		t.Errorf(changed, "queued functions do not run in order")
	}
}

// Commit of a failed transaction is ErrTxCommitRollback, the one error of Commit that is certain without a PgError
// (pgerr).
func TestReliedCommitRollback(t *testing.T) {
	t.Parallel()
	l := newLost(t)
	tx, err := l.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err = tx.Exec(t.Context(), "select 1 / $1::int", 0); err == nil {
		t.Fatal("division by zero succeeds")
	}
	if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) || pgerr.CommitUnknown(err) {
		t.Errorf(changed, "Commit says "+errText(err))
	}
}

// A transaction that somebody else began can be adopted by an empty begin: an effect's savepoints work on it (inbox).
func TestReliedAdopt(t *testing.T) {
	t.Parallel()
	l := newLost(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.conn.Exec(t.Context(), "begin")
	must(err)
	tx, err := l.conn.BeginTx(t.Context(), pgx.TxOptions{BeginQuery: "-- adopt"})
	must(err)
	savepoint, err := tx.Begin(t.Context())
	must(err)
	_, err = savepoint.Exec(t.Context(), "insert into written values ($1)", "undone")
	must(err)
	must(savepoint.Rollback(t.Context()))
	_, err = tx.Exec(t.Context(), "insert into written values ($1)", "kept")
	must(err)
	_, err = l.conn.Exec(t.Context(), "commit")
	must(err)
	if l.rows() != 1 {
		t.Errorf(changed, "an adopted transaction does not have its savepoints")
	}
}

// The end of a context ends the connection, so that no statement of it is still under way when the next one runs
// (relay, inbox).
func TestReliedCancelCloses(t *testing.T) {
	t.Parallel()
	l := newLost(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	trap := make(chan struct{})
	go func() {
		pid := int32(l.conn.PgConn().PID())
		pgtest.AwaitSQL(t, l.db, "select state = 'active' and query like 'select pg_sleep%' from pg_stat_activity "+
			"where pid = $1", pid)
		cancel()
		close(trap)
	}()
	_, err := l.conn.Exec(ctx, "select pg_sleep(60) where $1", true)
	<-trap
	if !errors.Is(err, context.Canceled) || !l.conn.IsClosed() || !pgerr.CommitUnknown(err) {
		t.Errorf(changed, "after the end of its context the connection is open, or the error is "+errText(err))
	}
}
