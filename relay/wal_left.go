package relay

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

// walLooker looks for events that stand in the table although the WAL has passed them: of lanes that the follower
// publishes nobody else would ever send them. It cannot happen while the publication stays as it was made. Postgres
// tells nobody of rows that were inserted while it was another. A look reads every dead row of its lanes, so the
// follower does not wait for it.
type walLooker struct {
	r     *Relay
	ask   chan laneKeys
	told  chan walLook
	ended chan struct{}

	// Of the follower: the last look, and when the next one is due. Asked: one is under way.
	last  walLook
	next  time.Time
	asked bool
}

// walLook is what was seen. Everything in it was committed before the place until.
type walLook struct {
	published bool            // the publication is right
	first     map[int16]int64 // the first event of each lane that has any
	fences    map[int16]int64
	until     uint64
	failed    bool
}

func newWALLooker(r *Relay) walLooker {
	return walLooker{r: r, ask: make(chan laneKeys, 1), told: make(chan walLook, 1), ended: make(chan struct{})}
}

// run looks when it is asked, until ctx ends.
func (l *walLooker) run(ctx context.Context) {
	defer close(l.ended)
	s := l.r.session("wal look")
	s.Reopened = nil // nothing that is known depends on this connection
	defer s.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case set := <-l.ask:
			l.told <- l.look(ctx, s, set)
		}
	}
}

func (l *walLooker) look(ctx context.Context, s *session, set laneKeys) walLook {
	k := walLook{first: map[int16]int64{}, fences: map[int16]int64{}}
	for i, lane := range set.lanes {
		k.fences[lane] = set.fences[i]
	}
	q := l.r.sql
	err := s.Send(ctx, pg.Transaction(l.r.cfg.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(q(sql.WALPublished)).QueryRow(func(row pgx.Row) error { return row.Scan(&k.published) })
		b.Queue(q(sql.WALLeft), notNil(set.lanes)).Query(func(rows pgx.Rows) error {
			var lane int16
			var id int64
			_, err := pgx.ForEachRow(rows, []any{&lane, &id}, func() error { k.first[lane] = id; return nil })
			return err
		})
		b.Queue(q(sql.WALUpTo)).QueryRow(func(row pgx.Row) error { return row.Scan(&k.until) })
	}))
	if k.failed = err != nil; k.failed && ctx.Err() == nil {
		l.r.log.Warn("a look for events that the WAL has passed failed: looking again later", "error", err)
	}
	return k
}

// leftBehind has somebody look when all that was seen the last time must be gone, and sees to what is still there. It
// fails when the publication is not right any more.
func (f *follower) leftBehind(work context.Context) error {
	r, l := f.r, &f.looker
	if !l.asked {
		if r.cfg.RescanEvery < 0 || time.Now().Before(l.next) || f.reader.Confirmed() < l.last.until {
			return nil
		}
		l.ask <- f.lanesThat(func(*streamedLane) bool { return true })
		l.asked = true
		return nil
	}
	var now walLook
	select {
	case now = <-l.told:
	default:
		return nil
	}
	before := l.last
	l.last, l.asked, l.next = now, false, time.Now().Add(r.cfg.RescanEvery)
	switch {
	case now.failed:
		l.last = walLook{}
		return nil
	case !now.published:
		return &wal.UnusableError{Why: "the publication " + f.slot + " was changed: run `relay wal setup` as the " +
			"owner of the tables"}
	}
	var which [Lanes]bool
	var lanes []int16
	for lane, id := range now.first {
		fence := f.mine[lane].fence
		if was, there := before.first[lane]; there && was == id && before.fences[lane] == fence &&
			now.fences[lane] == fence {
			which[lane], lanes = true, append(lanes, lane)
		}
	}
	if len(lanes) == 0 {
		return nil
	}
	slices.Sort(lanes)
	r.log.Error("events stand in the table that the WAL has passed: they are published from there now, perhaps out "+
		"of order, and under a new numbering; "+
		"either the publication was changed for a while, or this is a bug: report it", "lanes", lanes, "publication",
		f.slot)
	for _, lane := range lanes {
		if r.cfg.Observer.BelowFloor != nil {
			r.cfg.Observer.BelowFloor(lane)
		}
	}
	l.last = walLook{}
	return f.aside(work, which, true, &wal.Deletion{})
}
