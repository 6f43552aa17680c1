package relay

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
)

// eventOverhead is what an event costs in memory beside its payload and headers, for the byte bound of a claim.
const eventOverhead = 512

// blockSize is how many sequence numbers a lane reserves at once. What a relay does not use of a block is a gap.
const blockSize = 1 << 20

// laneClaim is one lane's part of a claim: one journal entry.
type laneClaim struct {
	lanes.Grant
	work      work
	first     int64      // the entry's key; 0: no events
	count     int        // events that came with it
	discarded int        // journalled events that no longer exist
	behind    int        // events that moved behind the lists of their keys
	full      bool       // there may be more events
	bulk      bool       // read in bulk
	large     bool       // has a large event, or one that it left
	much      bool       // the next claim should read in bulk
	seen      lanes.Pace // of its events
	// The lane's floor after the settle, with the current exceptions; 0: not known.
	floorAfter int64
	fates      tally // of its events, if it is settled
}

func grantsOf(claims []laneClaim) []lanes.Grant {
	grants := make([]lanes.Grant, len(claims))
	for i := range claims {
		grants[i] = claims[i].Grant
	}
	return grants
}

// claim is what one claim transaction returned: the events of some lanes, numbered, journalled and durable.
type claim struct {
	by      string // whose session
	epoch   string
	lanes   []laneClaim
	events  []event.Event   // lane by lane, each in sequence order
	items   []delivery.Item // of the events
	paused  []string        // topics, as of its transaction
	scratch buffers
	took    time.Duration // of its transaction
}

// work is the kind of work that a claim does for a lane. A lane with several kinds takes turns.
type work int8

const (
	takeNew  work = iota // the next events of the outbox
	drain                // held events whose partition answers again
	takeList             // released events
)

// claiming is a claim transaction while it is built and read.
type claiming struct {
	r       *Relay
	c       *claim
	grants  []lanes.Grant
	at      map[int16]*laneClaim
	rows    *rowReader
	perLane int
	bytes   int // per lane
	locked  map[int16]bool
	known   bool            // sql.AsKnown has passed: what divides by zero later is none of ours
	moved   map[int16]int64 // scheduled events that came due
	groups  heldGroups
	all     laneSet  // every lane
	settled laneKeys // entries that a settle must have removed
	reserve laneSet  // lanes that need numbers
	plain   laneSet  // lanes with no marks
	many    []*laneClaim
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
	lanes  []int16
	fences []int64
	nexts  []int64
	floors []int64
	tops   []int64
	fresh  []bool
}

