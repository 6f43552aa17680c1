package floors

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

const (
	// A slice of ids is halved if it took longer than a sliceTime, and doubled if it took much less.
	sliceTime             = 200 * time.Millisecond
	firstSlice, lastSlice = 1 << 16, 1 << 20
	// belowShare limits the time that is spent on rescans: one part of so many.
	belowShare = 10
)

// Rescan reads the open entries of lanes that no pump works on: behind a pooler a server may have crashed and undone a
// settle, without the end of any connection of this relay. Such a lane reads its journal again. It also reads below the
// floors, where no row can be, one slice at a time. A row that it finds is published, because the lane begins at zero
// again. It is a bug of the rules, or of a program that writes ids of its own or has set the sequence back.
func (f *Finder) Rescan(ctx context.Context, s *pg.Session) error {
	// A new connection may reset the floors to zero: open it before they are read.
	if err := s.Open(ctx); err != nil {
		return err
	}
	lanes, floors, ids := f.Lanes.FloorsAbove(f.below)
	idle := f.Lanes.Quiet()
	journals, firsts := f.Lanes.Journals()
	f.Deep = cmp.Or(f.Deep, firstSlice)
	from, to := f.below, f.below+int64(f.Deep)
	if len(lanes) == 0 {
		f.below, f.Scanned = 0, time.Now()
	}
	if len(lanes)+len(idle) == 0 {
		return nil
	}
	var open, found []int16
	var now string
	var highest int64
	since := time.Now()
	err := s.Send(ctx, pg.Transaction(f.Lease/3, pg.Async, func(b *pgx.Batch) {
		b.Queue(f.SQL(sql.Unsettled), journals, firsts).Query(pg.ReadLanes(&open))
		b.Queue(f.SQL(sql.Below), lanes, floors, from, to).Query(pg.ReadLanes(&found))
		b.Queue(f.SQL(sql.Highest)).QueryRow(func(row pgx.Row) error { return row.Scan(&now, &highest) })
	}))
	if again, err := f.Deep.fit(since, err, len(lanes) > 0 && to < slices.Max(floors)); err != nil || again {
		return err
	}
	if now != ids { // behind a pooler it is another server: the next step notices it, too
		found = nil
	}
	again := slices.DeleteFunc(slices.Clone(open), func(lane int16) bool { return !slices.Contains(idle, lane) })
	if len(again) > 0 {
		f.Lanes.Reread(again)
		f.Signals.Kick()
	}
	if len(lanes) > 0 {
		f.below, f.nextSlice = to, time.Now().Add((belowShare-1)*time.Since(since))
		if to >= slices.Max(floors) {
			f.below, f.nextSlice, f.Scanned = 0, time.Time{}, time.Now()
		}
	}
	// Rows of an open entry may be there, after a crash has undone its settle. A lane at work finds them by itself.
	found = slices.DeleteFunc(found, func(lane int16) bool { return slices.Contains(open, lane) })
	if len(found) > 0 {
		f.belowFloor(found)
	}
	return nil
}

// belowFloor has rows published that were found below the floors.
func (f *Finder) belowFloor(found []int16) {
	f.Lanes.DropFloors(found)
	f.Signals.Kick()
	f.Log.Error("events stood below the floor of their lanes, where none can be: they are published now, perhaps out "+
		"of order; "+
		"either ids were written by hand or the sequence was set back, or this is a bug: report it", "lanes", found)
	for _, lane := range found {
		if f.Observer.BelowFloor != nil {
			f.Observer.BelowFloor(lane)
		}
	}
}

// SliceSize is the number of ids in a slice.
type SliceSize int64

// fit adapts the next slice to the time of this one, if it was a full one. A slice that took too long is no failure.
func (n *SliceSize) fit(since time.Time, err error, whole bool) (again bool, _ error) {
	was := *n
	switch took := time.Since(since); {
	case err != nil, took > sliceTime:
		*n = max(min(was/2, firstSlice), 1)
	// nothing is there
	case whole && (took < sliceTime/4 && was < lastSlice || took < sliceTime/64 && was < math.MaxInt64/4):
		*n *= 2
	}
	if was > 1 && pgerr.Is(err, pgerr.QueryCanceled) {
		return true, nil
	}
	return false, err
}
