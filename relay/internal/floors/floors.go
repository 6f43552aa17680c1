// Package floors raises the floors of a relay's lanes, and looks for rows below them.
//
// A floor is an id at and below which a lane has no row any more and will never have one. Probes and claims begin above
// it, so that they skip rows which are dead but not yet vacuumed. P6 (docs/protocol.md) has the four steps in which a
// floor rises, and the reason for their order.
//
// A claim whose snapshot is later than step 3 serves as step 4: it takes all rows of its lane up to its last id. Once
// it is settled, the lane has none left up to that id, or up to the highest decided id if that is lower. So a lane's
// floor follows its claims; otherwise each would read the rows that the last ones have deleted.
//
// Floors are an optimisation and live in memory only. Every statement that uses them compares the numbering of ids that
// they belong to with the current one, and reads from zero if they differ: behind a pooler nothing else shows that the
// server has changed.
//
// A producer's open transaction does not stop floors for ever: it is excepted, and floors rise beyond its ids while its
// rows are invisible. Each statement compares the exceptions with its own snapshot, and finds no rows if it shows an
// excepted transaction. Floors then fall to where they would be without the exception.
//
// Dead rows between a floor and the decided ids are read in slices of ids, on a separate session. Claims and probes do
// not read far above a floor that is still rising.
package floors

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// Finder makes steps toward higher floors.
type Finder struct {
	*start.Start
	Every       time.Duration // at least, between two steps
	Awake       time.Duration // between two looks whether a step is due
	IdleAfter   time.Duration // without a rise, looks are as rare as steps
	RescanEvery time.Duration // negative: never
	ExceptFrom  int64         // [ExceptFrom]

	State
}

// State is what a finder knows.
type State struct {
	IDs      string   // the numbering of ids; "": none that allows a floor
	Reached  int64    // every id up to this one is decided, or was drawn by one of Except
	Except   []string // ids of open transactions that are not waited for
	Hi       int64    // the id that is waited for; 0: none
	WaitsFor pg.Holders
	Slice    SliceSize // of the next step 4
	Deep     SliceSize // of a rescan
	Scanned  time.Time // when the last rescan ended

	stepped   time.Time // when the last step was made
	steps     int       // made since the numbering was read
	risen     time.Time // when Reached last rose
	since     time.Time // when Hi was read
	below     int64     // the id that the current rescan has reached
	nextSlice time.Time // when its next slice is due
	lagging   int       // how many lanes had rising floors after the last step
}

const (
	// firstSteps are made without a pause between them, so that a relay that starts with a long backlog has floors at
	// once.
	firstSteps = 3
	// passingShare is the divisor of the pause while lanes with a backlog are past the decided ids, and while
	// transactions are excepted.
	passingShare = 8
	// waitPauses is the number of pauses before a transaction that holds floors back is excepted, one while there are
	// no floors. ExceptFrom is how many ids must have been drawn beyond the floors meanwhile: fewer cost less than an
	// exception.
	waitPauses = 4
	ExceptFrom = 1 << 15
)

// Run makes steps toward higher floors until ctx ends.
func (f *Finder) Run(ctx context.Context) {
	s := f.Session("floors")
	defer s.Close()
	pause := outage.NewBackOff()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait, before := min(f.Awake, f.Every/passingShare), f.stepped
		if time.Since(f.risen) > f.IdleAfter {
			wait = f.Every
		}
		err := f.Step(ctx, s)
		if f.stepped != before {
			f.Postgres.Report(s.Name, err, s.Heard())
		}
		if err != nil {
			wait = pause.NextBackOff()
		} else {
			pause.Reset()
		}
		timer.Reset(wait)
	}
}

// Step runs one step when it is due. Probes leave out lanes whose floors are still rising, and may have missed a
// Wake for one: when the last of them has risen, the prober probes at once.
func (f *Finder) Step(ctx context.Context, s *pg.Session) (err error) {
	before := max(f.lagging, f.Lanes.Lagging())
	defer func() {
		if err != nil {
			f.Lanes.Undecidable()
		}
		if f.lagging = f.Lanes.Lagging(); f.lagging < before {
			f.Signals.Probe()
		}
	}()
	every := f.Every
	if f.Lanes.PastDecided() || len(f.Except) > 0 {
		every /= passingShare
	}
	if f.steps >= firstSteps && time.Since(f.stepped) < every && f.Lanes.Lagging() == 0 {
		return nil
	}
	f.stepped = time.Now()
	f.steps++
	if f.Scanned.IsZero() {
		f.Scanned = f.stepped // every lane was read from zero
	}
	if err := f.decide(ctx, s); err != nil || f.IDs == "" {
		return err
	}
	if err := f.Raise(ctx, s); err != nil {
		return err
	}
	if f.RescanEvery < 0 || time.Since(f.Scanned) < f.RescanEvery || f.stepped.Before(f.nextSlice) {
		return nil
	}
	return f.Rescan(ctx, s)
}

