package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// walState is what the database says of the WAL source.
type walState struct {
	level           string
	standbys        bool // commits wait for a synchronous standby
	name            string
	epoch           string
	same            bool // the numbering is of this server and timeline
	now             int64
	published       bool // the publication is there and right
	slot            string
	base, confirmed int64
	confirmedAt     time.Time
	here            bool // what is known of the slot was noted on this server and timeline
	mine, alive     bool // who read it last: this relay; a relay that lives
	exists, ours    bool
	pid             int32
	slotConfirmed   int64
	walStatus       string
	hashesDiffer    int64
}

func (r *Relay) readWALState(ctx context.Context, s *session) (*walState, error) {
	st := &walState{}
	var texts []string
	var hashes []int64
	for text, hash := range sql.Vectors() {
		texts, hashes = append(texts, text), append(hashes, hash)
	}
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.WALState), r.owner).QueryRow(func(row pgx.Row) error {
			return row.Scan(&st.level, &st.standbys, &st.name, &st.epoch, &st.same, &st.now, &st.published, &st.slot, &st.base, &st.confirmed, &st.confirmedAt, &st.here,
				&st.mine, &st.alive, &st.exists, &st.ours, &st.pid, &st.slotConfirmed, &st.walStatus)
		})
		b.Queue(r.sql(sql.HashVectors), texts, hashes).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				st.hashesDiffer++
			}
			return rows.Err()
		})
	}))
	if err != nil {
		return nil, fmt.Errorf("relay: reading the state of the WAL source: %w", err)
	}
	return st, nil
}

// unusable says why the WAL cannot be read until somebody changes something; empty: it can.
func (st *walState) unusable() string {
	switch {
	case st.level != "logical":
		return "wal_level is " + st.level + ": set it to logical, which needs a restart of Postgres"
	case st.hashesDiffer > 0:
		return "this server computes lanes in another way than relays do: is it a big-endian machine?"
	case !st.published:
		return "the publication " + st.name + " is missing or not what a relay needs: run `relay wal setup` as the owner of the tables"
	case st.exists && !st.ours:
		return "the replication slot " + st.name + " belongs to another database or is read by another plugin: " +
			"is this a copy of an outbox in the same server? drop one of them, or drop that slot when nobody needs it"
	}
	return ""
}

// wrongSlot says why the slot may have missed something, or is none; empty: it goes on where we were.
func (st *walState) wrongSlot(span int64) string {
	switch {
	case st.slot == "" && !st.exists:
		return "there is none yet"
	case !st.exists:
		return "it is missing: somebody dropped it, or the server is another since a failover"
	case st.slot == "":
		return "it was made by somebody else"
	case !st.here:
		return "it was made on another server or timeline"
	case st.walStatus == "lost":
		return "it is lost: it fell behind max_slot_wal_keep_size"
	case st.numbersEnd(span):
		return "its numbers come to an end"
	case st.slotConfirmed > st.confirmed:
		return fmt.Sprintf("it is ahead of what was published (at %X/%X and not %X/%X): somebody advanced it or made it again",
			st.slotConfirmed>>32, uint32(st.slotConfirmed), st.confirmed>>32, uint32(st.confirmed))
	}
	return ""
}

// numbersEnd: soon there are no numbers left for events.
func (st *walState) numbersEnd(span int64) bool { return st.base != 0 && st.now-st.base > span/4*3 }

