package pgerr_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql over pgx

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// How pgx answers when a reply is lost is a contract: what it gets wrong is why this package exists, and why no room
// runs database/sql without arguments or asks SafeToRetry. The tests fail when an upgrade changes an answer.
const changed = "pgx answers otherwise than this module was built against (%s): read package pgerr again, then " +
	"change this test"

// lost is a database with one table, and a connection to it through a proxy.
type lost struct {
	db    *pgtest.DB
	proxy *pgtest.Proxy
	conn  *pgx.Conn
	t     *testing.T
}

func newLost(t *testing.T) *lost {
	t.Helper()
	l := &lost{db: pgtest.New(t), t: t}
	l.db.Exec(t, "create table written (what text)")
	l.proxy = pgtest.NewProxy(t, l.db.URL)
	l.conn = (&pgtest.DB{URL: l.proxy.URL()}).Connect(t)
	return l
}

// rows is how often the statement happened.
func (l *lost) rows() int {
	l.t.Helper()
	return pgtest.One[int](l.t, l.db, "select count(*) from written")
}

func inserts(text string) bool { return strings.Contains(text, "insert into written") }

// check compares an answer with what is known of it. It is always unknown to us, whatever happened.
func (l *lost) check(err error, safe bool, rows int) {
	l.t.Helper()
	if err == nil || !pgerr.CommitUnknown(err) || !pgerr.Away(err) {
		l.t.Errorf("CommitUnknown and Away must hold for %v", err)
	}
	if got := pgconn.SafeToRetry(err); got != safe {
		l.t.Errorf(changed, "SafeToRetry = "+map[bool]string{true: "true", false: "false"}[got]+" of "+errText(err))
	}
	if n := l.rows(); n != rows {
		l.t.Errorf("%d rows were written, want %d", n, rows)
	}
}

func errText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

// TestLostCommit: pgx says that a COMMIT which happened is safe to be repeated.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		action pgtest.Action
		safe   bool
		rows   int
	}{
		"reply lost": {pgtest.DropReply, true, 1},
		"never sent": {pgtest.CutBefore, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLost(t)
			tx, err := l.conn.Begin(t.Context())
			if err == nil {
				_, err = tx.Exec(t.Context(), "insert into written values ($1)", "once")
			}
			if err != nil {
				t.Fatal(err)
			}
			trap := l.proxy.OnCommit(c.action)
			err = tx.Commit(t.Context())
			<-trap.Fired()
			l.check(err, c.safe, c.rows)
			if !l.conn.IsClosed() {
				t.Errorf(changed, "the connection is still open")
			}
		})
	}
}

// TestLostStatement: so does it of a statement without arguments, which goes by the simple protocol; one with arguments
// and a batch are answered right.
func TestLostStatement(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run  func(ctx context.Context, conn *pgx.Conn) error
		safe bool
	}{
		"without arguments": {func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "insert into written values ('simple')")
			return err
		}, true},
		"with arguments": {func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "insert into written values ($1)", "extended")
			return err
		}, false},
		"a batch": {func(ctx context.Context, conn *pgx.Conn) error {
			var b pgx.Batch
			b.Queue("insert into written values ($1)", "batch")
			return conn.SendBatch(ctx, &b).Close()
		}, false},
		"a batch that ends in commit": {func(ctx context.Context, conn *pgx.Conn) error {
			var b pgx.Batch
			b.Queue("begin")
			b.Queue("insert into written values ($1)", "batch")
			b.Queue("commit")
			return conn.SendBatch(ctx, &b).Close()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLost(t)
			match := inserts
			if strings.HasSuffix(name, "commit") {
				match = pgtest.IsCommit
			}
			trap := l.proxy.On(match, 0, pgtest.DropReply)
			err := c.run(t.Context(), l.conn)
			<-trap.Fired()
			l.check(err, c.safe, 1)
		})
	}
}

// TestLostInDatabaseSQL: without arguments, database/sql believes SafeToRetry, runs the statement twice and reports
// success.
func TestLostInDatabaseSQL(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []any
		rows int
	}{"without arguments": {nil, 2}, "with arguments": {[]any{"once"}, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLost(t)
			db, err := sql.Open("pgx", l.proxy.URL())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			if err := db.PingContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			query := "insert into written values ('twice')"
			if len(c.args) > 0 {
				query = "insert into written values ($1)"
			}
			trap := l.proxy.On(inserts, 0, pgtest.DropReply)
			_, err = db.ExecContext(t.Context(), query, c.args...)
			<-trap.Fired()
			if silent := err == nil; silent != (c.rows == 2) || l.rows() != c.rows {
				t.Errorf(changed, "err "+errText(err))
				t.Errorf("%d rows were written, want %d", l.rows(), c.rows)
			}
		})
	}
}

// TestLostCommitInDatabaseSQL: the COMMIT of database/sql is not repeated, and its error says nothing of what happened.
func TestLostCommitInDatabaseSQL(t *testing.T) {
	t.Parallel()
	l := newLost(t)
	db, err := sql.Open("pgx", l.proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), "insert into written values ($1)", "once")
	}
	if err != nil {
		t.Fatal(err)
	}
	trap := l.proxy.OnCommit(pgtest.DropReply)
	err = tx.Commit()
	<-trap.Fired()
	if err == nil || !pgerr.CommitUnknown(err) || l.rows() != 1 {
		t.Errorf("%v, %d rows: want an unknown outcome and one row", err, l.rows())
	}
}

// TestFatalDuringCommit: a backend that is ended says so with a FATAL, after which a COMMIT may have happened.
func TestFatalDuringCommit(t *testing.T) {
	t.Parallel()
	l := newLost(t)
	l.db.Exec(t, "select pg_terminate_backend($1)", int32(l.conn.PgConn().PID()))
	var err error
	for err == nil { // the backend takes a moment
		_, err = l.conn.Exec(t.Context(), "select 1")
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code != "57P01" || pg.SeverityUnlocalized != "FATAL") {
		t.Errorf(changed, pg.Error())
	}
	if !pgerr.CommitUnknown(err) || !pgerr.Away(err) {
		t.Errorf("CommitUnknown and Away must hold for %v", err)
	}
}
