// Package keeper keeps a relay alive among the others: its lease, its share of the lanes, and what it says of itself.
package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

// Keeper runs the heartbeats of a relay.
type Keeper struct {
	*start.Start
	Part          *wal.Part
	Name, Version string        // of the relay, and of this program
	ProvedEvery   time.Duration // [ProvedEvery]
	ResignFor     time.Duration // how long it may take to give the lanes back at the end

	members atomic.Int64 // relays alive, as of the last heartbeat
	enough  atomic.Bool  // owns its share of the lanes
	beaten  atomic.Int64 // Unix nanoseconds of the last heartbeat
	proof   *proof       // nil: there was none yet
}

// Noticed tells the keeper what a probe has seen: whether lanes are free, and how many relays are alive. If that is
// news, a heartbeat follows at once.
func (k *Keeper) Noticed(free bool, members int64, now time.Time) {
	if (free || members != k.members.Load()) && now.Sub(time.Unix(0, k.beaten.Load())) > beatAtLeast {
		k.Signals.Beat()
	}
}

// HasShare reports whether the relay has its share of the lanes.
func (k *Keeper) HasShare() bool { return k.beaten.Load() != 0 && k.enough.Load() }

// Join is the first heartbeat of a relay without a loop, which publishes from the table.
func (k *Keeper) Join(ctx context.Context, s *pg.Session) error {
	err := k.checkSequence(ctx, s)
	if err == nil {
		err = k.Beat(ctx, s)
	}
	if err != nil {
		return cmp.Or(startError(err), err)
	}
	return k.assignPolled(ctx, s)
}

// Beat is one heartbeat: record that this relay lives, renew its lanes, raise the fences of lanes in doubt, take free
// lanes up to its share, and mark those beyond it as leaving. No other step of a relay changes fences; operators do, by
// `relay: fence` and `relay: refence`.
func (k *Keeper) Beat(ctx context.Context, s *pg.Session) error {
	before := time.Now() // the local deadline counts from before the database's clock was read
	doubted := k.Lanes.InDoubt()
	owned := make(map[int16]int64, lanes.Count)
	var members members
	var epoch string
	var same bool
	lease, well := sql.Interval(k.Lease), k.reachesKafka(ctx)
	trouble, troubled := k.trouble()
	checked := k.Same()
	err := s.Send(ctx, pg.Transaction(k.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(k.SQL(sql.Unfit)).QueryRow(unfit)
		b.Queue(k.SQL(sql.Present), k.Owner)
		b.Queue(k.SQL(sql.Renew), k.Owner, lease, doubted).Query(pg.ReadByLane(owned))
		checked.Queue(b)
		b.Queue(k.SQL(sql.Meta)).QueryRow(func(row pgx.Row) error { return row.Scan(&epoch, &same) })
		b.Queue(k.SQL(sql.Join), k.Owner, k.Name, lease, well, k.Version, trouble, troubled,
			k.lastAcked()).QueryRow(func(row pgx.Row) error {
			var now time.Time
			if err := row.Scan(&now); err != nil {
				return err
			}
			k.Clock.Set(now)
			return nil
		})
		b.Queue(k.SQL(sql.Prune), lease)
		b.Queue(k.SQL(sql.Members), lease, k.Owner).Query(func(rows pgx.Rows) error {
			var id uuid.UUID
			var counts bool
			_, err := pgx.ForEachRow(rows, []any{pg.ID{To: &id}, &counts},
				func() error { members.add(id, counts); return nil })
			return err
		})
	}))
	if err = checked.Error(err); err != nil {
		k.beatFailed(err)
		return err
	}
	// Not only for taken lanes: one that a pump skipped, because it was late or leaving, is ready and waits.
	defer k.Signals.Kick()
	k.adopt(owned, before)
	if !same {
		epoch = "" // the next claim begins one
	}
	k.Lanes.Renumber(epoch)
	return k.balance(ctx, s, members, owned, before)
}

