package cycle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// EventOverhead is what an event costs in memory beside its payload and headers, for the byte bound of a claim.
const EventOverhead = 512

// BlockSize is how many sequence numbers a lane reserves at once. What a relay does not use of a block is a gap.
const BlockSize = 1 << 20

// Part is one lane's part of a claim: one journal entry.
type Part struct {
	lanes.Grant
	Work      Work
	First     int64      // the entry's key; 0: no events
	count     int        // events that came with it
	discarded int        // journalled events that no longer exist
	Behind    int        // events that moved behind the lists of their keys
	Full      bool       // there may be more events
	bulk      bool       // read in bulk
	large     bool       // has a large event, or one that it left
	much      bool       // the next claim should read in bulk
	Seen      lanes.Pace // of its events
	// The lane's floor after the settle, with the current exceptions; 0: not known.
	FloorAfter int64
	fates      tally // of its events, if it is settled
}

// Claim is what one claim transaction returned: the events of some lanes, numbered, journalled and durable.
type Claim struct {
	By      string // whose session
	Epoch   string
	Parts   []Part
	Events  []event.Event   // lane by lane, each in sequence order
	Items   []delivery.Item // of the events
	Paused  []string        // topics, as of its transaction
	scratch buffers
	took    time.Duration // of its transaction
}

// Size returns the number of its events and the bytes that they have in memory.
func (c *Claim) Size() (events, bytes int) {
	for i := range c.Events {
		bytes += len(c.Events[i].Payload) + textOf(&c.Events[i]) + EventOverhead
	}
	return len(c.Events), bytes
}

// Work is the kind of work that a claim does for a lane. A lane with several kinds takes turns.
type Work int8

const (
	takeNew  Work = iota // the next events of the outbox
	drain                // held events whose partition answers again
	takeList             // released events
)

// claiming is a claim transaction while it is built and read.
type claiming struct {
	r       *Cycle
	c       *Claim
	grants  []lanes.Grant
	at      map[int16]*Part
	rows    *rowReader
	perLane int
	bytes   int // per lane
	locked  map[int16]bool
	same    *start.Same
	known   bool            // sql.AsKnown has passed: what divides by zero later is none of ours
	moved   map[int16]int64 // scheduled events that came due
	groups  heldGroups
	all     laneSet    // every lane
	settled sql.Fenced // entries that a settle must have removed
	reserve laneSet    // lanes that need numbers
	plain   laneSet    // lanes with no marks
	many    []*Part
	bulk    laneSet // lanes that are read in bulk: see bulk.go
	highest int64   // the id up to which they are read
	tooMany int     // row limit of the bulk read
	// overflown: the bulk read hit its limit, and there may be more rows.
	overflown bool
	marked    laneSet // lanes that may have marks, or are unknown
	lists     laneSet
	draining  laneSet
	open      laneSet // lanes that may have an open entry
	beside    laneSet // lanes that may have marks
	holding   laneSet // lanes whose held groups are not known
}

// laneSet are parameters of a statement.
type laneSet struct {
	sql.Fenced
	nexts  []int64
	floors []int64
	tops   []int64
	fresh  []bool
}

func (s *laneSet) add(l *Part) {
	s.Add(l.Lane, l.Fence, 0)
	s.nexts, s.floors, s.tops, s.fresh = append(s.nexts, l.Next), append(s.floors, l.Reach), append(s.tops, l.Top),
		append(s.fresh, l.Fresh)
}

// heldGroups are the groups of held events that a claim takes, as parameters.
type heldGroups struct {
	lanes      []int16
	topics     []string
	partitions []int32
	most       []int32
}

// drainGroups is the number of held groups that a claim drains in each lane.
const drainGroups = 64

// errUnjournalled: what a claim without its entry publishes would be published again and again.
var errUnjournalled = errors.New("outbox_claim does not keep the journal entry of a claim: is there a trigger that " +
	"takes it away?")

// ClaimLanes claims the granted lanes, and gives those back that cannot be worked on.
func (r *Cycle) ClaimLanes(ctx context.Context, s *Session, grants []lanes.Grant) (*Claim, error) {
	since := time.Now()
	c, lost, unknown, err := r.claim(ctx, s, grants)
	if err != nil {
		failed, end := 0, lanes.GiveBack
		if !r.dueRefused(grants, err) {
			failed = r.overran(grants[0].Lane, len(grants), err)
		}
		if unknown {
			end = lanes.Doubted
		}
		verdicts := make([]lanes.Verdict, len(grants))
		for i := range grants {
			verdicts[i] = end(&grants[i]).Failed(failed)
		}
		r.takeHome(verdicts)
		return nil, fmt.Errorf("relay: claim: %w", err)
	}
	c.took = time.Since(since)
	r.takeHome(lost)
	discarded, behind := 0, 0
	for i := range c.Parts {
		l := &c.Parts[i]
		discarded += l.discarded
		behind += l.Behind
		r.Lanes.Claimed(&l.Grant)
	}
	if behind > 0 && r.Observer.Behind != nil {
		r.Observer.Behind(behind)
	}
	if len(c.Events) > 0 && r.Observer.Claimed != nil {
		r.Observer.Claimed(len(c.Events), discarded, time.Since(since))
	}
	if discarded > 0 {
		r.Log.Warn("journalled events are gone from the outbox: somebody deleted them; their numbers stay gaps",
			"events", discarded)
	}
	return c, nil
}

