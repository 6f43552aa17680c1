package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Source says where a relay takes events from.
type Source int

const (
	// SourceTable reads the table of events, as often as Config.ProbeAwake says.
	SourceTable Source = iota
	// SourceWAL reads what producers insert from the write-ahead log, through a replication slot, as they commit it. It
	// needs wal_level = logical, a role with REPLICATION, and the publication that [SetUpWAL] makes. One relay reads;
	// the others stand by. Whatever cannot be read or sent so is published from the table, lane by lane: before there
	// is a slot, when it is lost, and for a lane of which something is held or parked.
	SourceWAL
)

// walMode is what a relay does about the WAL.
type walMode int32

const (
	walOff         walMode = iota // Config.Source is SourceTable
	walStarting                   // it is not known yet who reads: it takes no lanes
	walStandby                    // another relay reads: it takes no lanes
	walStreaming                  // it reads: it takes all lanes
	walUnavailable                // nobody can: it publishes from the table
)

// setWAL changes the mode, and thereby how many lanes the relay takes.
func (r *Relay) setWAL(mode walMode) {
	if walMode(r.wal.Swap(int32(mode))) != mode {
		r.nudge()
	}
}

func (r *Relay) walMode() walMode { return walMode(r.wal.Load()) }

// polls reports whether lanes that have no source are for the pumps.
func (r *Relay) polls() bool { return r.walMode() == walOff || r.walMode() == walUnavailable }

// share is how many lanes the relay should own, by its fair part of them.
func (r *Relay) share(fair int) int {
	switch r.walMode() {
	case walStarting, walStandby:
		return 0
	case walStreaming:
		return Lanes
	case walOff, walUnavailable:
	}
	return fair
}

// resting: nobody needs to look for events, because they come by themselves or to another relay.
func (r *Relay) resting() bool {
	switch r.walMode() {
	case walStandby:
		return true
	case walStreaming:
		return r.lanes.AllFromWAL()
	case walOff, walStarting, walUnavailable:
	}
	return false
}

const (
	// walRetry is the pause before the WAL is tried again when somebody must change something first, or when
	// another relay reads it. It bounds how long events wait when that one dies, beside its lease.
	walRetry = 2 * time.Second
)

// walPatience is for how long the WAL may be unreadable, while the database answers, before events are published from
// the table, which begins a new numbering. A heartbeat longer than a lease: by then a relay that died has been
// succeeded.
func walPatience(lease time.Duration) time.Duration { return lease + lease/3 }

// errStandby: another relay reads the WAL.
var errStandby = errors.New("relay: another relay reads the WAL")

// unusableError: the WAL cannot be read until somebody changes something.
type unusableError struct{ why string }

func (e *unusableError) Error() string { return "relay: the WAL cannot be read: " + e.why }

// follow reads the WAL until ctx ends, and gets over whatever keeps it from that.
func (r *Relay) follow(ctx, work context.Context) {
	pause, said, try := outage.NewBackOff(), "", walTry{}
	for ctx.Err() == nil {
		try.worked = false
		err := r.stream(ctx, work, &try)
		r.lanes.Unfollowed()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.walWhy.Store(&err)
		}
		var unusable *unusableError
		wait := pause.NextBackOff()
		switch {
		case err == nil:
			pause.Reset()
			continue
		case errors.Is(err, errStandby):
			r.setWAL(walStandby)
			wait = walRetry
			try.restart()
		case errors.As(err, &unusable), errors.Is(err, errNotYet):
			r.setWAL(walUnavailable)
			if said != err.Error() {
				said = err.Error()
				r.log.Error("events are published from the table and not from the WAL", "err", err)
			}
			wait = walRetry
			try.restart()
		default:
			if try.worked {
				pause.Reset()
				said, wait = "", pause.NextBackOff()
			}
			r.log.Warn("reading the WAL was interrupted; trying again", "err", err)
			if try.hopeless(walPatience(r.cfg.Lease)) && r.walMode() != walUnavailable {
				r.log.Error("the WAL cannot be read for a while: events are published from the table meanwhile", "err", err)
				r.setWAL(walUnavailable)
			}
		}
		_ = sleep.For(ctx, wait)
	}
}

// stream finds out whether this relay is to read the WAL, and does so until ctx ends. Nil: try again at once.
func (r *Relay) stream(ctx, work context.Context, try *walTry) error {
	s := r.session("wal")
	defer s.Close()
	st, err := r.readWALState(ctx, s)
	if err != nil {
		try.restart()
		return err
	}
	try.answered()
	if why := st.unusable(); why != "" {
		return &unusableError{why}
	}
	if !st.same {
		if _, err := r.raiseIncarnation(ctx, s); err != nil {
			return err
		}
	}
	if st.pid != 0 {
		return r.standBy(ctx, s, st, try)
	}
	if why := st.wrongSlot(r.span); why != "" {
		return r.explained(r.remakeSlot(ctx, s, st, why))
	}
	if try.stuck(st) {
		return r.giveUpSlot(ctx, s, st, try)
	}
	try.begins(st)
	conn, err := r.dialReplication(ctx)
	if err != nil {
		return r.explained(err)
	}
	reader, err := startReader(ctx, conn, &r.cfg, st.name, uint64(st.confirmed))
	if err != nil {
		pg.HangUp(conn)
		return r.explained(err)
	}
	f := newFollower(r, s, st, reader)
	err = f.run(ctx, work, try)
	try.ended(err)
	return err
}

// standBy decides about a slot that somebody reads: another relay that lives, or one that is gone, whose connection is
// not.
func (r *Relay) standBy(ctx context.Context, s *session, st *walState, try *walTry) error {
	if st.alive && !st.mine {
		return errStandby
	}
	if try.stale != st.pid { // it may only just have begun: the next look tells
		try.stale = st.pid
		if st.mine {
			return errors.New("relay: the connection of before still reads the replication slot")
		}
		return errStandby
	}
	r.log.Warn("the replication slot is read by a connection whose relay is gone; ending it", "slot", st.name, "pid", st.pid)
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Async, func(b *pgx.Batch) { b.Queue(r.sql(sql.WALEnd), st.name, st.pid) }))
	if err != nil {
		return fmt.Errorf("relay: ending a connection of a relay that is gone: %w", err)
	}
	return errors.New("relay: the replication slot was read for a relay that is gone")
}

// explained turns what Postgres refuses into what a person can do.
func (r *Relay) explained(err error) error {
	switch pgerr.Code(err) {
	case "42501", "28000", "28P01":
		return &unusableError{"the role may not replicate: `alter role ... replication`, and a line for the database in pg_hba.conf (" + err.Error() + ")"}
	case "53400":
		return &unusableError{"the server has no room for another slot: raise max_replication_slots (" + err.Error() + ")"}
	case pgerr.TooManyConnections: // another connection may end soon
		return fmt.Errorf("the server has no room for another connection: raise max_wal_senders or max_connections: %w", err)
	case "55006":
		return errStandby
	}
	return err
}
