package prober

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/relay/internal/cycle"
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

// backlog is a server where lane 1 has many due events. A move of some takes a second.
type backlog struct{ asked, moved int }

// SendBatch implements pg.Conn.
func (c *backlog) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	return &answers{c: c, b: b}
}

// IsClosed implements pg.Conn.
func (*backlog) IsClosed() bool { return false }

// Close implements pg.Conn.
func (*backlog) Close(context.Context) error { return nil }

type answers struct {
	pgx.BatchResults
	c    *backlog
	b    *pgx.Batch
	rows int
}

// Close implements pgx.BatchResults.
func (a *answers) Close() error {
	for _, q := range a.b.QueuedQueries {
		switch a.rows = 0; {
		case strings.Contains(q.SQL, "relay: due"):
			a.c.asked++
			a.rows = 1
		case strings.Contains(q.SQL, "relay: move due"):
			<-time.After(time.Second)
			a.c.moved++
			a.rows = 1
		}
		if q.Fn != nil {
			if err := q.Fn(a); err != nil {
				return err
			}
		}
	}
	return nil
}

// QueryRow implements pgx.BatchResults.
func (*answers) QueryRow() pgx.Row { return nothing{} }

// Query implements pgx.BatchResults.
func (a *answers) Query() (pgx.Rows, error) { return &laneOne{left: a.rows}, nil }

type nothing struct{}

// Scan implements pgx.Row.
func (nothing) Scan(...any) error { return nil }

// laneOne are rows of lane 1, with a number.
type laneOne struct {
	pgx.Rows
	left int
}

// Next implements pgx.Rows.
func (r *laneOne) Next() bool { r.left--; return r.left >= 0 }

// Scan implements pgx.Rows.
func (*laneOne) Scan(to ...any) error {
	*to[0].(*int16) = 1
	if len(to) > 1 {
		*to[1].(*int64) = 8000
	}
	return nil
}

// Close implements pgx.Rows.
func (*laneOne) Close() {}

// Err implements pgx.Rows.
func (*laneOne) Err() error { return nil }

// CommandTag implements pgx.Rows.
func (*laneOne) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// TestP8MoreIsDue: in a lane that is read from the WAL, more events than one move takes are moved without a pause.
func TestP8MoreIsDue(t *testing.T) {
	t.Parallel()
	schema, err := sql.For("")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		quiet, table := slog.New(slog.DiscardHandler), lanes.New(lanes.WAL)
		table.Leased(map[int16]int64{1: 1}, time.Now().Add(time.Hour))
		s := &start.Start{
			Schema: schema, Lease: time.Hour, Log: quiet, Lanes: table, Signals: signal.New(0),
			Health: delivery.NewHealth(-1, time.Now(), func() delivery.Pauses { return outage.NewBackOff() }),
		}
		p := &Prober{
			Start: s, Cycle: &cycle.Cycle{Start: s, MostEvents: 8000, MostBytes: 1 << 20}, Part: &wal.Part{},
			Keeper: &keeper.Keeper{Start: s},
		}
		server := &backlog{}
		session := &pg.Session{Timeout: time.Hour}
		session.Dial = func(context.Context, string, func(*pgconn.Notice)) (pg.Conn, error) { return server, nil }
		for range 3 {
			if _, err := p.Probe(t.Context(), session, nil, nil, ""); err != nil {
				t.Fatal(err)
			}
			if len(s.Signals.Probes) == 0 {
				t.Error("the prober does not probe again after a move")
			}
		}
		if server.asked != 3 || server.moved != 3 {
			t.Errorf("three probes asked %d times for due events, and moved some %d times", server.asked, server.moved)
		}
	})
}
