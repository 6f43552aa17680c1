package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// walLeft is a look for events that stand in the table although the WAL has passed them: of lanes that the follower publishes nobody
// else would ever send them. It cannot happen while the publication stays as it was made. Postgres tells nobody of rows that were
// inserted while it was another.
type walLeft struct {
	next   time.Time
	until  uint64          // everything that was seen then was committed before this place
	first  map[int16]int64 // the first event of each lane then; nil: nobody has looked
	fences map[int16]int64
}

// leftBehind looks again when all that was seen the last time must be gone. It fails when the publication is not right any more.
func (f *follower) leftBehind(work context.Context) error {
	r, l := f.r, &f.left
	if r.cfg.RescanEvery < 0 || time.Now().Before(l.next) || l.first != nil && f.reader.confirmed.Load() < l.until {
		return nil
	}
	set := f.lanesThat(func(l *streamedLane) bool { return l.emits != emitsLeaving })
	first, fences, published, until := map[int16]int64{}, map[int16]int64{}, false, uint64(0)
	err := f.s.send(work, transaction(r.cfg.Lease, toNothing, func(b *pgx.Batch) {
		b.Queue(r.q.wal.published).QueryRow(func(row pgx.Row) error { return row.Scan(&published) })
		b.Queue(r.q.wal.left, notNil(set.lanes)).Query(func(rows pgx.Rows) error {
			var lane int16
			var id int64
			_, err := pgx.ForEachRow(rows, []any{&lane, &id}, func() error { first[lane] = id; return nil })
			return err
		})
		b.Queue(r.q.wal.emittedUntil).QueryRow(func(row pgx.Row) error { return row.Scan(&until) })
	}))
	if err != nil {
		return fmt.Errorf("relay: looking for events that the WAL has passed: %w", err)
	}
	if !published {
		return &unusableError{"the publication " + f.slot + " was changed: run `relay wal setup` as the owner of the tables"}
	}
	var which [Lanes]bool
	var lanes []int16
	for i, lane := range set.lanes {
		fences[lane] = set.fences[i]
		if id, still := first[lane]; still && l.first[lane] == id && l.fences[lane] == set.fences[i] {
			which[lane], lanes = true, append(lanes, lane)
		}
	}
	*l = walLeft{next: time.Now().Add(r.cfg.RescanEvery), until: until, first: first, fences: fences}
	if len(lanes) == 0 {
		return nil
	}
	r.log.Error("events stand in the table that the WAL has passed: they are published from there now, perhaps out of order, and under a new numbering; "+
		"either the publication was changed for a while, or this is a bug: report it", "lanes", lanes, "publication", f.slot)
	for _, lane := range lanes {
		if r.cfg.Observer.BelowFloor != nil {
			r.cfg.Observer.BelowFloor(lane)
		}
	}
	l.first = nil
	return f.setAside(work, which, true, &deletion{})
}