// decide runs one of the steps 1 to 3.
func (f *Finder) decide(ctx context.Context, s *pg.Session) error {
	var ids string
	var highest int64
	var now pg.Holders
	ended := map[string]bool{} // true: it may have committed
	err := s.Send(ctx, pg.Transaction(f.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(f.SQL(sql.Highest)).QueryRow(func(row pgx.Row) error { return row.Scan(&ids, &highest) })
		if len(f.Except) > 0 {
			b.Queue(f.SQL(sql.Ended), xidList(f.Except)).Query(func(rows pgx.Rows) error {
				return readEnded(rows, ended)
			})
		}
		if f.Hi > 0 {
			b.Queue(f.SQL(sql.Holders)).Query(pg.ReadHolders(&now))
		}
	}))
	switch {
	case err != nil:
		return err
	case ids != f.IDs || ids != f.Lanes.IDs() || highest < f.Reached || highest < f.Hi:
		// Another server or sequence, a sequence that went back, or a new connection: all results are void. The next
		// step starts over.
		f.IDs, f.Reached, f.Hi, f.Except, f.steps = ids, 0, 0, nil, 1
		f.Lanes.ResetFloors(ids)
		return nil
	}
	if len(ended) > 0 {
		f.Except = slices.DeleteFunc(f.Except, func(xid string) bool { _, ok := ended[xid]; return ok })
		f.Lanes.ExceptedEnded(f.IDs, f.Except, slices.Contains(slices.Collect(maps.Values(ended)), true))
	}
	switch {
	case ids == "":
		f.Lanes.Undecidable()
		return nil
	case f.Hi == 0 && highest == f.Reached:
		f.Lanes.Undecidable() // no id was drawn yet, or none since
		return nil
	case f.Hi == 0:
		return f.begin(ctx, s)
	}
	f.WaitsFor.Keep(now, f.Except)
	if len(f.WaitsFor) > 0 && !f.exceptThem(now, highest) {
		return nil
	}
	f.Reach(f.Hi)
	return nil
}

// begin is steps 1 and 2. The highest id is read by a transaction that writes, by locking the relay's own row, and
// whose COMMIT waits for the disk. A write in a later transaction would not do: behind a pooler it may run on a server
// that has crashed in between and has set the sequence back. The lock holders are read in a later round trip.
func (f *Finder) begin(ctx context.Context, s *pg.Session) error {
	var ids string
	var highest int64
	written := false
	err := s.Send(ctx, pg.Transaction(f.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(f.SQL(sql.Present), f.Owner).Query(func(rows pgx.Rows) error {
			written = rows.Next()
			rows.Close()
			return rows.Err()
		})
		b.Queue(f.SQL(sql.Highest)).QueryRow(func(row pgx.Row) error { return row.Scan(&ids, &highest) })
	}))
	if err != nil || !written || ids != f.IDs {
		return err
	}
	var now pg.Holders
	err = s.Send(ctx, pg.Transaction(f.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(f.SQL(sql.Holders)).Query(pg.ReadHolders(&now))
	}))
	if err != nil {
		return err
	}
	maps.DeleteFunc(now, func(_ string, h pg.Holder) bool { return slices.Contains(f.Except, h.XID) })
	if len(now) == 0 {
		f.Reach(highest)
	} else {
		f.Hi, f.WaitsFor, f.since = highest, now, time.Now()
	}
	return nil
}

// Reach ends step 3.
func (f *Finder) Reach(highest int64) {
	f.Reached, f.risen, f.Hi, f.WaitsFor = highest, time.Now(), 0, nil
	f.Lanes.Decided(f.IDs, f.Reached, f.Except)
}

// exceptThem excepts the transactions that floors wait for, if they have waited long and many ids were drawn meanwhile.
// A transaction without an id cannot be excepted: a snapshot cannot tell whether its rows are visible.
func (f *Finder) exceptThem(now pg.Holders, highest int64) bool {
	little, wait := highest-f.Reached < f.ExceptFrom, f.Every
	if f.Reached > 0 {
		wait *= waitPauses
	}
	if !little && time.Since(f.since) < wait {
		return false
	}
	var xids []string
	for name := range f.WaitsFor {
		xids = append(xids, now[name].XID)
	}
	if little || slices.Contains(xids, "") {
		f.Lanes.Undecidable() // for an unknown time
		return false
	}
	f.Except = append(slices.Clone(f.Except), xids...)
	slices.Sort(f.Except)
	return true
}

// xidList formats a parameter.
func xidList(xids []string) string { return "{" + strings.Join(xids, ",") + "}" }

func readEnded(rows pgx.Rows, into map[string]bool) error {
	var xid string
	var may bool
	_, err := pgx.ForEachRow(rows, []any{&xid, &may}, func() error { into[xid] = may; return nil })
	return err
}

// Raise is one slice of step 4.
func (f *Finder) Raise(ctx context.Context, s *pg.Session) error {
	f.Slice = cmp.Or(f.Slice, firstSlice)
	lanes, floors, tops, falls := f.Lanes.NextSlice(f.Reached, int64(f.Slice))
	if len(lanes) == 0 {
		return nil
	}
	smallest := make(map[int16]int64, len(lanes))
	var ids string
	var highest int64
	since := time.Now()
	err := s.Send(ctx, pg.Transaction(f.Lease/3, pg.Async, func(b *pgx.Batch) {
		b.Queue(f.SQL(sql.Smallest), lanes, floors, tops).Query(pg.ReadByLane(smallest))
		b.Queue(f.SQL(sql.Highest)).QueryRow(func(row pgx.Row) error { return row.Scan(&ids, &highest) })
	}))
	if again, err := f.Slice.fit(since, err, len(tops) > 0 && slices.Min(tops) < f.Reached); err != nil || again {
		return err
	}
	if ids != f.IDs || highest < f.Reached {
		return nil // the next step notices it, too, and starts over
	}
	raised := map[int16]int64{}
	for i, lane := range lanes {
		switch id, ok := smallest[lane]; {
		case ok && id == 0:
			raised[lane] = tops[i]
		case ok:
			raised[lane] = id - 1
		}
	}
	if f.Lanes.RaiseFloors(f.IDs, falls, raised, smallest) {
		f.Signals.Kick()
	}
	return nil
}
