package cycle

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// settling is a settle while it is put together: the fates of the events of lanes whose claim is complete.
type settling struct {
	epoch string
	lanes []Part
	at    map[int16]*Part // in lanes
	// Lanes whose events are all in the outbox: those without an ack are moved, and the rest of the entry is deleted.
	plain sql.Fenced
	moved sql.Fenced // those of them with moved events
	mixed sql.Fenced // lanes with events outside of the outbox: each is named
	// placed are lanes that were read in bulk and are acked as a whole. rows are the positions of their rows.
	placed sql.Fenced
	rows   []pg.Row
	known  bool                       // sql.AsKnown has passed
	locked map[int16]bool             // lanes that were this relay's in the settle
	gone   int                        // acked, and deleted from the outbox by another session
	added  map[int16][]delivery.Place // groups that lanes have after the settle
	parks  map[int16]bool             // lanes that have parked events after the settle

	acked struct {
		lanes     []int16
		ids, seqs []int64
	}
	hold struct {
		lanes      []int16
		ids, seqs  []int64
		partitions []int32
		sent       []bool
	}
	park struct {
		lanes         []int16
		ids           []int64
		alone, sent   []bool
		attempts      []int32
		errors, codes []string
	}
}

// tally counts the events of one or more lanes by their fates. Events that were held before are not among the held.
type tally struct {
	acked, drained, released int // published: all, from outbox_held, and from lists of parked keys
	parked, refused          int // all that are parked, and those of them that were refused themselves
	held                     map[delivery.Place]int
	first                    refused
}

// refused is the first refused event of a tally, for the log.
type refused struct {
	id    uuid.UUID
	topic string
	cause delivery.Cause
}

func (o *tally) hold(at delivery.Place, events int) {
	if o.held == nil {
		o.held = map[delivery.Place]int{}
	}
	o.held[at] += events
}

func (o *tally) add(other *tally) {
	if o.refused == 0 {
		o.first = other.first
	}
	o.acked, o.drained, o.released = o.acked+other.acked, o.drained+other.drained, o.released+other.released
	o.parked, o.refused = o.parked+other.parked, o.refused+other.refused
	for at, events := range other.held {
		o.hold(at, events)
	}
}

// Finish settles the lanes that are complete and gives all lanes back.
func (r *Cycle) Finish(ctx context.Context, s *pg.Session, c *Claim, result Result) error {
	set := &settling{
		epoch: c.Epoch, added: map[int16][]delivery.Place{}, parks: map[int16]bool{},
	}
	var verdicts []lanes.Verdict
	for i := range c.Parts {
		l := &c.Parts[i]
		switch {
		case result.Left[l.Lane]:
			verdicts = append(verdicts, lanes.Unsettled(&l.Grant, result.Late))
		case l.First == 0:
			verdicts = append(verdicts, lanes.Empty(&l.Grant, l.Behind > 0 || l.Work != takeNew || l.bulk))
		default:
			set.lanes = append(set.lanes, *l)
		}
	}
	r.takeHome(verdicts)
	if len(set.lanes) == 0 {
		return nil
	}
	set.gather(c, !r.Archive)
	since := time.Now()
	settled, err := r.settleForSure(ctx, s, set)
	took, failed := c.took+time.Since(since), 0
	if set.known || !pgerr.Is(err, pgerr.DivisionByZero) { // sql.AsKnown refuses no lane
		failed = r.overran(set.lanes[0].Lane, len(set.lanes), err)
	}
	var all tally
	verdicts = verdicts[:0]
	for i := range set.lanes {
		l := &set.lanes[i]
		var v lanes.Verdict
		switch {
		case err != nil && !pg.CommitUnknown(err):
			v = lanes.Unsettled(&l.Grant, false)
		case err != nil || !settled[l.Lane]:
			if err == nil && set.locked[l.Lane] {
				r.Log.Error("the journal entry of a claim is gone: its events were published and are sent again; who "+
					"deletes from outbox_claim?", "lane", l.Lane, "events", l.count)
			}
			v = lanes.Doubted(&l.Grant)
		default:
			all.add(&l.fates)
			v = lanes.Settled(&l.Grant, &lanes.Settlement{
				First: l.First, Floor: l.FloorAfter, Held: set.added[l.Lane], Parked: set.parks[l.Lane],
				More: l.Full, Bulk: l.much, Pace: l.Seen, Easily: took < r.Lease/8,
			})
		}
		verdicts = append(verdicts, v.Failed(failed))
	}
	r.takeHome(verdicts)
	if err != nil {
		return fmt.Errorf("relay: settle: %w", err)
	}
	if len(settled) > 0 {
		r.Progress.Settled()
	}
	r.reportSettled(&all, set.gone, time.Since(since))
	return nil
}

