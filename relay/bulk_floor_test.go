package relay

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/signal"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// refusing is a connection that keeps the statements that it is sent, and refuses them.
type refusing struct{ sent *[]*pgx.QueuedQuery }

// SendBatch implements pg.Conn.
func (c refusing) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	*c.sent = append(*c.sent, b.QueuedQueries...)
	return refused{}
}

// IsClosed implements pg.Conn.
func (refusing) IsClosed() bool { return false }

// Close implements pg.Conn.
func (refusing) Close(context.Context) error { return nil }

type refused struct{ pgx.BatchResults }

// Close implements pgx.BatchResults.
func (refused) Close() error { return &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "XX000"} }

// claimed returns the lanes of each statement of a claim of these lanes, after floors fell so often.
func claimed(t *testing.T, events, falls int, owned map[int16]*laneState) (of map[string][]int16) {
	t.Helper()
	schema, err := sql.For("")
	if err != nil {
		t.Fatal(err)
	}
	table := (&laneTable{owned: owned, far: 1 << 18, falls: falls}).table()
	for _, l := range owned {
		l.fence, l.deadline, l.ready = 1, time.Now().Add(time.Hour), true
	}
	c := cycle.Cycle{Start: &start.Start{
		Lanes: table, Schema: schema, Signals: signal.New(1), Log: slog.New(slog.DiscardHandler), Lease: time.Hour,
		Health: &delivery.Health{},
	}, MostEvents: events, MostBytes: 16 << 20}
	var sent []*pgx.QueuedQuery
	s := &pg.Session{Timeout: time.Hour}
	s.Dial = func(context.Context, string, func(*pgconn.Notice)) (pg.Conn, error) { return refusing{&sent}, nil }
	if _, err := c.ClaimLanes(t.Context(), &cycle.Session{Session: s}, table.Take(0, 1, time.Now())); err == nil {
		t.Fatal("a refused claim succeeds")
	}
	of = map[string][]int16{}
	for _, q := range sent {
		if len(q.Arguments) > 0 {
			if lanes, ok := q.Arguments[0].([]int16); ok {
				of[q.SQL] = slices.Sorted(slices.Values(lanes))
			}
		}
	}
	return map[string][]int16{
		"take": of[schema.Expand(sql.Take)], "read": of[schema.Expand(sql.Read)],
		"reserve": of[schema.Expand(sql.Reserve)],
	}
}

// TestP3BulkNeedsAFloor: until fallen floors are found again, lanes with a backlog are claimed one by one.
func TestP3BulkNeedsAFloor(t *testing.T) {
	t.Parallel()
	much := func(reach int64) *laneState {
		pace := lanes.Pace{Last: 1000, Size: 600, Gap: 2}
		return &laneState{next: 1, end: 1 << 20, bulk: true, reach: reach, pace: pace}
	}
	if got := claimed(t, 8000, 0, map[int16]*laneState{1: much(0)}); !slices.Equal(got["read"], []int16{1}) {
		t.Errorf("before floors fell, lanes %v are read in bulk, want 1", got["read"])
	}
	got := claimed(t, 8000, 1, map[int16]*laneState{2: much(0), 3: much(900)})
	if !slices.Equal(got["take"], []int16{2}) {
		t.Errorf("lanes %v are claimed one by one, want 2", got["take"])
	}
	if !slices.Equal(got["read"], []int16{3}) {
		t.Errorf("lanes %v are read in bulk, want 3", got["read"])
	}
}

// TestP3_2_ClaimFitsIntoBlock: a lane whose block has fewer numbers left than a claim may use reserves another block.
func TestP3_2_ClaimFitsIntoBlock(t *testing.T) {
	t.Parallel()
	got := claimed(t, 60, 0, map[int16]*laneState{
		1: {next: 1, end: 20}, 2: {next: 2, end: 20}, 3: {next: 21, end: 20},
	})
	if !slices.Equal(got["reserve"], []int16{2, 3}) {
		t.Errorf("lanes %v begin another block of 20 numbers, want 2 and 3", got["reserve"])
	}
}
