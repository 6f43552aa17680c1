package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/redact"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// beat is one heartbeat: record that this relay lives, renew its lanes, raise the fences of lanes in doubt, take free
// lanes up to its share, and mark those beyond it as leaving. No other step of a relay changes fences; operators do, by
// `relay: fence` and `relay: refence`.
func (r *Relay) beat(ctx context.Context, s *session) error {
	before := time.Now() // the local deadline counts from before the database's clock was read
	doubted := r.lanes.InDoubt()
	owned := make(map[int16]int64, Lanes)
	var members members
	var epoch string
	var same bool
	lease, well := sql.Interval(r.cfg.Lease), r.reachesKafka(ctx)
	trouble, troubled := r.trouble()
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Unfit)).QueryRow(unfit)
		b.Queue(r.sql(sql.Present), r.owner)
		b.Queue(r.sql(sql.Renew), r.owner, lease, doubted).Query(readByLane(owned))
		b.Queue(r.sql(sql.Meta)).QueryRow(func(row pgx.Row) error { return row.Scan(&epoch, &same) })
		b.Queue(r.sql(sql.Join), r.owner, r.cfg.Name, lease, well, r.version, trouble, troubled,
			r.lastAcked()).QueryRow(func(row pgx.Row) error {
			now := reading{local: time.Now()}
			err := row.Scan(&now.database)
			r.clock.Store(&now)
			return err
		})
		b.Queue(r.sql(sql.Prune), lease)
		b.Queue(r.sql(sql.Members), lease, r.owner).Query(func(rows pgx.Rows) error {
			var id uuid.UUID
			var counts bool
			_, err := pgx.ForEachRow(rows, []any{idScanner{&id}, &counts},
				func() error { members.add(id, counts); return nil })
			return err
		})
	}))
	if err != nil {
		r.beatFailed(err)
		return err
	}
	// Not only for taken lanes: one that a pump skipped, because it was late or leaving, is ready and waits.
	defer r.kickPumps()
	r.adopt(owned, before)
	if !same {
		epoch = "" // the next claim begins one
	}
	r.lanes.Renumber(epoch)
	return r.balance(ctx, s, members, owned, before)
}

// balance brings the number of lanes to the relay's share.
func (r *Relay) balance(ctx context.Context, s *session, members members, owned map[int16]int64,
	before time.Time,
) error {
	share := r.share(fairShare(members.ids, r.owner))
	r.members.Store(members.counted)
	grace := time.Duration(0)
	// This relay is not counted: the others have the first claim on ended leases.
	if members.counted > 0 && int(members.counted) < len(members.ids) {
		grace = r.cfg.Lease / 3
	}
	switch want := share - len(owned); {
	case want < 0:
		r.lanes.Leave(-want)
	case want >= 0:
		r.lanes.Stay()
		if want == 0 {
			break
		}
		var taken takenOver
		err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
			b.Queue(r.sql(sql.TakeOver), r.owner, sql.Interval(r.cfg.Lease), want, sql.Interval(grace)).Query(
				func(rows pgx.Rows) error { return taken.read(rows, owned) })
		}))
		if err != nil {
			r.beatFailed(err)
			return err
		}
		if len(taken.lanes) > 0 {
			r.log.Warn("lanes of relays whose lease ran out are taken over", "count", len(taken.lanes), "lanes",
				taken.lanes, "from", taken.from)
		}
		r.adopt(owned, before)
	}
	r.short.Store(len(owned) < share)
	return r.release(ctx, s)
}

// release gives back leaving lanes that no pump works on.
func (r *Relay) release(ctx context.Context, s *session) error {
	leaving := r.lanes.Releasable()
	if len(leaving) == 0 {
		return nil
	}
	err := r.releaseLanes(ctx, s, leaving)
	if err != nil {
		r.beatFailed(err)
	}
	return err
}

// releaseLanes gives up those of these lanes that this relay owns. Repeated, it changes nothing.
func (r *Relay) releaseLanes(ctx context.Context, s *session, lanes []int16) error {
	var gone []int16
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Release), r.owner, lanes).Query(readLanes(&gone))
	}))
	if err != nil {
		return err
	}
	r.lanes.Forget(lanes)
	r.reportLeft(gone, false)
	r.reportLeft(slices.DeleteFunc(lanes, func(lane int16) bool { return slices.Contains(gone, lane) }), true)
	return nil
}

// beatFailed: after an unknown COMMIT a take-over or a release may still happen, so no lane is certain any more.
func (r *Relay) beatFailed(err error) {
	if pg.CommitUnknown(err) {
		r.lanes.DoubtAll()
	}
}