// gather sorts the events of complete lanes by their fates. With byPlace, lanes whose rows may still be where they were
// read are settled by those positions.
func (set *settling) gather(c *Claim, byPlace bool) {
	set.at = make(map[int16]*Part, len(set.lanes))
	mixed, moves, placed := map[int16]bool{}, map[int16]bool{}, map[int16]bool{}
	for i := range set.lanes {
		l := &set.lanes[i]
		set.at[l.Lane] = l
		mixed[l.Lane] = l.Work != takeNew
	}
	for i := range c.Items {
		it, lane := &c.Items[i], c.Events[i].Position.Lane
		mixed[lane] = mixed[lane] || it.From != delivery.FromOutbox
		moves[lane] = moves[lane] || it.Fate != delivery.Acked
	}
	delivery.NoteOvertaken(c.Events, c.Items, moves)
	for i := range set.lanes {
		l := &set.lanes[i]
		if !mixed[l.Lane] && !moves[l.Lane] {
			l.fates.acked = l.count // those of the others are counted one by one
		}
		switch {
		case mixed[l.Lane]:
			set.mixed.Add(l.Lane, l.Fence, l.First)
		case byPlace && l.bulk && !moves[l.Lane]:
			set.placed.Add(l.Lane, l.Fence, l.First)
			placed[l.Lane] = true
		default:
			set.plain.Add(l.Lane, l.Fence, l.First)
			if moves[l.Lane] {
				set.moved.Add(l.Lane, l.Fence, l.First)
			}
		}
	}
	for i := range c.Items {
		l := set.at[c.Events[i].Position.Lane]
		switch {
		case l == nil:
		case mixed[l.Lane] || moves[l.Lane]:
			set.gatherOne(c, i, l, mixed[l.Lane])
		case placed[l.Lane]:
			set.rows = append(set.rows, pg.Row{At: pgtype.TID(c.Items[i].At), ID: c.Items[i].ID})
		}
	}
	slices.SortFunc(set.rows, func(a, b pg.Row) int {
		return cmp.Or(cmp.Compare(a.At.BlockNumber, b.At.BlockNumber),
			cmp.Compare(a.At.OffsetNumber, b.At.OffsetNumber))
	})
}

