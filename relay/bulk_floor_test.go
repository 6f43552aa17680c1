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

// claimed returns the lanes of each statement of a claim of these lanes, after floors fell so often, while all ids up
// to limit are decided; and the id up to which it reads in bulk.
func claimed(t *testing.T, events, falls int, limit int64, owned map[int16]*laneState) (of map[string][]int16,
	highest int64,
) {
	t.Helper()
	schema, err := sql.For("")
	if err != nil {
		t.Fatal(err)
	}
	table := (&laneTable{owned: owned, far: 1 << 18, falls: falls, limit: limit}).table()
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
		if q.SQL == schema.Expand(sql.Read) {
			highest = q.Arguments[4].(int64)
		}
		if len(q.Arguments) > 0 {
			if lanes, ok := q.Arguments[0].([]int16); ok {
				of[q.SQL] = slices.Sorted(slices.Values(lanes))
			}
		}
	}
	return map[string][]int16{
		"take": of[schema.Expand(sql.Take)], "read": of[schema.Expand(sql.Read)],
		"reserve": of[schema.Expand(sql.Reserve)],
	}, highest
}

// TestP3BulkNeedsAFloor: lanes far above their floors, which have fallen or stand still, are claimed one by one. While
// a floor rises through a large backlog, its lanes are read in bulk, and not far above it.
func TestP3BulkNeedsAFloor(t *testing.T) {
	t.Parallel()
	much := func(reach, last int64) *laneState {
		pace := lanes.Pace{Last: last, Size: 600, Gap: 2}
		return &laneState{next: 1, end: 1 << 20, bulk: true, reach: reach, pace: pace}
	}
	const far = 1 << 18
	for what, c := range map[string]struct {
		falls          int
		limit, highest int64
		owned          map[int16]*laneState
		take, read     []int16
	}{
		"before floors fell": {0, 0, 1000 + 2*8000, map[int16]*laneState{1: much(0, 1000)}, nil, []int16{1}},
		"a floor is found again": {
			1, 0, far + 1000 + 2*4000,
			map[int16]*laneState{2: much(0, far+1000), 3: much(far, far+1000)},
			[]int16{2},
			[]int16{3},
		},
		"there are no floors":  {0, 0, 0, map[int16]*laneState{1: much(0, far+1000)}, []int16{1}, nil},
		"a floor stands still": {1, 0, 0, map[int16]*laneState{1: much(900, far+1000)}, []int16{1}, nil},
		"a large backlog":      {1, 10 * far, 1000 + 2*8000, map[int16]*laneState{1: much(900, 1000)}, nil, []int16{1}},
		"the claims are far above a floor": {
			1, 10 * far, 900 + far, map[int16]*laneState{1: much(900, far)}, nil, []int16{1},
		},
		"the claims are beyond": {1, 10 * far, 0, map[int16]*laneState{1: much(900, 2*far)}, []int16{1}, nil},
	} {
		got, highest := claimed(t, 8000, c.falls, c.limit, c.owned)
		if !slices.Equal(got["take"], c.take) || !slices.Equal(got["read"], c.read) || highest != c.highest {
			t.Errorf("%s: lanes %v are claimed one by one, %v in bulk up to %d; want %v, %v and %d", what, got["take"],
				got["read"], highest, c.take, c.read, c.highest)
		}
	}
}

// TestP3_2_ClaimFitsIntoBlock: a lane whose block has fewer numbers left than a claim may use reserves another block.
func TestP3_2_ClaimFitsIntoBlock(t *testing.T) {
	t.Parallel()
	got, _ := claimed(t, 60, 0, 0, map[int16]*laneState{
		1: {next: 1, end: 20}, 2: {next: 2, end: 20}, 3: {next: 21, end: 20},
	})
	if !slices.Equal(got["reserve"], []int16{2, 3}) {
		t.Errorf("lanes %v begin another block of 20 numbers, want 2 and 3", got["reserve"])
	}
}
