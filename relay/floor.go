package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

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
type floorFinder struct {
	stepped  time.Time // when the last step was made
	steps    int       // made since the numbering was read
	ids      string    // the numbering of ids; "": none that allows a floor
	reached  int64     // every id up to this one is decided, or was drawn by one of except
	risen    time.Time // when reached last rose
	except   []string  // ids of open transactions that are not waited for
	hi       int64     // the id that is waited for; 0: none
	since    time.Time // when it was read
	waitsFor pg.Holders
	slice    sliceSize

	scanned   time.Time // when the last rescan ended
	below     int64     // the id that the current rescan has reached
	deep      sliceSize // its slice
	nextSlice time.Time // when its next slice is due

	behind int // how many lanes had rising floors after the last step
}

const (
	// firstSteps are made without a pause between them, so that a relay that starts with a long backlog has floors at
	// once.
	firstSteps = 3
	// passingShare is the divisor of the pause while lanes with a backlog are past the decided ids, and while
	// transactions are excepted.
	passingShare = 8
	// waitPauses is the number of pauses before a transaction that holds floors back is excepted, one while there are
	// no floors. exceptFrom is how many ids must have been drawn beyond the floors meanwhile: fewer cost less than an
	// exception.
	waitPauses = 4
	exceptFrom = 1 << 15
)

// findFloors makes steps toward higher floors until ctx ends.
func (r *Relay) findFloors(ctx context.Context) {
	s := r.session("floors")
	defer s.Close()
	pause, f := outage.NewBackOff(), floorFinder{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait, before := min(r.cfg.ProbeAwake, r.cfg.FloorEvery/passingShare), f.stepped
		if time.Since(f.risen) > r.cfg.IdleAfter {
			wait = r.cfg.FloorEvery
		}
		err := r.floorStep(ctx, s, &f)
		if f.stepped != before {
			r.postgres.Report(s.Name, err, s.Heard())
		}
		if err != nil {
			wait = pause.NextBackOff()
		} else {
			pause.Reset()
		}
		timer.Reset(wait)
	}
}

// floorStep runs one step when it is due. Probes leave out lanes whose floors are still rising, and may have missed a
// Wake for one: when the last of them has risen, the prober probes at once.
func (r *Relay) floorStep(ctx context.Context, s *session, f *floorFinder) (err error) {
	before := max(f.behind, r.lanes.Behind())
	defer func() {
		if err != nil {
			r.lanes.Undecidable()
		}
		if f.behind = r.lanes.Behind(); f.behind < before {
			r.requestProbe()
		}
	}()
	every := r.cfg.FloorEvery
	if r.lanes.PastDecided() || len(f.except) > 0 {
		every /= passingShare
	}
	if every < 0 || f.steps >= firstSteps && time.Since(f.stepped) < every && r.lanes.Behind() == 0 {
		return nil
	}
	f.stepped = time.Now()
	f.steps++
	if f.scanned.IsZero() {
		f.scanned = f.stepped // every lane was read from zero
	}
	if err := r.decide(ctx, s, f); err != nil || f.ids == "" {
		return err
	}
	if err := r.raiseFloors(ctx, s, f); err != nil {
		return err
	}
	if r.cfg.RescanEvery < 0 || time.Since(f.scanned) < r.cfg.RescanEvery || f.stepped.Before(f.nextSlice) {
		return nil
	}
	return r.rescan(ctx, s, f)
}

// decide runs one of the steps 1 to 3.
func (r *Relay) decide(ctx context.Context, s *session, f *floorFinder) error {
	var ids string
	var highest int64
	var now pg.Holders
	ended := map[string]bool{} // true: it may have committed
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Highest)).QueryRow(func(row pgx.Row) error { return row.Scan(&ids, &highest) })
		if len(f.except) > 0 {
			b.Queue(r.sql(sql.Ended), xidList(f.except)).Query(func(rows pgx.Rows) error {
				return readEnded(rows, ended)
			})
		}
		if f.hi > 0 {
			b.Queue(r.sql(sql.Holders)).Query(pg.ReadHolders(&now))
		}
	}))
	switch {
	case err != nil:
		return err
	case ids != f.ids || ids != r.lanes.IDs() || highest < f.reached || highest < f.hi:
		// Another server or sequence, a sequence that went back, or a new connection: all results are void. The next
		// step starts over.
		f.ids, f.reached, f.hi, f.except, f.steps = ids, 0, 0, nil, 1
		r.lanes.ResetFloors(ids)
		return nil
	}
	if len(ended) > 0 {
		f.except = slices.DeleteFunc(f.except, func(xid string) bool { _, ok := ended[xid]; return ok })
		r.lanes.ExceptedEnded(f.ids, f.except, slices.Contains(slices.Collect(maps.Values(ended)), true))
	}
	switch {
	case ids == "":
		r.lanes.Undecidable()
		return nil
	case f.hi == 0 && highest == f.reached:
		r.lanes.Undecidable() // no id was drawn yet, or none since
		return nil
	case f.hi == 0:
		return r.begin(ctx, s, f)
	}
	f.waitsFor.Keep(now, f.except)
	if len(f.waitsFor) > 0 && !r.exceptThem(f, now, highest) {
		return nil
	}
	r.reach(f, f.hi)
	return nil
}