func (set *settling) gatherOne(c *Claim, i int, l *Part, named bool) {
	e, it := &c.Events[i], &c.Items[i]
	switch it.Fate {
	case delivery.Acked:
		if named {
			set.acked.lanes, set.acked.ids = append(set.acked.lanes, l.Lane), append(set.acked.ids, it.ID)
			set.acked.seqs = append(set.acked.seqs, e.Position.Seq)
		}
		l.fates.acked++
		switch it.From {
		case delivery.FromHeld:
			l.fates.drained++
		case delivery.FromParked:
			l.fates.released++
		case delivery.FromOutbox:
		}
	case delivery.Held:
		h, to := &set.hold, delivery.At(e.Topic, it.Partition)
		h.lanes, h.ids, h.seqs = append(h.lanes, l.Lane), append(h.ids, it.ID), append(h.seqs, e.Position.Seq)
		h.partitions, h.sent = append(h.partitions, it.Partition), append(h.sent, it.MaybePublished)
		if it.From != delivery.FromHeld {
			l.fates.hold(to, 1)
		}
		if !l.Groups.Has(to) && !slices.Contains(set.added[l.Lane], to) {
			set.added[l.Lane] = append(set.added[l.Lane], to)
		}
	case delivery.Parked:
		p := &set.park
		attempts := int32(1)
		if it.Behind {
			attempts = 0
		} else if l.fates.refused++; l.fates.refused == 1 {
			l.fates.first = refused{e.ID, e.Topic, *it.Cause}
		}
		p.lanes, p.ids, p.alone, p.sent = append(p.lanes, l.Lane), append(p.ids, it.ID), append(p.alone, it.Alone),
			append(p.sent, it.MaybePublished)
		p.attempts, p.errors, p.codes = append(p.attempts, attempts), append(p.errors, it.Cause.Error),
			append(p.codes, it.Cause.Code)
		set.parks[l.Lane] = true
		l.fates.parked++
	case delivery.Undecided: // not in a lane that is complete
	}
}

// settleForSure repeats a settle that certainly did not happen (a lock timeout, a deadlock), as long as the lanes are
// this relay's: claiming them again instead would publish everything twice.
func (r *Cycle) settleForSure(ctx context.Context, s *pg.Session, set *settling) (settled map[int16]bool, err error) {
	// A conflict that lasts may be one lane's: the lanes are then settled apart.
	const chanceConflicts = 5
	pause, stayed := outage.NewBackOff(), false
	for conflicts := 1; ; conflicts++ {
		settled, err = r.settle(ctx, s, set)
		if len(set.placed.Lanes) > 0 && pgerr.Is(err, pgerr.DivisionByZero) {
			r.Log.Info("rows are not where the claim read them (was the table rewritten, or were events deleted?): " +
				"settled by their ids instead")
			set.plain, set.placed, set.rows = set.plain.With(&set.placed), sql.Fenced{}, nil
			continue
		}
		if pgerr.Is(err, pgerr.UndefinedObject) && !stayed { // or somebody deleted them at the same moment
			stayed = true
			continue
		}
		if err == nil || !pgerr.Retry(err) || conflicts >= chanceConflicts || ctx.Err() != nil {
			return settled, err
		}
		_ = sleep.For(ctx, pause.NextBackOff())
	}
}