// remakeSlot begins anew: lanes that came from the WAL are published from the table, under a new numbering, because
// nobody can tell which of their events were published before; and a slot is made that lanes can be handed over to, one
// by one.
func (r *Relay) remakeSlot(ctx context.Context, s *session, st *walState, why string) error {
	if st.slot == "" && !st.exists {
		r.log.Info("making the replication slot; until it is there, events are published from the table", "slot", st.name)
	} else {
		r.log.Error("the replication slot cannot be used: events are published from the table, and another slot is made", "slot", st.name, "why", why)
	}
	// A new base puts the numbers back to the first.
	rebase := st.base != 0 && st.now-st.base > r.span/2
	if err := r.abandonAll(ctx, s, st); err != nil {
		return err
	}
	failpoint.Hit(failpoint.RelayWALAbandoned)
	r.setWAL(walUnavailable)
	mine := false
	err := s.Send(ctx, pg.Begin(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.WALAlone)).QueryRow(func(row pgx.Row) error { return row.Scan(&mine) })
	}))
	if err == nil && !mine { // another relay makes it
		s.Close()
		return errNotYet
	}
	if err == nil {
		failpoint.Hit(failpoint.RelayWALSlot)
		err = failpoint.After(failpoint.RelayWALSlotMade, s.Continue(ctx, r.makeSlot(st, rebase)))
	}
	if pgerr.Is(err, "57014") {
		return fmt.Errorf("%w: making the replication slot waits for transactions that are open, in any database of the server", errNotYet)
	}
	if err != nil {
		return fmt.Errorf("relay: making the replication slot: %w", err)
	}
	r.log.Info("the replication slot is made; lanes are handed over to it as they get empty", "slot", st.name)
	return nil
}

// abandonAll gives every lane back to the table. It does nothing, and fails, when what was read of the slot has changed
// since: a transaction that is late must not take lanes from the slot that was made meanwhile.
func (r *Relay) abandonAll(ctx context.Context, s *session, st *walState) error {
	same := false
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.LockLanes))
		b.Queue(r.sql(sql.WALStands), st.slot, st.confirmed).QueryRow(func(row pgx.Row) error { return row.Scan(&same) })
		b.Queue(r.sql(sql.AbandonAll), st.slot, st.confirmed).Query(r.readRaised)
		b.Queue(r.sql(sql.WALDisown))
	}))
	if err == nil && !same {
		err = errors.New("the slot is another one by now")
	}
	if err != nil {
		return fmt.Errorf("relay: giving the lanes back to the table: %w", err)
	}
	return nil
}

// errNotYet: the WAL cannot be read now, and soon can be.
var errNotYet = errors.New("relay: the WAL cannot be read yet")

// makeSlot is the second half of a transaction: nothing may be written before the slot is made.
func (r *Relay) makeSlot(st *walState, rebase bool) *pgx.Batch {
	var b pgx.Batch
	if st.exists {
		b.Queue(r.sql(sql.WALDrop), st.name)
	}
	b.Queue(r.sql(sql.WALCreate), st.name)
	b.Queue(r.sql(sql.WALAdopt), st.name, rebase)
	if rebase {
		b.Queue(r.sql(sql.NewIncarnation)).Query(r.readRaised)
	}
	b.Queue(sql.Commit)
	return &b
}

// readRaised reads the numbering that has begun, if one has.
func (r *Relay) readRaised(rows pgx.Rows) error {
	var epoch string
	_, err := pgx.ForEachRow(rows, []any{&epoch}, func() error {
		r.log.Warn("lanes that were published from the WAL go back to the table, which may still have events of theirs that were published: "+
			"a new incarnation of the numbering has begun", "epoch", epoch)
		return nil
	})
	return err
}

// assignPolled gives lanes that have no source yet to the pumps. Where the WAL was their source, and nobody reads it, a
// new numbering begins.
func (r *Relay) assignPolled(ctx context.Context, s *session) error {
	var set laneKeys
	if set.lanes, set.fences = r.lanes.Unassigned(); len(set.lanes) == 0 {
		return nil
	}
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Lock), set.lanes, set.fences, r.owner)
		b.Queue(r.sql(sql.Abandon), set.lanes, set.fences, r.owner).Query(r.readRaised)
	}))
	if err != nil {
		r.doubtUnknown(set, err)
		return fmt.Errorf("relay: giving lanes to the pumps: %w", err)
	}
	r.lanes.Assign(set.lanes, lanes.Pumps)
	r.kickPumps()
	return nil
}

// doubtUnknown puts lanes in doubt when it is not known whether a transaction has changed, or will change, where they
// are published from: once their fences are raised it cannot any more (P3.7).
func (r *Relay) doubtUnknown(set laneKeys, err error) {
	if !pg.CommitUnknown(err) {
		return
	}
	for i, lane := range set.lanes {
		r.lanes.Doubt(lane, set.fences[i])
	}
	r.nudge()
}