// takeHome ends the work on lanes.
func (r *Cycle) takeHome(verdicts []lanes.Verdict) {
	if r.Lanes.Home(verdicts, r.Health.Closed(), time.Now()) {
		r.Signals.Beat()
	}
}

// overran returns the number of lanes of a claim or settle that timed out, or that the server refused, and says so; 0
// if err is another error. lane is one of them.
func (r *Cycle) overran(lane int16, number int, err error) int {
	switch late := late(err); {
	case late:
		r.Log.Warn("work did not fit into the lease's time: it is repeated in smaller parts", "lanes", number, "error",
			err)
	case !pgerr.Answered(err):
		return 0
	case number == 1:
		r.Refuse(lane, err, false)
	}
	return number
}

// late reports whether the time for a transaction was over.
func late(err error) bool {
	return pgerr.Is(err, pgerr.QueryCanceled) || errors.Is(err, context.DeadlineExceeded) && !pgerr.Away(err)
}

// claim runs the claim transaction for the lanes of grants (P3.2, P3.3). It returns the lanes that are no longer this
// relay's in lost. After an error with unknown true the COMMIT may have happened: the fence of every grant must be
// raised before the lanes are used again.
func (r *Cycle) claim(ctx context.Context, s *Session, grants []lanes.Grant) (c *Claim, lost []lanes.Verdict,
	unknown bool, err error,
) {
	// A new connection may lead to a server that has crashed since the lanes were picked.
	if err := s.Open(ctx); err != nil {
		return nil, nil, pg.CommitUnknown(err), err
	}
	r.Lanes.Refresh(grants)
	k := r.claiming(s, grants)
	if err = k.send(ctx, s); err != nil {
		if err = k.same.Error(err); errors.Is(err, start.ErrOther) {
			return nil, nil, false, err
		}
		if pgerr.Is(err, pgerr.DivisionByZero) && !k.known { // sql.AsKnown: every lane reads its journal
			r.Lanes.Reset()
			epoch, err := r.RaiseIncarnation(ctx, s.Session)
			if err != nil {
				return nil, nil, false, err
			}
			if epoch == k.c.Epoch {
				r.Log.Warn("the database has crashed and taken a settle back: what it had settled is sent again, " +
					"under the same numbers")
			}
			r.Lanes.Renumber(epoch)
			return r.claim(ctx, s, grants)
		}
		if pgerr.Is(err, pgerr.DivisionByZero) && !pgerr.Within(err) {
			err = fmt.Errorf("%w: %w", errUnjournalled, err)
		}
		return nil, nil, pg.CommitUnknown(err), err
	}
	c = k.c
	r.SetPaused(c.Paused)
	r.movedDue(grants, k.moved)
	kept := c.Parts[:0]
	for i := range c.Parts {
		l := c.Parts[i]
		if !k.locked[l.Lane] {
			lost = append(lost, lanes.Doubted(&l.Grant))
			continue
		}
		much := l.count+l.Behind >= k.perLane || k.rows.bytes[l.Lane] >= k.bytes/2
		l.Full = much || l.bulk || l.Fresh || l.Work != takeNew || l.count > 0 && l.Top < math.MaxInt64
		l.much = (much || l.bulk && l.count >= k.perLane/8) && l.Work == takeNew && l.count >= r.BulkFrom && !l.large
		kept = append(kept, l)
	}
	c.Parts = kept
	for i := range c.Events {
		c.Events[i].Position.Epoch = c.Epoch
	}
	return c, lost, false, nil
}

// send runs the transaction.
func (k *claiming) send(ctx context.Context, s *Session) error {
	inBulk := len(k.bulk.Lanes) > 0
	opening := pg.Transaction
	if inBulk {
		opening = pg.Begin
	}
	if err := s.Send(ctx, opening(k.r.Lease, pg.Standby, k.queue)); err != nil {
		return err
	}
	k.c.sort()
	if inBulk {
		k.cut()
	}
	k.c.number(k.at)
	k.measure()
	if inBulk {
		return k.journal(ctx, s)
	}
	return nil
}