// settle deletes the journal entries of the lanes, and deletes or moves the events that they name. It returns the lanes
// whose entries were there; in the others it changed nothing.
func (r *Cycle) settle(ctx context.Context, s *pg.Session, set *settling) (settled map[int16]bool, err error) {
	settled, set.known = make(map[int16]bool, len(set.lanes)), false
	set.locked = make(map[int16]bool, len(set.lanes))
	read := func(rows pgx.Rows) error {
		return pg.EachLane(rows, func(lane int16) { settled[lane] = true })
	}
	deleted := func(rows pgx.Rows) error {
		var lane int16
		var found int64
		acked := 0
		_, err := pgx.ForEachRow(rows, []any{&lane, &found}, func() error {
			settled[lane], acked = true, acked+set.at[lane].fates.acked
			return nil
		})
		set.gone = max(0, acked-int(found))
		return err
	}
	rest, open := set.plain.With(&set.mixed), set.moved.With(&set.mixed)
	all, none := set.placed.With(&rest), sql.Fenced{}
	err = s.Send(ctx, pg.Transaction(r.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(r.SQL(sql.Lock), all.Lanes, all.Fences, r.Owner).Query(func(rows pgx.Rows) error {
			return pg.EachLane(rows, func(lane int16) { set.locked[lane] = true })
		})
		// On a server that took over without the take-over of a lane, the lane may have come back under the fence that
		// it had, with another entry under this number.
		b.Queue(r.SQL(sql.AsKnown), none.Lanes, none.Fences, r.Owner, none.Firsts, set.epoch).
			Exec(func(pgconn.CommandTag) error { set.known = true; return nil })
		if len(set.acked.lanes) > 0 {
			r.queueAcked(b, set, &set.mixed)
		}
		if p := &set.park; len(p.lanes) > 0 {
			b.Queue(r.SQL(sql.SettlePark), open.Lanes, open.Fences, r.Owner, open.Firsts, p.lanes, p.ids, p.alone,
				p.sent, p.attempts, p.errors, p.codes)
		}
		if h := &set.hold; len(h.lanes) > 0 {
			b.Queue(r.SQL(sql.SettleHold), open.Lanes, open.Fences, r.Owner, open.Firsts, h.lanes, h.ids, h.seqs,
				h.partitions, h.sent)
		}
		// The entry's events that are still in the outbox are acked.
		if k := &set.plain; len(k.Lanes) > 0 {
			r.queueSettled(b, set, k).Query(deleted)
		}
		if k := &set.placed; len(k.Lanes) > 0 {
			b.Queue(r.SQL(sql.SettlePlaced), k.Lanes, k.Fences, r.Owner, k.Firsts, pg.RowPlaces(set.rows),
				pg.RowIDs(set.rows)).Query(read)
		}
		if k := &set.mixed; len(k.Lanes) > 0 {
			b.Queue(r.SQL(sql.SettleEntries), k.Lanes, k.Fences, r.Owner, k.Firsts).Query(read)
		}
	}))
	return settled, err
}

// reportSettled reports the result of a settle: what became of the events of the lanes that were settled. What became
// of the others is their next owners' to say.
func (r *Cycle) reportSettled(n *tally, gone int, took time.Duration) {
	o := &r.Observer
	if n.acked > 0 && o.Settled != nil {
		o.Settled(n.acked, gone, took)
	}
	if gone > 0 {
		r.Log.Warn("events were deleted from the outbox while the relay published them: somebody else deletes there",
			"events", gone)
	}
	if n.drained > 0 && o.Drained != nil {
		o.Drained(n.drained)
	}
	if n.released > 0 && o.Released != nil {
		o.Released(n.released)
	}
	for at, count := range n.held {
		if o.Held != nil {
			o.Held(at.Topic, at.Partition, count)
		}
	}
	if n.parked == 0 {
		return
	}
	if o.Parked != nil {
		o.Parked(n.parked)
	}
	r.Log.Error("events were refused and are parked; see `relay parked list`", "events", n.parked, "refused", n.refused,
		"first", n.first.id, "topic", n.first.topic, "code", n.first.cause.Code, "error", n.first.cause.Error)
}

// queueSettled settles lanes whose events are all acked and in the outbox: they are deleted, or moved to the archive.
func (r *Cycle) queueSettled(b *pgx.Batch, set *settling, k *sql.Fenced) *pgx.QueuedQuery {
	if r.Archive {
		return b.Queue(r.SQL(sql.SettleArchived), k.Lanes, k.Fences, r.Owner, k.Firsts, set.epoch)
	}
	return b.Queue(r.SQL(sql.Settle), k.Lanes, k.Fences, r.Owner, k.Firsts)
}

// queueAcked does the same with the acked events of other lanes.
func (r *Cycle) queueAcked(b *pgx.Batch, set *settling, k *sql.Fenced) {
	a := &set.acked
	if r.Archive {
		b.Queue(r.SQL(sql.SettleAckedArchived), k.Lanes, k.Fences, r.Owner, k.Firsts, a.lanes, a.ids, a.seqs, set.epoch)
		return
	}
	b.Queue(r.SQL(sql.SettleAcked), k.Lanes, k.Fences, r.Owner, k.Firsts, a.lanes, a.ids)
}