func (r *Relay) adopt(owned map[int16]int64, before time.Time) {
	taken, lost := r.lanes.Leased(owned, before.Add(r.cfg.Lease))
	r.reportLeft(lost, true)
	lost = slices.DeleteFunc(lost, func(lane int16) bool { _, back := owned[lane]; return back })
	if len(lost) > 0 {
		slices.Sort(lost)
		r.log.Warn("lanes were lost: their lease ran out, or their fence was raised", "count", len(lost), "lanes", lost)
	}
	for _, lane := range taken {
		if r.cfg.Observer.LaneTaken != nil {
			r.cfg.Observer.LaneTaken(lane, owned[lane])
		}
	}
	if len(taken) > 0 {
		r.log.Debug("lanes taken", "lanes", taken)
	}
}

func (r *Relay) reportLeft(lanes []int16, lost bool) {
	for _, lane := range lanes {
		if r.cfg.Observer.LaneLeft != nil {
			r.cfg.Observer.LaneLeft(lane, lost)
		}
	}
}

// reachesKafka reports whether this relay reaches its publisher. A relay with lanes knows from its attempts; another
// one asks, but not at its start, when it does not count yet.
func (r *Relay) reachesKafka(ctx context.Context) bool {
	var err error
	if to, ok := r.to.(Reacher); ok && r.beaten.Load() != 0 && len(r.lanes.All()) == 0 {
		err = r.askKafka(ctx, to)
	}
	r.kafka.Report("keeper", err, time.Now())
	return !r.kafka.Away()
}

// trouble is what fails while this relay tries again and again, and for how long: no value of an event is in it.
func (r *Relay) trouble() (text string, lasts *string) {
	for _, m := range []*outage.Monitor{r.kafka, r.postgres} {
		if since, err := m.Trouble(); err != nil {
			return m.System + ": " + delivery.ErrorText(redact.Error(err), longestTrouble), interval(time.Since(since))
		}
	}
	if p := r.proof.Load(); p != nil && p.err != nil {
		return delivery.ErrorText(redact.Error(p.err), longestTrouble), interval(time.Since(p.since))
	}
	if since, err := r.standing(time.Now()); err != nil {
		return err.Error(), interval(time.Since(since))
	}
	// One of the refused lanes stands for all.
	mine := r.lanes.All()
	r.refused.Range(func(lane, what any) bool {
		refused := what.(refusedLane)
		if !slices.Contains(mine, lane.(int16)) || refused.over(time.Now()) {
			r.refused.Delete(lane)
			return true
		}
		text = fmt.Sprintf("lane %d: ", lane) + delivery.ErrorText(redact.Error(refused.last), longestTrouble)
		lasts = interval(time.Since(refused.since))
		return false
	})
	if text == "" {
		text, lasts = r.holds(time.Now())
	}
	if since, err := r.walUnavailable(); text == "" && err != nil { // the least: events are published
		text = "events are published from the table: " + delivery.ErrorText(redact.Error(err), longestTrouble)
		lasts = interval(time.Since(since))
	}
	return text, lasts
}

// holdsShown is how many of the places that a relay holds events for it names.
const holdsShown = 3

// holds is why it holds events, by place, the oldest first. Queries know the text by its first word.
func (r *Relay) holds(now time.Time) (text string, lasts *string) {
	type held struct {
		place, why string
		age        time.Duration
	}
	var list []held
	r.closed.Range(func(key, why any) bool {
		at, age := key.(delivery.Place), r.health.Age(key.(delivery.Place), now)
		if age == 0 {
			r.closed.CompareAndDelete(key, why)
			return true
		}
		place := "topic " + at.Topic
		if at.Partition != delivery.WholeTopic {
			place = fmt.Sprintf("%s/%d", place, at.Partition)
		}
		list = append(list, held{place, delivery.ErrorText(redact.Error(why.(error)), longestTrouble), age})
		return true
	})
	if len(list) == 0 {
		return "", nil
	}
	slices.SortFunc(list, func(a, b held) int {
		return cmp.Or(cmp.Compare(b.age, a.age), cmp.Compare(a.place, b.place))
	})
	var parts []string
	for _, h := range list[:min(len(list), holdsShown)] {
		parts = append(parts, h.place+" for "+h.age.Round(time.Second).String()+": "+h.why)
	}
	if more := len(list) - holdsShown; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return "holds " + strings.Join(parts, "; "), interval(list[0].age)
}

// longestTrouble bounds what a heartbeat carries of an error, in bytes.
const longestTrouble = 200

// lastAcked is how long ago Kafka last acked an event; nil: it has not.
func (r *Relay) lastAcked() *string {
	if ago, ever := r.health.LastAcked(time.Now()); ever {
		return interval(ago)
	}
	return nil
}