func (s *laneSet) add(l *laneClaim) {
	s.lanes, s.fences = append(s.lanes, l.Lane), append(s.fences, l.Fence)
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

// claim runs the claim transaction for the lanes of grants (P3.2, P3.3). It returns the lanes that are no longer this
// relay's in lost. After an error with unknown true the COMMIT may have happened: the fence of every grant must be
// raised before the lanes are used again.
func (r *Relay) claim(ctx context.Context, s *session, grants []lanes.Grant) (c *claim, lost []lanes.Grant,
	unknown bool, err error,
) {
	// A new connection may lead to a server that has crashed since the lanes were picked.
	if err := s.Open(ctx); err != nil {
		return nil, nil, pg.CommitUnknown(err), err
	}
	r.lanes.Refresh(grants)
	k := r.claiming(s, grants)
	if err = k.send(ctx, s); err != nil {
		if pgerr.Is(err, pgerr.DivisionByZero) && !k.known { // sql.AsKnown: every lane reads its journal
			r.lanes.Reset()
			epoch, err := r.raiseIncarnation(ctx, s.Session)
			if err != nil {
				return nil, nil, false, err
			}
			if epoch == k.c.epoch {
				r.log.Warn("the database has crashed and taken a settle back: what it had settled is sent again, " +
					"under the same numbers")
			}
			r.lanes.Renumber(epoch)
			return r.claim(ctx, s, grants)
		}
		if pgerr.Is(err, pgerr.DivisionByZero) && !pgerr.Within(err) {
			err = fmt.Errorf("%w: %w", errUnjournalled, err)
		}
		return nil, nil, pg.CommitUnknown(err), err
	}
	c = k.c
	r.setPaused(c.paused)
	r.movedDue(grants, k.moved)
	kept := c.lanes[:0]
	for i := range c.lanes {
		l := c.lanes[i]
		if !k.locked[l.Lane] {
			lost = append(lost, l.Grant)
			continue
		}
		much := l.count+l.behind >= k.perLane || k.rows.bytes[l.Lane] >= k.bytes/2
		l.full = much || l.bulk || l.Fresh || l.work != takeNew || l.count > 0 && l.Top < math.MaxInt64
		l.much = (much || l.bulk && l.count >= k.perLane/8) && l.work == takeNew && l.count >= r.bulkFrom && !l.large
		kept = append(kept, l)
	}
	c.lanes = kept
	for i := range c.events {
		c.events[i].Position.Epoch = c.epoch
	}
	return c, lost, false, nil
}

// send runs the transaction.
func (k *claiming) send(ctx context.Context, s *session) error {
	inBulk := len(k.bulk.lanes) > 0
	opening := pg.Transaction
	if inBulk {
		opening = pg.Begin
	}
	if err := s.Send(ctx, opening(k.r.cfg.Lease, pg.Standby, k.queue)); err != nil {
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
func (r *Relay) claiming(s *session, grants []lanes.Grant) *claiming {
	strikes := 0
	for _, g := range grants {
		strikes = max(strikes, g.Strikes)
	}
	k := &claiming{
		r: r, grants: grants, c: &claim{
			lanes: make([]laneClaim, len(grants)), events: s.claimed.events[:0],
			items: s.claimed.items[:0], scratch: s.scratch, by: s.Name,
		},
		at: make(map[int16]*laneClaim, len(grants)), rows: newRowReader(r.cfg.OnFailure),
		perLane: max(r.cfg.ClaimEvents>>(2*strikes)/len(grants), 1),
		bytes:   max(r.cfg.ClaimBytes>>(2*strikes)/len(grants), 1), locked: make(map[int16]bool, len(grants)),
		moved: map[int16]int64{},
	}
	for i, g := range grants {
		l := &k.c.lanes[i]
		*l = laneClaim{Grant: g}
		k.at[g.Lane], k.c.epoch = l, g.Epoch
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
			k.settled.add(&laneClaim{Grant: g, first: g.Settled})
		}
		switch l.work = k.workFor(l); {
		case l.work == drain:
			k.draining.add(l)
		case l.work == takeList:
			k.lists.add(l)
		case !g.Fresh && !g.Parked && g.Bulk && (g.Reach > 0 || g.Falls == 0) && g.Top == math.MaxInt64:
			k.many = append(k.many, l)
			l.floorAfter = l.Reached
		case !g.Fresh && !g.Parked: // held events need no comparison with marks
			k.plain.add(l)
			l.floorAfter = l.Reached
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
func (k *claiming) workFor(l *laneClaim) work {
	if l.Fresh {
		return takeNew
	}
	var works []work
	var open []delivery.Place
	if len(l.Groups) > 0 {
		open = l.Groups.Open(k.r.health.Closed())
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
	q, me, ids := k.r.sql, k.r.owner, k.grants[0].IDs
	b.Queue(q(sql.Lock), k.all.lanes, k.all.fences, me).Query(func(rows pgx.Rows) error {
		return eachLane(rows, func(lane int16) { k.locked[lane] = true })
	})
	b.Queue(q(sql.AsKnown), k.settled.lanes, k.settled.fences, me, k.settled.firsts, k.c.epoch).
		Exec(func(pgconn.CommandTag) error { k.known = true; return nil })
	if len(k.reserve.lanes) > 0 {
		b.Queue(q(sql.Reserve), k.reserve.lanes, k.reserve.fences, me, int64(blockSize)).Query(k.readReserved)
	}
	if s := &k.lists; len(s.lanes) > 0 {
		b.Queue(q(sql.Unmark), s.lanes, s.fences, me, k.perLane)
	}
	if s := &k.beside; len(s.lanes) > 0 {
		b.Queue(q(sql.Look), s.lanes, s.fences, me).Query(k.readMarks)
	}
	if s := &k.holding; len(s.lanes) > 0 {
		b.Queue(q(sql.LookHeld), s.lanes, s.fences, me).Query(k.readGroups)
	}
	if s := &k.open; len(s.lanes) > 0 {
		b.Queue(q(sql.Open), s.lanes, s.fences, me).Query(k.read((*rowReader).readOpen))
	}
	if s := &k.draining; len(s.lanes) > 0 {
		b.Queue(q(sql.Emptied), s.lanes, s.fences, me, k.groups.lanes, k.groups.topics, k.groups.partitions).Query(
			k.readEmptied)
		b.Queue(q(sql.Drain), s.lanes, s.fences, me, k.groups.lanes, k.groups.topics, k.groups.partitions,
			k.groups.most, k.bytes, eventOverhead).
			Query(k.read((*rowReader).readDrained))
	}
	if s := &k.lists; len(s.lanes) > 0 {
		b.Queue(q(sql.List), s.lanes, s.fences, me, s.nexts, k.perLane, k.bytes, eventOverhead, int64(blockSize)).Query(
			k.read((*rowReader).readList))
	}
	k.r.queueDue(b, k.grants, k.perLane, k.bytes, k.moved)
	if s := &k.marked; len(s.lanes) > 0 {
		b.Queue(q(sql.TakeMarked), s.lanes, s.fences, me, s.nexts, k.perLane, k.bytes, eventOverhead, int64(blockSize),
			s.floors, ids, s.fresh, s.tops).
			Query(k.read((*rowReader).readMarked))
	}
	if s := &k.plain; len(s.lanes) > 0 {
		b.Queue(q(sql.Take), s.lanes, s.fences, me, s.nexts, k.perLane, k.bytes, eventOverhead, int64(blockSize),
			s.floors, ids, s.tops).
			Query(k.read((*rowReader).readNew))
	}
	if s := &k.bulk; len(s.lanes) > 0 {
		b.Queue(sql.ReadSettings)
		b.Queue(q(sql.Read), s.lanes, s.fences, me, s.nexts, k.highest, s.floors, ids, int32(largePayload),
			k.tooMany).Query(k.readBulk)
	}
	// After the events: each statement sees what was committed before it, and an event that followed a pause waits.
	b.Queue(q(sql.Paused)).QueryRow(func(row pgx.Row) error { return row.Scan(&k.c.paused) })
}

func (k *claiming) read(how func(*rowReader, pgx.Rows, *claim, map[int16]*laneClaim) error) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		return how(k.rows, rows, k.c, k.at)
	}
}

func (k *claiming) readReserved(rows pgx.Rows) error {
	var lane int16
	var end int64
	_, err := pgx.ForEachRow(rows, []any{&lane, &end}, func() error {
		k.at[lane].Next, k.at[lane].End = end-blockSize+1, end
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

// raiseIncarnation begins a new numbering: the database is another system or on another timeline than when the numbers
// were made, so they may repeat.
func (r *Relay) raiseIncarnation(ctx context.Context, s *pg.Session) (epoch string, err error) {
	var same, raised bool
	err = s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Standby, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.RaiseIncarnation)).Exec(func(tag pgconn.CommandTag) error {
			raised = tag.RowsAffected() > 0 // or another pump has done it
			return nil
		})
		b.Queue(r.sql(sql.Meta)).QueryRow(func(row pgx.Row) error { return row.Scan(&epoch, &same) })
	}))
	if err == nil && raised {
		r.log.Warn("the outbox's database is another system or timeline: a new incarnation of its numbering has begun",
			"epoch", epoch)
	}
	return epoch, err
}

func eachLane(rows pgx.Rows, do func(lane int16)) error {
	var lane int16
	_, err := pgx.ForEachRow(rows, []any{&lane}, func() error { do(lane); return nil })
	return err
}

// readLanes appends the lanes that rows name.
func readLanes(to *[]int16) func(rows pgx.Rows) error {
	return func(rows pgx.Rows) error {
		return eachLane(rows, func(lane int16) { *to = append(*to, lane) })
	}
}

// readByLane reads rows of a lane and a number.
func readByLane(into map[int16]int64) func(rows pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var lane int16
		var n int64
		_, err := pgx.ForEachRow(rows, []any{&lane, &n}, func() error { into[lane] = n; return nil })
		return err
	}
}
