package wal

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// tableScan looks for events that are in the table although the WAL has passed them: in lanes that the follower
// publishes, they would never be sent. They exist only if the publication was changed: Postgres does not report rows
// that it left out. A scan reads every dead row of its lanes, so the follower does not wait for it.
type tableScan struct {
	*Feed
	requests chan sql.Fenced
	results  chan scanResult
	ended    chan struct{}

	// Of the follower: the last scan, and when the next one is due. asked: a scan is running.
	last  scanResult
	next  time.Time
	asked bool
}

// scanResult is the result of a scan. All of it was committed before the position until.
type scanResult struct {
	published bool            // the publication is right
	first     map[int16]int64 // the first event of each lane that has any
	fences    map[int16]int64
	until     uint64
	failed    bool
}

func newTableScan(feed *Feed) tableScan {
	return tableScan{
		Feed: feed, requests: make(chan sql.Fenced, 1), results: make(chan scanResult, 1), ended: make(chan struct{}),
	}
}

// run scans when it is asked, until ctx ends.
func (l *tableScan) run(ctx context.Context) {
	defer close(l.ended)
	s := l.Session("wal scan")
	s.Reopened = nil // the follower's state does not depend on this connection
	defer s.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case set := <-l.requests:
			l.results <- l.scan(ctx, s, set)
		}
	}
}

func (l *tableScan) scan(ctx context.Context, s *pg.Session, set sql.Fenced) scanResult {
	k := scanResult{first: map[int16]int64{}, fences: map[int16]int64{}}
	for i, lane := range set.Lanes {
		k.fences[lane] = set.Fences[i]
	}
	q := l.SQL
	err := s.Transaction(ctx, pg.Async, func(b *pgx.Batch) {
		b.Queue(q(sql.WALPublished)).QueryRow(func(row pgx.Row) error { return row.Scan(&k.published) })
		b.Queue(q(sql.WALLeft), notNil(set.Lanes)).Query(func(rows pgx.Rows) error {
			var lane int16
			var id int64
			_, err := pgx.ForEachRow(rows, []any{&lane, &id}, func() error { k.first[lane] = id; return nil })
			return err
		})
		b.Queue(q(sql.WALUpTo)).QueryRow(func(row pgx.Row) error { return row.Scan(&k.until) })
	})
	if k.failed = err != nil; k.failed && ctx.Err() == nil {
		l.Log.Warn("a scan for events that the WAL has passed failed: scanning again later", "error", err)
	}
	return k
}

// publishLeftover requests a scan once all rows of the last one must be gone, and publishes the rows that are left. It
// fails if the publication is no longer correct.
func (f *follower) publishLeftover(work context.Context) error {
	l := &f.scan
	if !l.asked {
		if f.Rescan < 0 || time.Now().Before(l.next) || f.reader.Confirmed() < l.last.until {
			return nil
		}
		l.requests <- f.lanesThat(func(*streamedLane) bool { return true })
		l.asked = true
		return nil
	}
	var now scanResult
	select {
	case now = <-l.results:
	default:
		return nil
	}
	before := l.last
	l.last, l.asked, l.next = now, false, time.Now().Add(f.Rescan)
	switch {
	case now.failed:
		l.last = scanResult{}
		return nil
	case !now.published:
		return &unusableError{Why: "the publication " + f.slot + " was changed: run `relay wal setup` as the " +
			"owner of the tables"}
	}
	var which [lanes.Count]bool
	var found []int16
	for lane, id := range now.first {
		fence := f.mine[lane].fence
		if was, there := before.first[lane]; there && was == id && before.fences[lane] == fence &&
			now.fences[lane] == fence {
			which[lane], found = true, append(found, lane)
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.Sort(found)
	f.Log.Error("events stand in the table that the WAL has passed: they are published from there now, perhaps out "+
		"of order, and under a new numbering; "+
		"either the publication was changed for a while, or this is a bug: report it", "lanes", found, "publication",
		f.slot)
	for _, lane := range found {
		if f.Observer.BelowFloor != nil {
			f.Observer.BelowFloor(lane)
		}
	}
	l.last = scanResult{}
	return f.aside(work, which, true, &deletion{})
}
