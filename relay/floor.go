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

// A floor is an id at and below which a lane has no row any more and will never have one. Looks begin above it, so that
// rows which are dead, but not yet vacuumed away, cost nothing. P6 (docs/protocol.md) has the four steps in which a
// floor rises, and why their order makes them right.
//
// A claim whose snapshot is later than step 3 is such a look as well: it takes all that its lane has up to its last id.
// Once it is settled, the lane has nothing left up to that id, or up to the highest if that is lower. So a lane's floor
// follows its claims, which would read what they have just deleted again and again otherwise.
//
// Floors are an optimisation and live in memory only. Every statement that uses them compares the numbering of ids that
// they were found in with what it finds there, and reads from zero when it is another: behind a pooler nobody else
// notices that the server has changed.
//
// Nobody waits for a producer that keeps its transaction open: it is excepted, and floors rise beyond its ids for as
// long as its rows cannot be seen. Each statement compares that with its own snapshot, and finds nothing when it shows
// them. Floors fall then to where they stood without the exception.
//
// What is dead between a floor and the end of what is decided is passed in slices of ids, on a session that nothing
// else waits for. Claims and looks do not go far above a floor that is on its way.
type floorFinder struct {
	stepped  time.Time // when the last step was made
	steps    int       // made since the numbering was met
	ids      string    // the numbering of ids; "": none that allows a floor
	reached  int64     // every id up to this one is decided, or was drawn by one of except
	risen    time.Time // when that was last found
	except   []string  // open transactions that are not waited for, by their ids
	hi       int64     // the one that is waited for; 0: none
	since    time.Time // when it was read
	waitsFor pg.Holders
	slice    sliceSize

	scanned   time.Time // when the last rescan ended
	below     int64     // up to where the one under way has come
	deep      sliceSize // of it
	nextSlice time.Time // when its next slice is due

	behind int // how many lanes were behind after the last step
}

const (
	// firstSteps are made without a pause between them: a relay that starts over a long backlog has floors at once.
	firstSteps = 3
	// passingShare is how much shorter the pause is while lanes that have much to send are past what is decided, and
	// while transactions are excepted.
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

// floorStep makes one step when it is time. Nobody else looks at lanes that are behind, and the prober may have been
// told meanwhile of events in one: when a lane is behind no more, the prober looks at once.
func (r *Relay) floorStep(ctx context.Context, s *session, f *floorFinder) (err error) {
	before := max(f.behind, r.lanes.Behind())
	defer func() {
		if err != nil {
			r.lanes.Undecidable()
		}
		if f.behind = r.lanes.Behind(); f.behind < before {
			r.Wake()
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
		f.scanned = f.stepped // every lane begins with a look from zero
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

// decide is steps 1 to 3, one of them at a time.
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
		// Another server or sequence, one that went back, or a new connection: nothing that was known holds. The next
		// step begins again.
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

// begin is steps 1 and 2. The highest id is read by a transaction that writes, by a lock on our own row, and whose
// commit waits for the disk. One that began later would not do: behind a pooler it may have run on a server that has
// crashed in between and come back with the sequence where it stood before. The holders are asked for in a later round
// trip than that.
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

// exceptThem excepts the transactions that are waited for, when that has lasted and much has been drawn meanwhile. One
// without an id cannot be excepted: no snapshot tells whether its rows can be seen.
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
		r.lanes.Undecidable() // nobody knows for how long
		return false
	}
	f.except = append(slices.Clone(f.except), xids...)
	slices.Sort(f.except)
	return true
}

// xidList is a parameter.
func xidList(xids []string) string { return "{" + strings.Join(xids, ",") + "}" }

func readEnded(rows pgx.Rows, into map[string]bool) error {
	var xid string
	var may bool
	_, err := pgx.ForEachRow(rows, []any{&xid, &may}, func() error { into[xid] = may; return nil })
	return err
}

// raiseFloors is step 4, one slice of it.
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
		return nil // the next step sees it too, and begins again
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

// errOtherSequence: floors would follow a sequence that says nothing of the table's ids.
var errOtherSequence = errors.New("relay: outbox_event takes its ids from another sequence than outbox_event_id_seq")

// checkSequence fails when ids do not come from the sequence that floors are found by.
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
