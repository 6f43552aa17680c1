package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// slot is the replication slot of an outbox.
type slot struct {
	*Feed
	session *pg.Session
}

// state is the state of the WAL feed in the database.
type state struct {
	Name            string // the name that the slot must have
	Same            bool   // the numbering is of this server and timeline
	Standbys        bool   // commits wait for a synchronous standby
	Now             int64  // the end of the WAL
	Base, Confirmed int64
	PID             int32 // of the backend that reads the slot; 0: none

	level         string
	published     bool   // the publication exists and is correct
	slot          string // the slot that was made; empty: none
	here          bool   // the recorded state of the slot is of this server and timeline
	mine, alive   bool   // the relay that read it last is this one; is alive
	exists, ours  bool
	slotConfirmed int64
	walStatus     string
	failover      bool // standbys synchronize the slot; true if no server can (Postgres 16 and older)
	promoted      bool // the slot was synchronized to a standby, which was promoted after the state was recorded
	hashesDiffer  int64
}

// State reads the state.
func (s *slot) State(ctx context.Context) (*state, error) {
	st := &state{}
	var texts []string
	var hashes []int64
	for text, hash := range sql.Vectors() {
		texts, hashes = append(texts, text), append(hashes, hash)
	}
	err := s.session.Transaction(ctx, pg.Async, func(b *pgx.Batch) {
		b.Queue(s.SQL(sql.WALState), s.Owner).QueryRow(func(row pgx.Row) error {
			return row.Scan(&st.level, &st.Standbys, &st.Name, &st.Same, &st.Now, &st.published, &st.slot, &st.Base,
				&st.Confirmed, &st.here,
				&st.mine, &st.alive, &st.exists, &st.ours, &st.PID, &st.slotConfirmed, &st.walStatus, &st.failover,
				&st.promoted)
		})
		b.Queue(s.SQL(sql.HashVectors), texts, hashes).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				st.hashesDiffer++
			}
			return rows.Err()
		})
	})
	if err != nil {
		return nil, fmt.Errorf("relay: reading the state of the WAL feed: %w", err)
	}
	return st, nil
}

// Unusable returns the reason why the WAL cannot be read until somebody changes something; empty: it can be read.
func (st *state) Unusable() string {
	switch {
	case st.level != "logical":
		return "wal_level is " + st.level + ": set it to logical, which needs a restart of Postgres"
	case st.hashesDiffer > 0:
		return "this server computes lanes in another way than relays do: is it a big-endian machine?"
	case !st.published:
		return "the publication " + st.Name + " is missing or not what a relay needs: run `relay wal setup` as the " +
			"owner of the tables"
	case st.exists && !st.ours:
		return "the replication slot " + st.Name + " belongs to another database or is read by another plugin: " +
			"is this a copy of an outbox in the same server? drop one of them, or drop that slot when nobody needs it"
	}
	return ""
}

// Wrong returns the reason why the slot may have missed events, or is missing; empty: the relay can continue with it.
func (s *slot) Wrong(st *state) string {
	switch {
	case st.slot == "" && !st.exists:
		return "there is none yet"
	case !st.exists:
		return "it is missing: somebody dropped it, or the server is another since a failover"
	case st.slot == "":
		return "it was made by somebody else"
	case !st.here && !st.promoted:
		return "it was made on another server or timeline"
	case st.walStatus == "lost":
		return "it is lost: it fell behind max_slot_wal_keep_size"
	case st.Base != 0 && st.Now-st.Base > s.Span/4*3:
		return "its numbers come to an end"
	case st.slotConfirmed > st.Confirmed:
		return fmt.Sprintf("it is ahead of what was published (at %s and not %s): somebody advanced it or made "+
			"it again", place(st.slotConfirmed), place(st.Confirmed))
	}
	return ""
}

// Follow takes over a slot that was synchronized through a failover, if Wrong has no objection. Table and slot are then
// as after a crash of that server: the slot streams all commits after the confirmed position, or more. Events that the
// failover has lost are unknown. Their numbers are used again, so the incarnation was raised before.
func (s *slot) Follow(ctx context.Context, st *state) error {
	if st.here {
		return nil
	}
	err := s.session.Transaction(ctx, pg.Disk,
		func(b *pgx.Batch) { b.Queue(s.SQL(sql.WALFollow), st.slot, st.Confirmed) })
	if err != nil {
		return fmt.Errorf("relay: taking the replication slot over: %w", err)
	}
	s.Log.Info("the replication slot came through the failover: the WAL is read on", "slot", st.Name, "from",
		place(st.Confirmed))
	return nil
}

