// Package pg sends the relay's statements: sessions, pipelines, transactions with their commit modes, and arrays as
// parameters.
package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Session is a connection of the relay's own, reopened after it is lost. The relay does not borrow from the given pool:
// it must see warnings, which are delivered to a connection's config, and a busy application must not starve its lease.
// A session belongs to one goroutine.
type Session struct {
	Dial    Dial
	Name    string        // application_name, for pg_stat_activity
	Timeout time.Duration // bounds every pipeline, so that a half-open connection fails
	// Reopened, unless nil, is called when a lost connection was replaced, perhaps by one to another server. A
	// connection that the session closed itself, because a statement was refused or timed out, was not lost.
	Reopened func()

	conn    Conn
	lost    bool           // the connection was lost, and not closed here
	warning *pgconn.Notice // of the COMMIT that is under way, and once it has returned of that one
	heard   time.Time
}

// Heard returns the time when the server last answered, or when an attempt to connect to it began that failed.
func (s *Session) Heard() time.Time { return s.heard }

// Open connects unless there is a connection.
func (s *Session) Open(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	s.heard = time.Now()
	conn, err := s.Dial(ctx, s.Name, func(n *pgconn.Notice) { s.warning = n })
	if err != nil {
		return err
	}
	s.heard = time.Now()
	if s.lost && s.Reopened != nil {
		s.Reopened()
	}
	s.conn, s.lost = conn, true
	return nil
}

// Close ends the connection. The next Open or Send makes another.
func (s *Session) Close() {
	if s.conn == nil {
		return
	}
	HangUp(s.conn)
	s.conn = nil
}

// Send runs a batch in one round trip. After any error the connection is closed, and with it an open transaction;
// CommitUnknown tells whether the batch's COMMIT may have happened.
func (s *Session) Send(ctx context.Context, b *pgx.Batch) error {
	if err := s.Open(ctx); err != nil {
		return err
	}
	return s.Continue(ctx, b)
}

// Continue is Send on the existing connection: for the second half of a transaction.
func (s *Session) Continue(ctx context.Context, b *pgx.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	s.warning = nil
	s.untilCommit(b)
	err := s.conn.SendBatch(ctx, b).Close()
	if n := s.warning; err == nil && n != nil && endsInCommit(b) {
		err = fmt.Errorf("%w: %s (SQLSTATE %s, %s)", errWarned, n.Message, n.Code, n.Routine)
	}
	if err != nil {
		s.lost = !closedHere(err)
		s.Close()
		return err
	}
	s.heard = time.Now()
	return nil
}

// untilCommit makes the batch forget the warnings of the statements before its COMMIT: they say nothing about it, and
// each statement that draws a transaction id has one when the database must be vacuumed soon.
func (s *Session) untilCommit(b *pgx.Batch) {
	n := len(b.QueuedQueries)
	if n < 2 || !endsInCommit(b) {
		return
	}
	last := b.QueuedQueries[n-2]
	read := last.Fn
	last.Fn = func(br pgx.BatchResults) (err error) {
		if read != nil {
			err = read(br)
		} else {
			_, err = br.Exec()
		}
		s.warning = nil
		return err
	}
}

func endsInCommit(b *pgx.Batch) bool {
	n := len(b.QueuedQueries)
	return n > 0 && b.QueuedQueries[n-1].SQL == sql.Commit
}

// Transaction sends a transaction that may take the session's Timeout.
func (s *Session) Transaction(ctx context.Context, mode string, queue func(b *pgx.Batch)) error {
	return s.Send(ctx, Transaction(s.Timeout, mode, queue))
}

// closedHere reports whether the statement failed, or the session's timeout ended it, but the connection was not lost.
func closedHere(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.SeverityUnlocalized == "ERROR" || errors.Is(err, context.DeadlineExceeded)
}

// errWarned: the commit returned, but Postgres warned about it. "Canceling wait for synchronous replication" is such a
// warning: the commit is visible and may still be lost, so nothing that it covers may be published. Its text depends on
// the server's language, hence any warning of a COMMIT counts.
var errWarned = errors.New("relay: Postgres warned about a COMMIT, so what it has committed may be lost")

// CommitUnknown reports whether a transaction that failed with err may have been committed, or be committed yet.
func CommitUnknown(err error) bool { return errors.Is(err, errWarned) || pgerr.CommitUnknown(err) }

// Commit modes: what a COMMIT waits for, as values of synchronous_commit.
const (
	// Standby waits for the disk and, if configured, for the synchronous standby: events are published after it.
	Standby = "on"
	// Disk is for leases: they must survive a crash of this server, and must not stop with a standby. A failover that
	// loses a take-over is another timeline, which starts a new incarnation.
	Disk = "local"
	// Async is for settles: a claim whose settle is lost in a crash has an unknown outcome, and is sent again.
	Async = "off"
)

// Transaction wraps queued statements in begin, settings and commit.
func Transaction(timeout time.Duration, mode string, queue func(b *pgx.Batch)) *pgx.Batch {
	b := Begin(timeout, mode, queue)
	b.Queue(sql.Commit)
	return b
}

// Begin is the first part of a transaction that another pipeline ends.
func Begin(timeout time.Duration, mode string, queue func(b *pgx.Batch)) *pgx.Batch {
	var b pgx.Batch
	b.Queue(sql.Begin)
	b.Queue(sql.Settings, mode, milliseconds(timeout), milliseconds(timeout/3))
	queue(&b)
	return &b
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// Error is an error of the outbox's database, among the verdicts of a publisher.
type Error struct {
	What string
	Err  error
}

// Error returns what failed, and why.
func (e *Error) Error() string { return e.What + ": " + e.Err.Error() }

// Unwrap returns why.
func (e *Error) Unwrap() error { return e.Err }
