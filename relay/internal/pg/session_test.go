package pg_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
)

// TestFailedDialAfterLongSession: an error of a connection that an outage has killed, noticed late, is no new outage. A
// refused connection is one, however old the session's last connection was.
func TestFailedDialAfterLongSession(t *testing.T) {
	t.Parallel()
	told := 0
	o := &outage.Monitor{System: "postgres", Log: slog.New(slog.DiscardHandler), Notify: func(_ string, err error) {
		if err != nil {
			told++
		}
	}}
	away := errors.New("connection refused")
	var refused error
	dial := func(context.Context, string, func(*pgconn.Notice)) (pg.Conn, error) { return deadConn{}, refused }
	idle := &pg.Session{Name: "idle", Timeout: time.Minute, Dial: dial}
	next := &pg.Session{Name: "next", Timeout: time.Minute, Dial: dial}
	if err := errors.Join(idle.Open(t.Context()), next.Open(t.Context())); err != nil {
		t.Fatal(err)
	}
	refused = away
	o.Report("busy", away, time.Now())
	o.Report("busy", nil, time.Now())
	if o.Report(idle.Name, errors.New("conn closed"), idle.Heard()); told != 1 {
		t.Errorf("the connection that died in the outage is reported as another outage: %d", told)
	}
	err := next.Open(t.Context())
	if o.Report(next.Name, err, next.Heard()); told != 2 {
		t.Errorf("a server that refuses connections is not reported: %v, %d", err, told)
	}
}

// TestDialRefusedInAnOutage: a connection that an outage has refused, noticed after its end, is no new outage.
func TestDialRefusedInAnOutage(t *testing.T) {
	t.Parallel()
	told := 0
	o := &outage.Monitor{System: "postgres", Log: slog.New(slog.DiscardHandler), Notify: func(_ string, err error) {
		if err != nil {
			told++
		}
	}}
	away := errors.New("connection refused")
	s := &pg.Session{Name: "slow", Timeout: time.Minute}
	s.Dial = func(context.Context, string, func(*pgconn.Notice)) (pg.Conn, error) {
		o.Report("busy", nil, time.Now())
		return nil, away
	}
	o.Report("busy", away, time.Now())
	err := s.Open(t.Context())
	if o.Report(s.Name, err, s.Heard()); told != 1 || !errors.Is(err, away) {
		t.Errorf("a connection that was refused in the outage is reported as another outage: %v, %d", err, told)
	}
}

// deadConn is a closed connection.
type deadConn struct{}

// SendBatch implements pg.Conn.
func (deadConn) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults { return nil }

// IsClosed implements pg.Conn.
func (deadConn) IsClosed() bool { return true }

// Close implements pg.Conn.
func (deadConn) Close(context.Context) error { return nil }
