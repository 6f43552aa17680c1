package pgtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// commitWays are the ways in which a COMMIT reaches the server.
var commitWays = map[string]func(ctx context.Context, conn *pgx.Conn) error{
	"simple query": func(ctx context.Context, conn *pgx.Conn) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "insert into x values ($1)", 1); err != nil {
			return err
		}
		return tx.Commit(ctx)
	},
	"pipeline": func(ctx context.Context, conn *pgx.Conn) error {
		b := &pgx.Batch{}
		b.Queue("begin")
		b.Queue("insert into x values ($1)", 1)
		b.Queue("commit")
		b.Queue("select 1")
		return conn.SendBatch(ctx, b).Close()
	},
	"prepared statement": func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Prepare(ctx, "done", "-- x: done\ncommit"); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "begin; insert into x values (1)"); err != nil {
			return err
		}
		return conn.PgConn().ExecPrepared(ctx, "done", nil, nil, nil).Read().Err
	},
}

func TestProxyAtCommit(t *testing.T) {
	t.Parallel()
	for name, commit := range commitWays {
		for action, rows := range map[Action]int{CutBefore: 0, DropReply: 1, CutAfter: 1, Late: 0} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := New(t)
				db.Exec(t, "create table x (i int)")
				proxy := NewProxy(t, db.URL)
				conn := connect(t, proxy.URL())
				if err := commit(t.Context(), conn); err != nil {
					t.Fatalf("without a trap: %v", err)
				}
				db.Exec(t, "truncate x")

				trap := proxy.OnCommit(action)
				err := commit(t.Context(), conn)
				var refused *pgconn.PgError
				if err == nil || errors.As(err, &refused) {
					t.Fatalf("action %d: the error of the commit is %v, want a lost connection", action, err)
				}
				<-trap.Fired()
				if action == CutAfter { // it does not wait for the server
					AwaitSQL(t, db, "select count(*) = 1 from x")
				}
				if n := One[int](t, db, "select count(*) from x"); n != rows {
					t.Fatalf("action %d: %d rows committed, want %d", action, n, rows)
				}
				if action == Late {
					trap.Release()
					AwaitSQL(t, db, "select count(*) = 1 from x")
				}
				if err := commit(t.Context(), connect(t, proxy.URL())); err != nil {
					t.Fatalf("the trap fired twice: %v", err)
				}
			})
		}
	}
}

func TestProxySkip(t *testing.T) {
	t.Parallel()
	proxy := NewProxy(t, New(t).URL)
	conn := connect(t, proxy.URL())
	trap := proxy.On(func(sql string) bool { return sql == "select $1::int" }, 2, DropReply)
	for i := range 2 {
		if _, err := conn.Exec(t.Context(), "select $1::int", i); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(t.Context(), "select $1::int", 3); err == nil {
		t.Fatal("the third statement succeeded")
	}
	<-trap.Fired()
}

// TestProxyWatch: watch sees each statement with its transaction. Statements that are pipelined without a BEGIN are
// executed all or none, wherever a trap fires.
func TestProxyWatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begin  bool
		at     string
		action Action
		rows   int
		open   int // statements before it in the transaction; -1: none is open
	}{
		"before the first":  {false, "insert into x values (1)", CutBefore, 0, -1},
		"after the first":   {false, "insert into x values (1)", DropReply, 0, -1},
		"before the second": {false, "insert into x values (2)", CutBefore, 0, -1},
		"after the second":  {false, "insert into x values (2)", DropReply, 2, -1},
		"after, within":     {true, "insert into x values (2)", DropReply, 0, 1},
		"before the COMMIT": {true, "commit", CutBefore, 0, 2},
		"after the COMMIT":  {true, "commit", DropReply, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := New(t)
			db.Exec(t, "create table x (i int)")
			proxy := NewProxy(t, db.URL)
			done := make(chan bool, 1)
			proxy.Watch(func(s Passing) *Trap {
				if s.SQL != c.at {
					return nil
				}
				if s.Open != (c.open >= 0) || s.Open && len(s.Transaction) != c.open {
					t.Errorf("%+v, want %d statements before it", s, c.open)
				}
				return NewTrap(c.action, func(ok bool) { done <- ok })
			})
			var b pgx.Batch
			if c.begin {
				b.Queue("begin")
			}
			b.Queue("insert into x values (1)")
			b.Queue("insert into x values (2)")
			if c.begin {
				b.Queue("commit")
			}
			if err := connect(t, proxy.URL()).SendBatch(t.Context(), &b).Close(); err == nil {
				t.Error("the connection is not cut")
			}
			if !<-done {
				t.Error("done is false")
			}
			AwaitSQL(t, db, "select count(*) = 0 from pg_stat_activity where datname = current_database() and pid <> "+
				"pg_backend_pid() and state <> 'idle'")
			if n := One[int](t, db, "select count(*) from x"); n != c.rows {
				t.Errorf("%d rows, want %d", n, c.rows)
			}
		})
	}
}