// place formats an LSN as Postgres does.
func place(lsn int64) string { return fmt.Sprintf("%X/%X", lsn>>32, uint32(lsn)) }

// Taken decides about a slot that is being read: by another live relay, or over the remaining connection of a dead one.
func (s *slot) Taken(ctx context.Context, st *state, try *try) error {
	if st.alive && !st.mine {
		return errStandby
	}
	if try.stale != st.PID { // it may have just begun: the next attempt decides
		try.stale = st.PID
		if st.mine {
			return errors.New("relay: the connection of before still reads the replication slot")
		}
		return errStandby
	}
	s.Log.Warn("the replication slot is read by a connection whose relay is gone; ending it", "slot", st.Name, "pid",
		st.PID)
	err := s.session.Transaction(ctx, pg.Async,
		func(b *pgx.Batch) { b.Queue(s.SQL(sql.WALEnd), st.Name, st.PID) })
	if err != nil {
		return fmt.Errorf("relay: ending a connection of a relay that is gone: %w", err)
	}
	return errors.New("relay: the replication slot was read for a relay that is gone")
}

// Remake starts over: lanes that came from the WAL are published from the table, under a new numbering, because it is
// unknown which of their events were published; and a slot is made that lanes can be handed over to, one by one.
func (s *slot) Remake(ctx context.Context, st *state, why string) error {
	if st.slot == "" && !st.exists {
		s.Log.Info("making the replication slot; until it is there, events are published from the table", "slot",
			st.Name)
	} else {
		s.Log.Error("the replication slot cannot be used: events are published from the table, and another slot "+
			"is made", "slot", st.Name, "why", why)
	}
	if err := s.abandonAll(ctx, st); err != nil {
		return explain(err)
	}
	s.set(unavailable, nil)
	mine := false
	err := s.session.Send(ctx, pg.Begin(s.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(s.SQL(sql.WALAlone)).QueryRow(func(row pgx.Row) error { return row.Scan(&mine) })
	}))
	if err == nil && !mine { // another relay makes it
		s.session.Close()
		return errNotYet
	}
	if err == nil {
		err = s.session.Continue(ctx, s.making(st))
	}
	if pgerr.Is(err, pgerr.QueryCanceled) {
		return fmt.Errorf("%w: making the replication slot waits for transactions that are open, in any database of "+
			"the server", errNotYet)
	}
	if err != nil {
		return explain(fmt.Errorf("relay: making the replication slot: %w", err))
	}
	s.Log.Info("the replication slot is made; lanes are handed over to it as they get empty", "slot", st.Name)
	return nil
}

// abandonAll gives every lane back to the table. It fails, and changes nothing, if the slot has changed since it was
// read: a late transaction must not take lanes from a slot that was made meanwhile.
func (s *slot) abandonAll(ctx context.Context, st *state) error {
	same := false
	err := s.session.Transaction(ctx, pg.Disk, func(b *pgx.Batch) {
		b.Queue(s.SQL(sql.LockLanes))
		b.Queue(s.SQL(sql.WALStands), st.slot, st.Confirmed).QueryRow(func(row pgx.Row) error {
			return row.Scan(&same)
		})
		b.Queue(s.SQL(sql.AbandonAll), st.slot, st.Confirmed).Query(LogRaised(s.Log))
		b.Queue(s.SQL(sql.WALDisown))
	})
	if err == nil && !same {
		err = errors.New("the slot is another one by now")
	}
	if err != nil {
		return fmt.Errorf("relay: giving the lanes back to the table: %w", err)
	}
	return nil
}

// making is the second half of a transaction: no row may be written before the slot is made.
func (s *slot) making(st *state) *pgx.Batch {
	var b pgx.Batch
	// A new base resets the numbers to the first.
	rebase := st.Base != 0 && st.Now-st.Base > s.Span/2
	if st.exists {
		b.Queue(s.SQL(sql.WALDrop), st.Name)
	}
	b.Queue(s.SQL(sql.WALCreate), st.Name)
	b.Queue(s.SQL(sql.WALAdopt), st.Name, rebase)
	if rebase {
		b.Queue(s.SQL(sql.NewIncarnation)).Query(LogRaised(s.Log))
	}
	b.Queue(sql.Commit)
	return &b
}

// LogRaised reads and logs the new numbering, if one has begun.
func LogRaised(log *slog.Logger) func(rows pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var epoch string
		_, err := pgx.ForEachRow(rows, []any{&epoch}, func() error {
			log.Warn("lanes that were published from the WAL go back to the table, which may still have events of "+
				"theirs that were published: "+
				"a new incarnation of the numbering has begun", "epoch", epoch)
			return nil
		})
		return err
	}
}
