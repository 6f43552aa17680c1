package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/relay/internal/sql"
)

// errBarrier: the commit returned, but Postgres warned about it. "Canceling wait for synchronous replication" is such a
// warning: the commit is visible and may still be lost, so nothing that it covers may be published. Its text depends on
// the server's language, hence any warning counts.
var errBarrier = errors.New("relay: Postgres warned about a commit (a cancelled wait for synchronous replication?)")

// session is one connection of the relay's own. The relay does not borrow from the pool that it is given: it must see
// warnings, which are delivered to a connection's config, and a busy application must not starve its lease.
// A session belongs to one goroutine.
type session struct {
	pool    *pgxpool.Pool // for its configuration
	name    string        // application_name, for pg_stat_activity
	timeout time.Duration // bounds every pipeline, so that a half-open connection fails
	conn    connection
	connect func(ctx context.Context) (connection, error) // nil: dial
	opened  bool                                          // a connection was, once
	// when the server last answered, or an attempt to connect to it failed
	heard time.Time
	// reopened is called when a lost connection was replaced, perhaps by one to another server. One that was closed
	// here, because a statement was refused or took too long, was not lost.
	reopened func()
	lost     bool
	warned   bool
	room     room // the last claim's slices, for the next one
	spare    room
}

// connection is what a session needs of a *pgx.Conn.
type connection interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	IsClosed() bool
	Close(ctx context.Context) error
}

func (s *session) open(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	connect := s.connect
	if connect == nil {
		connect = s.dial
	}
	conn, err := connect(ctx)
	s.heard = time.Now()
	if err != nil {
		return err
	}
	if s.opened && s.reopened != nil && s.lost {
		s.reopened()
	}
	s.conn, s.opened, s.lost = conn, true, true
	return nil
}

// dial connects as the pool would.
func (s *session) dial(ctx context.Context) (connection, error) {
	pool := s.pool.Config()
	cfg := pool.ConnConfig
	cfg.RuntimeParams["application_name"] = s.name
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" {
			s.warned = true
		}
	}
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, cfg); err != nil {
			return nil, fmt.Errorf("relay: BeforeConnect: %w", err)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("relay: connecting to Postgres: %w", err)
	}
	if pool.AfterConnect != nil {
		if err := pool.AfterConnect(ctx, conn); err != nil {
			hangUp(conn)
			return nil, fmt.Errorf("relay: AfterConnect: %w", err)
		}
	}
	return conn, nil
}

func (s *session) close() {
	if s.conn == nil {
		return
	}
	hangUp(s.conn)
	s.conn = nil
}

func hangUp(conn connection) {
	// A context of its own: a session is often closed because its context has ended.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// send runs a batch in one round trip. After any error the connection is gone, and with it a transaction that was left
// open; whether the batch's COMMIT happened is then for pgerr.CommitUnknown to say.
func (s *session) send(ctx context.Context, b *pgx.Batch) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	return s.pipeline(ctx, b)
}

// pipeline is send on the connection that there is: for the second half of a transaction.
func (s *session) pipeline(ctx context.Context, b *pgx.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	s.warned = false
	err := s.conn.SendBatch(ctx, b).Close()
	if err == nil && s.warned {
		err = errBarrier
	}
	if err != nil {
		s.lost = !closedHere(err)
		s.close()
		return err
	}
	s.heard = time.Now()
	return nil
}

// closedHere: it was the statement that failed, or our own patience that ended, and not the connection.
func closedHere(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.SeverityUnlocalized == "ERROR" || errors.Is(err, context.DeadlineExceeded)
}

// What a commit waits for, as values of synchronous_commit.
const (
	// toStandby: the disk and, where it is configured, the synchronous standby. What is published stands behind it.
	toStandby = "on"
	// toDisk is for leases: they must survive a crash here, and must not stop with a standby. A failover that loses a
	// take-over is another timeline, which starts a new incarnation.
	toDisk = "local"
	// toNothing is for settles: one that a crash takes back is a claim whose outcome is unknown, and is sent again.
	toNothing = "off"
)

// transaction wraps queued statements in begin, settings and commit.
func transaction(timeout time.Duration, commit string, queue func(b *pgx.Batch)) *pgx.Batch {
	b := begin(timeout, commit, queue)
	b.Queue(sql.Commit)
	return b
}

// begin is a transaction that another pipeline ends.
func begin(timeout time.Duration, commit string, queue func(b *pgx.Batch)) *pgx.Batch {
	var b pgx.Batch
	b.Queue(sql.Begin)
	b.Queue(sql.Settings, commit, milliseconds(timeout), milliseconds(timeout/3))
	queue(&b)
	return &b
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }
