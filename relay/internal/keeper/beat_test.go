package keeper_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/keeper"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/signal"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

// lostAt is a connection that is lost when the answer to a statement is read.
type lostAt string

// SendBatch implements pg.Conn.
func (c lostAt) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	return &answers{b: b, lostAt: string(c)}
}

// IsClosed implements pg.Conn.
func (lostAt) IsClosed() bool { return false }

// Close implements pg.Conn.
func (lostAt) Close(context.Context) error { return nil }

type answers struct {
	pgx.BatchResults
	b      *pgx.Batch
	lostAt string
	err    error
}

// Close implements pgx.BatchResults.
func (a *answers) Close() error {
	for _, q := range a.b.QueuedQueries {
		if strings.Contains(q.SQL, a.lostAt) {
			a.err = io.ErrUnexpectedEOF
		}
		if q.Fn == nil {
			continue
		}
		if err := q.Fn(a); err != nil {
			return err
		}
	}
	return a.err
}

// QueryRow implements pgx.BatchResults.
func (a *answers) QueryRow() pgx.Row { return row{a.err} }

// Query implements pgx.BatchResults.
func (a *answers) Query() (pgx.Rows, error) { return none{err: a.err}, a.err }

type row struct{ err error }

// Scan implements pgx.Row.
func (r row) Scan(...any) error { return r.err }

type none struct {
	pgx.Rows
	err error
}

// Next implements pgx.Rows.
func (none) Next() bool { return false }

// Close implements pgx.Rows.
func (none) Close() {}

// Err implements pgx.Rows.
func (n none) Err() error { return n.err }

// CommandTag implements pgx.Rows.
func (none) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// TestClockOutlivesALostHeartbeat: what a lost connection did not say is no time.
func TestClockOutlivesALostHeartbeat(t *testing.T) {
	t.Parallel()
	schema, err := sql.For("")
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	k := &keeper.Keeper{Part: &wal.Part{}, Start: &start.Start{
		Schema: schema, Lease: time.Hour, Log: quiet, Lanes: lanes.New(lanes.Pumps), Signals: signal.New(0),
		Health:   delivery.NewHealth(-1, time.Now(), func() delivery.Pauses { return outage.NewBackOff() }),
		Postgres: &outage.Monitor{Log: quiet}, Kafka: &outage.Monitor{Log: quiet},
	}}
	there := time.Now().Add(48 * time.Hour)
	k.Clock.Set(there)
	s := &pg.Session{Timeout: time.Hour}
	s.Dial = func(context.Context, string, func(*pgconn.Notice)) (pg.Conn, error) {
		return lostAt("relay: join"), nil
	}
	if err := k.Beat(t.Context(), s); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("a heartbeat over a lost connection returns %v", err)
	}
	if now, known := k.Clock.Now(); !known || now.Before(there) {
		t.Errorf("after a lost heartbeat the database's clock shows %v, and showed %v before", now, there)
	}
}