// begin is steps 1 and 2. The highest id is read by a transaction that writes, by locking the relay's own row, and
// whose COMMIT waits for the disk. A write in a later transaction would not do: behind a pooler it may run on a server
// that has crashed in between and has set the sequence back. The lock holders are read in a later round trip.
func (r *Relay) begin(ctx context.Context, s *session, f *floorFinder) error {
	var ids string
	var highest int64
	written := false
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Present), r.owner).Query(func(rows pgx.Rows) error {
			written = rows.Next()
			rows.Close()
			return rows.Err()
		})
		b.Queue(r.sql(sql.Highest)).QueryRow(func(row pgx.Row) error { return row.Scan(&ids, &highest) })
	}))
	if err != nil || !written || ids != f.ids {
		return err
	}
	var now pg.Holders
	err = s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Holders)).Query(pg.ReadHolders(&now))
	}))
	if err != nil {
		return err
	}
	maps.DeleteFunc(now, func(_ string, h pg.Holder) bool { return slices.Contains(f.except, h.XID) })
	if len(now) == 0 {
		r.reach(f, highest)
	} else {
		f.hi, f.waitsFor, f.since = highest, now, time.Now()
	}
	return nil
}

// reach ends step 3.
func (r *Relay) reach(f *floorFinder, highest int64) {
	f.reached, f.risen, f.hi, f.waitsFor = highest, time.Now(), 0, nil
	r.lanes.Decided(f.ids, f.reached, f.except)
}

// exceptThem excepts the transactions that floors wait for, if they have waited long and many ids were drawn meanwhile.
// A transaction without an id cannot be excepted: a snapshot cannot tell whether its rows are visible.
func (r *Relay) exceptThem(f *floorFinder, now pg.Holders, highest int64) bool {
	little, wait := highest-f.reached < r.exceptFrom, r.cfg.FloorEvery
	if f.reached > 0 {
		wait *= waitPauses
	}
	if !little && time.Since(f.since) < wait {
		return false
	}
	var xids []string
	for name := range f.waitsFor {
		xids = append(xids, now[name].XID)
	}
	if little || slices.Contains(xids, "") {
		r.lanes.Undecidable() // for an unknown time
		return false
	}
	f.except = append(slices.Clone(f.except), xids...)
	slices.Sort(f.except)
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

// raiseFloors is one slice of step 4.
func (r *Relay) raiseFloors(ctx context.Context, s *session, f *floorFinder) error {
	f.slice = cmp.Or(f.slice, firstSlice)
	lanes, floors, tops, falls := r.lanes.NextSlice(f.reached, int64(f.slice))
	if len(lanes) == 0 {
		return nil
	}
	smallest := make(map[int16]int64, len(lanes))
	var ids string
	var highest int64
	since := time.Now()
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease/3, pg.Async, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Smallest), lanes, floors, tops).Query(readByLane(smallest))
		b.Queue(r.sql(sql.Highest)).QueryRow(func(row pgx.Row) error { return row.Scan(&ids, &highest) })
	}))
	if again, err := f.slice.fit(since, err, len(tops) > 0 && slices.Min(tops) < f.reached); err != nil || again {
		return err
	}
	if ids != f.ids || highest < f.reached {
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
	if r.lanes.RaiseFloors(f.ids, falls, raised, smallest) {
		r.kickPumps()
	}
	return nil
}

// errOtherSequence: the floors would follow a sequence that does not number the table's ids.
var errOtherSequence = errors.New("relay: outbox_event takes its ids from another sequence than outbox_event_id_seq")

// checkSequence fails if ids do not come from the sequence that floors use.
func (r *Relay) checkSequence(ctx context.Context, s *session) error {
	var other string
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.OtherSequence)).QueryRow(func(row pgx.Row) error { return row.Scan(&other) })
	}))
	if err != nil || other == "" {
		return err
	}
	return fmt.Errorf("%w, from %s: give what has that name another, and the table's sequence that name (alter "+
		"sequence ... rename to ...)",
		errOtherSequence, other)
}