// balance brings the number of lanes to the relay's share.
func (k *Keeper) balance(ctx context.Context, s *pg.Session, members members, owned map[int16]int64,
	before time.Time,
) error {
	share := k.Part.Share(fairShare(members.ids, k.Owner))
	if k.Foreign.Load() && k.Part.Polls() {
		share = 0 // a relay of the right cluster publishes what this one holds
	}
	k.members.Store(members.counted)
	grace := time.Duration(0)
	// This relay is not counted: the others have the first claim on ended leases.
	if members.counted > 0 && int(members.counted) < len(members.ids) {
		grace = k.Lease / 3
	}
	switch want := share - len(owned); {
	case want < 0:
		k.Lanes.Leave(-want)
	case want >= 0:
		k.Lanes.Stay()
		if want == 0 {
			break
		}
		var taken takenOver
		checked := k.Same()
		err := s.Send(ctx, pg.Transaction(k.Lease, pg.Disk, func(b *pgx.Batch) {
			b.Queue(k.SQL(sql.TakeOver), k.Owner, sql.Interval(k.Lease), want, sql.Interval(grace)).Query(
				func(rows pgx.Rows) error { return taken.read(rows, owned) })
			checked.Queue(b)
		}))
		if err = checked.Error(err); err != nil {
			k.beatFailed(err)
			return err
		}
		if len(taken.lanes) > 0 {
			k.Log.Warn("lanes of relays whose lease ran out are taken over", "count", len(taken.lanes), "lanes",
				taken.lanes, "from", taken.from)
		}
		k.adopt(owned, before)
	}
	k.enough.Store(len(owned) >= share)
	return k.release(ctx, s)
}

// release gives back leaving lanes that no pump works on.
func (k *Keeper) release(ctx context.Context, s *pg.Session) error {
	leaving := k.Lanes.Releasable()
	if len(leaving) == 0 {
		return nil
	}
	err := k.releaseLanes(ctx, s, leaving)
	if err != nil {
		k.beatFailed(err)
	}
	return err
}

// releaseLanes gives up those of these lanes that this relay owns. Repeated, it changes nothing.
func (k *Keeper) releaseLanes(ctx context.Context, s *pg.Session, lanes []int16) error {
	var gone []int16
	err := s.Send(ctx, pg.Transaction(k.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(k.SQL(sql.Release), k.Owner, lanes).Query(pg.ReadLanes(&gone))
	}))
	if err != nil {
		return err
	}
	k.Lanes.Forget(lanes)
	k.reportLeft(gone, false)
	k.reportLeft(slices.DeleteFunc(lanes, func(lane int16) bool { return slices.Contains(gone, lane) }), true)
	return nil
}

// beatFailed: after an unknown COMMIT a take-over or a release may still happen, so no lane is certain any more.
func (k *Keeper) beatFailed(err error) {
	if pg.CommitUnknown(err) {
		k.Lanes.DoubtAll()
	}
}

func (k *Keeper) adopt(owned map[int16]int64, before time.Time) {
	taken, lost := k.Lanes.Leased(owned, before.Add(k.Lease))
	k.reportLeft(lost, true)
	lost = slices.DeleteFunc(lost, func(lane int16) bool { _, back := owned[lane]; return back })
	if len(lost) > 0 {
		slices.Sort(lost)
		k.Log.Warn("lanes were lost: their lease ran out, or their fence was raised", "count", len(lost), "lanes", lost)
	}
	for _, lane := range taken {
		if k.Observer.LaneTaken != nil {
			k.Observer.LaneTaken(lane, owned[lane])
		}
	}
	if len(taken) > 0 {
		k.Log.Debug("lanes taken", "lanes", taken)
	}
}

func (k *Keeper) reportLeft(lanes []int16, lost bool) {
	for _, lane := range lanes {
		if k.Observer.LaneLeft != nil {
			k.Observer.LaneLeft(lane, lost)
		}
	}
}

// reachesKafka reports whether this relay reaches its publisher. A relay with lanes knows from its attempts, until they
// meet another cluster; another one asks, but not at its start, when it does not count yet.
func (k *Keeper) reachesKafka(ctx context.Context) bool {
	var err error
	if k.To.Reach != nil && k.beaten.Load() != 0 && (k.Foreign.Load() || len(k.Lanes.All()) == 0) {
		if err = k.AskKafka(ctx); err == nil || start.IsForeign(err) {
			k.Foreign.Store(err != nil)
		}
	}
	k.Kafka.Report("keeper", err, time.Now())
	return !k.Kafka.Away()
}