// claiming chooses the work for each lane.
func (r *Cycle) claiming(s *Session, grants []lanes.Grant) *claiming {
	strikes := 0
	for _, g := range grants {
		strikes = max(strikes, g.Strikes)
	}
	k := &claiming{
		r: r, grants: grants, c: &Claim{
			Parts: make([]Part, len(grants)), Events: s.claimed.events[:0],
			Items: s.claimed.items[:0], scratch: s.scratch, By: s.Name,
		},
		at: make(map[int16]*Part, len(grants)), rows: newRowReader(r.ParkEvent),
		perLane: max(r.MostEvents>>(2*strikes)/len(grants), 1),
		bytes:   max(r.MostBytes>>(2*strikes)/len(grants), 1), locked: make(map[int16]bool, len(grants)),
		moved: map[int16]int64{}, same: r.Same(),
	}
	for i, g := range grants {
		l := &k.c.Parts[i]
		*l = Part{Grant: g}
		k.at[g.Lane], k.c.Epoch = l, g.Epoch
		if g.End-g.Next+1 < int64(k.perLane) || g.Next == 0 {
			l.Next = 0
			k.reserve.add(l)
		}
		k.all.add(l)
		if g.Fresh || g.Parked || len(g.Groups) > 0 {
			k.beside.add(l)
		}
		if g.Fresh {
			k.open.add(l)
		} else if g.Settled != 0 {
			k.settled.Add(g.Lane, g.Fence, g.Settled)
		}
		switch l.Work = k.workFor(l); {
		case l.Work == drain:
			k.draining.add(l)
		case l.Work == takeList:
			k.lists.add(l)
		case !g.Fresh && !g.Parked && g.Bulk:
			k.many = append(k.many, l)
			l.FloorAfter = l.Reached
		case !g.Fresh && !g.Parked: // held events need no comparison with marks
			k.plain.add(l)
			l.FloorAfter = l.Reached
		default:
			k.marked.add(l)
		}
		if g.Fresh { // later, only this relay's settles add to them
			k.holding.add(l)
			l.Groups = nil // as this claim will find them
		}
		l.Parked, l.Releasing = false, false
	}
	k.window()
	return k
}

// workFor chooses the work for a lane, in turn if there are several kinds. A fresh lane begins with its open entry.
func (k *claiming) workFor(l *Part) Work {
	if l.Fresh {
		return takeNew
	}
	var works []Work
	var open []delivery.Place
	if len(l.Groups) > 0 {
		open = l.Groups.Open(k.r.Health.Closed())
	}
	if len(open) > 0 {
		works = append(works, drain)
	}
	if l.Releasing {
		works = append(works, takeList)
	}
	works = append(works, takeNew)
	w := works[l.Turn%len(works)]
	if w == drain {
		n := min(len(open), drainGroups, k.perLane)
		for _, g := range open[:n] { // in random order, so that the byte limit does not always cut the same ones
			k.groups.lanes, k.groups.topics = append(k.groups.lanes, l.Lane), append(k.groups.topics, g.Topic)
			k.groups.partitions, k.groups.most = append(k.groups.partitions, g.Partition),
				append(k.groups.most, int32(k.perLane/n))
		}
	}
	return w
}