func interval(d time.Duration) *string {
	text := sql.Interval(d)
	return &text
}

func (r *Relay) askKafka(ctx context.Context, to Reacher) error {
	asking, cancel := context.WithTimeout(ctx, r.cfg.Lease/3)
	defer cancel()
	return to.Reach(asking)
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
	share := Lanes / len(members)
	if rank < Lanes%len(members) {
		share++
	}
	return share
}

// keep runs heartbeats until the pumps are done, then gives every lane back. It fails only at the start of Run (first),
// if waiting cannot help.
func (r *Relay) keep(work context.Context, pumpsDone <-chan struct{}, first bool) error {
	s := r.session("keeper")
	defer s.Close()
	pause, proved := outage.NewBackOff(), time.Time{}
	for {
		err := error(nil)
		if first {
			err = r.checkSequence(work, s)
		}
		if err == nil {
			err = r.beat(work, s)
		}
		if err != nil && first {
			if misconfigured := startError(err); misconfigured != nil {
				return misconfigured
			}
		}
		assigned := err
		if err == nil && r.polls() {
			assigned = r.assignPolled(work, s)
		}
		r.postgres.Report(s.Name, assigned, s.Heard())
		wait := r.cfg.Lease / 3
		switch {
		case err != nil:
			wait = min(wait, pause.NextBackOff())
		default:
			first = false
			pause.Reset()
			r.beaten.Store(time.Now().UnixNano())
			if now := time.Now(); now.Sub(proved) > r.provedEvery {
				proved = now
				r.prove(work, s)
			}
			if r.short.Load() || r.lanes.Moving() {
				wait = min(wait, beatAtLeast)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-pumpsDone:
			timer.Stop()
			return r.resign(work, s)
		case <-r.beatRequested:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// startError returns the error of Run if its first heartbeat fails in a way that waiting cannot repair, and nil
// otherwise. Later, the same errors count as an outage: a revoked grant, for example.
func startError(err error) error {
	if errors.Is(err, errOtherSequence) || errors.Is(err, errUnfit) {
		return err
	}
	switch pgerr.Code(err) {
	case "42P01", "3F000", "42703":
		return fmt.Errorf("relay: the outbox tables are missing or old: run `relay migrate`, or set Schema: %w", err)
	case "42501":
		return fmt.Errorf("relay: the role lacks a grant on the outbox tables: %w", err)
	case "28000", "28P01", "3D000":
		return fmt.Errorf("relay: Postgres refuses the connection, check user, password and database: %w", err)
	}
	return nil
}

// errUnfit: no relay can work with the tables. Events of a missing lane would wait for ever without a word. Rows are
// deleted by their positions, and each partition or child table has rows at the same ones.
var errUnfit = errors.New("relay: the tables of the outbox are not as migrations made them")

func unfit(row pgx.Row) error {
	var missing int64
	var unnumbered bool
	var divided string
	switch err := row.Scan(&missing, &unnumbered, &divided); {
	case err != nil:
		return err
	case divided != "":
		return fmt.Errorf("%w: %s has partitions or child tables, and must have none: detach them, or alter table ... "+
			"no inherit", errUnfit, divided)
	case missing > 0:
		return fmt.Errorf("%w: outbox_lane lacks %d of its %d rows: `relay fence` makes them", errUnfit, missing, Lanes)
	case unnumbered:
		return fmt.Errorf("%w: outbox_meta lacks its row: `relay fence` makes it", errUnfit)
	}
	return nil
}

// beatAtLeast is the pause between heartbeats while lanes change hands, and the least one before a requested one.
const beatAtLeast = 500 * time.Millisecond

// resign gives all lanes back and leaves the members, so that the others need not wait for leases to run out. It has a
// few seconds of its own, whatever the drain has used.
func (r *Relay) resign(work context.Context, s *session) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(work), r.resignFor)
	defer cancel()
	defer func() { // lanes in doubt may be another's: their lease runs out
		rest := r.lanes.All()
		r.lanes.Forget(rest)
		r.reportLeft(rest, true)
	}()
	r.lanes.Leave(-1)
	if all := r.lanes.Releasable(); len(all) > 0 {
		err := r.releaseLanes(ctx, s, all)
		if err != nil {
			// Nothing went over this connection since the last heartbeat: the server may have been restarted meanwhile.
			err = r.releaseLanes(ctx, s, all)
		}
		if err != nil {
			return fmt.Errorf("relay: giving the lanes back (their leases run out by themselves): %w", err)
		}
	}
	return s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) { b.Queue(r.sql(sql.Leave), r.owner) }))
}

// requestBeat asks for a heartbeat now.
func (r *Relay) requestBeat() {
	select {
	case r.beatRequested <- struct{}{}:
	default:
	}
}