// trouble is what fails while this relay tries again and again, and for how long: no value of an event is in it.
func (k *Keeper) trouble() (text string, lasts *string) {
	for _, m := range []*outage.Monitor{k.Kafka, k.Postgres} {
		if since, err := m.Trouble(); err != nil {
			return m.System + ": " + start.Shown(err), interval(time.Since(since))
		}
	}
	if p := k.proof; p != nil && p.err != nil {
		return start.Shown(p.err), interval(time.Since(p.since))
	}
	if since, err := k.standing(time.Now()); err != nil {
		return err.Error(), interval(time.Since(since))
	}
	// One of the refused lanes stands for all.
	if text, since := k.Refused(time.Now()); text != "" {
		return text, interval(time.Since(since))
	}
	if text, age := k.Held(time.Now()); text != "" {
		return text, interval(age)
	}
	if since, err := k.Part.Unavailable(); err != nil { // the least: events are published
		return "events are published from the table: " + start.Shown(err), interval(time.Since(since))
	}
	return "", nil
}

// lastAcked is how long ago Kafka last acked an event; nil: it has not.
func (k *Keeper) lastAcked() *string {
	if ago, ever := k.Health.LastAcked(time.Now()); ever {
		return interval(ago)
	}
	return nil
}

func interval(d time.Duration) *string {
	text := sql.Interval(d)
	return &text
}

// members are the relays that share the lanes: those that count, and this one.
type members struct {
	ids     []uuid.UUID
	counted int64
}

func (m *members) add(id uuid.UUID, counts bool) {
	m.ids = append(m.ids, id)
	if counts {
		m.counted++
	}
}

// takenOver are lanes that were taken from relays, and their former owners.
type takenOver struct {
	lanes []int16
	from  []string
}

func (t *takenOver) read(rows pgx.Rows, into map[int16]int64) error {
	var lane int16
	var fence int64
	var whose string
	_, err := pgx.ForEachRow(rows, []any{&lane, &fence, &whose}, func() error {
		into[lane] = fence
		if whose != "" {
			t.lanes = append(t.lanes, lane)
			if !slices.Contains(t.from, whose) {
				t.from = append(t.from, whose)
			}
		}
		return nil
	})
	return err
}