// queue puts the statements of the claim into one pipeline.
func (k *claiming) queue(b *pgx.Batch) {
	q, me, ids := k.r.SQL, k.r.Owner, k.grants[0].IDs
	b.Queue(q(sql.Lock), k.all.Lanes, k.all.Fences, me).Query(func(rows pgx.Rows) error {
		return pg.EachLane(rows, func(lane int16) { k.locked[lane] = true })
	})
	k.same.Queue(b)
	b.Queue(q(sql.AsKnown), k.settled.Lanes, k.settled.Fences, me, k.settled.Firsts, k.c.Epoch).
		Exec(func(pgconn.CommandTag) error { k.known = true; return nil })
	if len(k.reserve.Lanes) > 0 {
		b.Queue(q(sql.Reserve), k.reserve.Lanes, k.reserve.Fences, me, int64(BlockSize)).Query(k.readReserved)
	}
	if s := &k.lists; len(s.Lanes) > 0 {
		b.Queue(q(sql.Unmark), s.Lanes, s.Fences, me, k.perLane)
	}
	if s := &k.beside; len(s.Lanes) > 0 {
		b.Queue(q(sql.Look), s.Lanes, s.Fences, me).Query(k.readMarks)
	}
	if s := &k.holding; len(s.Lanes) > 0 {
		b.Queue(q(sql.LookHeld), s.Lanes, s.Fences, me).Query(k.readGroups)
	}
	if s := &k.open; len(s.Lanes) > 0 {
		b.Queue(q(sql.Open), s.Lanes, s.Fences, me).Query(k.read((*rowReader).readOpen))
	}
	if s := &k.draining; len(s.Lanes) > 0 {
		b.Queue(q(sql.Emptied), s.Lanes, s.Fences, me, k.groups.lanes, k.groups.topics, k.groups.partitions).Query(
			k.readEmptied)
		b.Queue(q(sql.Drain), s.Lanes, s.Fences, me, k.groups.lanes, k.groups.topics, k.groups.partitions,
			k.groups.most, k.bytes, EventOverhead).
			Query(k.read((*rowReader).readDrained))
	}
	if s := &k.lists; len(s.Lanes) > 0 {
		b.Queue(q(sql.List), s.Lanes, s.Fences, me, s.nexts, k.perLane, k.bytes, EventOverhead, int64(BlockSize)).Query(
			k.read((*rowReader).readList))
	}
	k.r.queueDue(b, k.grants, k.perLane, k.bytes, k.moved)
	if s := &k.marked; len(s.Lanes) > 0 {
		b.Queue(q(sql.TakeMarked), s.Lanes, s.Fences, me, s.nexts, k.perLane, k.bytes, EventOverhead, int64(BlockSize),
			s.floors, ids, s.fresh, s.tops).
			Query(k.read((*rowReader).readMarked))
	}
	if s := &k.plain; len(s.Lanes) > 0 {
		b.Queue(q(sql.Take), s.Lanes, s.Fences, me, s.nexts, k.perLane, k.bytes, EventOverhead, int64(BlockSize),
			s.floors, ids, s.tops).
			Query(k.read((*rowReader).readNew))
	}
	if s := &k.bulk; len(s.Lanes) > 0 {
		b.Queue(sql.ReadSettings)
		b.Queue(q(sql.Read), s.Lanes, s.Fences, me, s.nexts, k.highest, s.floors, ids, int32(largePayload),
			k.tooMany).Query(k.readBulk)
	}
	// After the events: each statement sees what was committed before it, and an event that followed a pause waits.
	b.Queue(q(sql.Paused)).QueryRow(func(row pgx.Row) error { return row.Scan(&k.c.Paused) })
}

func (k *claiming) read(how func(*rowReader, pgx.Rows, *Claim, map[int16]*Part) error) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		return how(k.rows, rows, k.c, k.at)
	}
}

func (k *claiming) readReserved(rows pgx.Rows) error {
	var lane int16
	var end int64
	_, err := pgx.ForEachRow(rows, []any{&lane, &end}, func() error {
		k.at[lane].Next, k.at[lane].End = end-BlockSize+1, end
		return nil
	})
	return err
}

func (k *claiming) readMarks(rows pgx.Rows) error {
	var lane int16
	var parked, releasing bool
	_, err := pgx.ForEachRow(rows, []any{&lane, &parked, &releasing}, func() error {
		k.at[lane].Parked, k.at[lane].Releasing = parked, releasing
		return nil
	})
	return err
}

func (k *claiming) readGroups(rows pgx.Rows) error {
	var lane int16
	var at delivery.Place
	_, err := pgx.ForEachRow(rows, []any{&lane, &at.Topic, &at.Partition}, func() error {
		l := k.at[lane]
		if l.Groups == nil {
			l.Groups = delivery.Groups{}
		}
		l.Groups[at.Topic] = append(l.Groups[at.Topic], at.Partition)
		return nil
	})
	return err
}

func (k *claiming) readEmptied(rows pgx.Rows) error {
	gone := map[int16][]delivery.Place{}
	var lane int16
	var at delivery.Place
	_, err := pgx.ForEachRow(rows, []any{&lane, &at.Topic, &at.Partition}, func() error {
		gone[lane] = append(gone[lane], at)
		return nil
	})
	for lane, places := range gone {
		k.at[lane].Groups = k.at[lane].Groups.Without(places)
	}
	return err
}

// RaiseIncarnation begins a new numbering: the database is another system or on another timeline than when the numbers
// were made, so they may repeat.
func (r *Cycle) RaiseIncarnation(ctx context.Context, s *pg.Session) (epoch string, err error) {
	var same, raised bool
	err = s.Send(ctx, pg.Transaction(r.Lease, pg.Standby, func(b *pgx.Batch) {
		b.Queue(r.SQL(sql.RaiseIncarnation)).Exec(func(tag pgconn.CommandTag) error {
			raised = tag.RowsAffected() > 0 // or another pump has done it
			return nil
		})
		b.Queue(r.SQL(sql.Meta)).QueryRow(func(row pgx.Row) error { return row.Scan(&epoch, &same) })
	}))
	if err == nil && raised {
		r.Log.Warn("the outbox's database is another system or timeline: a new incarnation of its numbering has begun",
			"epoch", epoch)
	}
	return epoch, err
}