// TestProxyRefused: done is false if the server has rejected the statement.
func TestProxyRefused(t *testing.T) {
	t.Parallel()
	proxy := NewProxy(t, New(t).URL)
	done := make(chan bool, 1)
	proxy.Watch(func(s Passing) *Trap {
		if s.SQL != "select 1 / $1::int" {
			return nil
		}
		return NewTrap(DropReply, func(ok bool) { done <- ok })
	})
	if _, err := connect(t, proxy.URL()).Exec(t.Context(), "select 1 / $1::int", 0); err == nil {
		t.Error("the connection is not cut")
	}
	if <-done {
		t.Error("done is true for a rejected statement")
	}
}

// TestProxyAfterError: the server does not answer messages after an error, up to the next Sync.
func TestProxyAfterError(t *testing.T) {
	t.Parallel()
	proxy := NewProxy(t, New(t).URL)
	did := make(chan bool, 1)
	trap := NewTrap(DropReply, func(ok bool) { did <- ok })
	proxy.Watch(func(s Passing) *Trap {
		if s.SQL == "-- x: after error\nselect 1" {
			return trap
		}
		return nil
	})
	p := connect(t, proxy.URL()).PgConn().StartPipeline(t.Context())
	p.SendQueryParams("select 1/0", nil, nil, nil, nil)
	p.SendFlushRequest()
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	r, err := p.GetResults()
	if err == nil {
		_, err = r.(*pgconn.ResultReader).Close()
	}
	if err == nil {
		t.Fatal("a division by zero succeeded")
	}
	p.SendQueryParams("-- x: after error\nselect 1", nil, nil, nil, nil)
	p.SendQueryParams("select 2", nil, nil, nil, nil)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	select {
	case ok := <-did:
		if ok {
			t.Error("a statement after an error was executed")
		}
	case <-time.After(time.Minute):
		t.Fatal("the proxy waits for a reply that never comes")
	}
}

// TestProxyWithdraw: a withdrawn trap does not fire, and a trap that has fired cannot be withdrawn.
func TestProxyWithdraw(t *testing.T) {
	t.Parallel()
	proxy := NewProxy(t, New(t).URL)
	conn := connect(t, proxy.URL())
	first, second := proxy.OnCommit(CutBefore), proxy.OnCommit(CutBefore)
	if !proxy.Withdraw(first) || proxy.Withdraw(first) {
		t.Error("a trap that has not fired can be withdrawn once")
	}
	if _, err := conn.Exec(t.Context(), "begin; commit"); err == nil {
		t.Error("the second trap was withdrawn as well")
	}
	<-second.Fired()
	if proxy.Withdraw(second) {
		t.Error("a trap that has fired was withdrawn")
	}
}

func TestProxyPauseRefuseCut(t *testing.T) {
	t.Parallel()
	proxy := NewProxy(t, New(t).URL)
	conn := connect(t, proxy.URL())
	proxy.Pause()
	answer := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "select 1")
		answer <- err
	}()
	select {
	case err := <-answer:
		t.Fatalf("a paused proxy answered: %v", err)
	case <-time.After(50 * time.Millisecond): // there is no signal for "no answer"
	}
	proxy.Resume()
	if err := <-answer; err != nil {
		t.Fatal(err)
	}
	proxy.Refuse(true)
	if _, err := pgx.Connect(t.Context(), proxy.URL()); err == nil {
		t.Fatal("a refusing proxy accepted a connection")
	}
	if _, err := conn.Exec(t.Context(), "select 1"); err != nil {
		t.Fatalf("Refuse broke an open connection: %v", err)
	}
	proxy.Refuse(false)
	proxy.CutAll()
	if _, err := conn.Exec(t.Context(), "select 1"); err == nil {
		t.Fatal("a cut connection works")
	}
	connect(t, proxy.URL())
}

func TestIsCommit(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"commit": true, "COMMIT": true, "end": true, "begin; select 1; commit;": true, "-- relay: claim\ncommit": true,
		"commit and chain": true, "commit\n": true, "commit prepared 'x'": true,
		"select 'commit'": false, "insert into commits values (1)": false, "": false, "rollback": false,
	} {
		if got := IsCommit(sql); got != want {
			t.Errorf("IsCommit(%q) = %v", sql, got)
		}
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