// fairShare returns how many lanes each of several relays should own: equal shares, and the first relays by id own one
// more if 32 does not divide.
func fairShare(members []uuid.UUID, me uuid.UUID) int {
	slices.SortFunc(members, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	rank := slices.Index(members, me)
	if rank < 0 {
		return 0
	}
	share := lanes.Count / len(members)
	if rank < lanes.Count%len(members) {
		share++
	}
	return share
}

// Run runs heartbeats until the pumps are done, then gives every lane back. It calls other when the outbox is not the
// one that the program has checked. It fails only when the relay starts (first), if waiting cannot help.
func (k *Keeper) Run(work context.Context, pumpsDone <-chan struct{}, first bool, other func()) error {
	s := k.Session("keeper")
	defer s.Close()
	pause, proved := outage.NewBackOff(), time.Time{}
	for {
		err := error(nil)
		if first {
			err = k.checkSequence(work, s)
		}
		if err == nil {
			err = k.Beat(work, s)
		}
		if err != nil && first {
			if misconfigured := startError(err); misconfigured != nil {
				return misconfigured
			}
		}
		assigned := err
		switch {
		case errors.Is(err, start.ErrOther): // the server has answered
			other()
			assigned = nil
		case err == nil && k.Part.Polls():
			assigned = k.assignPolled(work, s)
		}
		k.Postgres.Report(s.Name, assigned, s.Heard())
		wait := k.Lease / 3
		switch {
		case err != nil:
			wait = min(wait, pause.NextBackOff())
		default:
			first = false
			pause.Reset()
			k.beaten.Store(time.Now().UnixNano())
			if now := time.Now(); now.Sub(proved) > k.ProvedEvery {
				proved = now
				k.prove(work, s)
			}
			if !k.enough.Load() || k.Lanes.Moving() {
				wait = min(wait, beatAtLeast)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-pumpsDone:
			timer.Stop()
			return k.Resign(work, s)
		case <-k.Signals.Beats:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// startError returns the error of Run if its first heartbeat fails in a way that waiting cannot repair, and nil
// otherwise. Later, the same errors count as an outage: a revoked grant, for example.
func startError(err error) error {
	if errors.Is(err, ErrTables) {
		return err
	}
	switch pgerr.Code(err) {
	case "42P01", "3F000", "42703":
		return fmt.Errorf("%w: run `relay migrate`, or set Schema: %w", ErrTables, err)
	case "42501":
		return fmt.Errorf("%w: the role lacks a grant on the outbox's tables: %w", ErrAccess, err)
	case "28000", "28P01", "3D000":
		return fmt.Errorf("%w: check user, password and database: %w", ErrAccess, err)
	}
	return nil
}

// ErrTables is relay.ErrTables.
var ErrTables = errors.New("relay: the outbox's tables are missing, old, or not as migrations made them")

// ErrAccess is relay.ErrAccess.
var ErrAccess = errors.New("relay: Postgres refuses access")

// unfit returns why no relay can work with the tables. Events of a missing lane would wait for ever without a word.
// Rows are deleted by their positions, and each partition or child table has rows at the same ones.
func unfit(row pgx.Row) error {
	var missing int64
	var unnumbered bool
	var divided string
	switch err := row.Scan(&missing, &unnumbered, &divided); {
	case err != nil:
		return err
	case divided != "":
		return fmt.Errorf("%w: %s has partitions or child tables, and must have none: detach them, or alter table ... "+
			"no inherit", ErrTables, divided)
	case missing > 0:
		return fmt.Errorf("%w: outbox_lane lacks %d of its %d rows: `relay fence` makes them", ErrTables, missing,
			lanes.Count)
	case unnumbered:
		return fmt.Errorf("%w: outbox_meta lacks its row: `relay fence` makes it", ErrTables)
	}
	return nil
}

// beatAtLeast is the pause between heartbeats while lanes change hands, and the least one before a requested one.
const beatAtLeast = 500 * time.Millisecond

// Resign gives all lanes back and leaves the members, so that the others need not wait for leases to run out. It has a
// few seconds of its own, whatever the drain has used.
func (k *Keeper) Resign(work context.Context, s *pg.Session) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(work), k.ResignFor)
	defer cancel()
	defer func() { // lanes in doubt may be another's: their lease runs out
		rest := k.Lanes.All()
		k.Lanes.Forget(rest)
		k.reportLeft(rest, true)
	}()
	k.Lanes.Leave(-1)
	if all := k.Lanes.Releasable(); len(all) > 0 {
		err := k.releaseLanes(ctx, s, all)
		if err != nil {
			// Nothing went over this connection since the last heartbeat: the server may have been restarted meanwhile.
			err = k.releaseLanes(ctx, s, all)
		}
		if err != nil {
			return fmt.Errorf("relay: giving the lanes back (their leases run out by themselves): %w", err)
		}
	}
	return s.Send(ctx, pg.Transaction(k.Lease, pg.Disk, func(b *pgx.Batch) { b.Queue(k.SQL(sql.Leave), k.Owner) }))
}

// checkSequence fails if ids do not come from the sequence that floors use: they would follow one that does not number
// the table's ids.
func (k *Keeper) checkSequence(ctx context.Context, s *pg.Session) error {
	var other string
	err := s.Send(ctx, pg.Transaction(k.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(k.SQL(sql.OtherSequence)).QueryRow(func(row pgx.Row) error { return row.Scan(&other) })
	}))
	if err != nil || other == "" {
		return err
	}
	return fmt.Errorf("%w: outbox_event takes its ids from another sequence than outbox_event_id_seq, from %s: give "+
		"what has that name another, and the table's sequence that name (alter sequence ... rename to ...)", ErrTables,
		other)
}
