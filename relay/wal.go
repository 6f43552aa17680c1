package relay

import (
	"context"
	"errors"
	"time"

	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/wal"
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

// walRetry is the pause before the WAL is tried again when somebody must change something first, or when another relay
// reads it. It bounds how long events wait when that one dies, beside its lease.
const walRetry = 2 * time.Second

// walPatience is for how long the WAL may be unreadable, while the database answers, before events are published from
// the table, which begins a new numbering. A heartbeat longer than a lease: by then a relay that died has been
// succeeded.
func walPatience(lease time.Duration) time.Duration { return lease + lease/3 }

// follow reads the WAL until ctx ends, and gets over whatever keeps it from that.
func (r *Relay) follow(ctx, work context.Context) {
	pause, said, try := outage.NewBackOff(), "", wal.Try{}
	for ctx.Err() == nil {
		try.Worked = false
		err := r.stream(ctx, work, &try)
		r.lanes.Unfollowed()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.walWhy.Store(&err)
		}
		var unusable *wal.UnusableError
		wait := pause.NextBackOff()
		switch {
		case err == nil:
			pause.Reset()
			continue
		case errors.Is(err, wal.ErrStandby):
			r.setWAL(walStandby)
			wait = walRetry
			try.Restart()
		case errors.As(err, &unusable), errors.Is(err, wal.ErrNotYet):
			r.setWAL(walUnavailable)
			if said != err.Error() {
				said = err.Error()
				r.log.Error("events are published from the table and not from the WAL", "err", err)
			}
			wait = walRetry
			try.Restart()
		default:
			if try.Worked {
				pause.Reset()
				said, wait = "", pause.NextBackOff()
			}
			r.log.Warn("reading the WAL was interrupted; trying again", "err", err)
			if try.Hopeless(walPatience(r.cfg.Lease)) && r.walMode() != walUnavailable {
				r.log.Error("the WAL cannot be read for a while: events are published from the table meanwhile", "err",
					err)
				r.setWAL(walUnavailable)
			}
		}
		_ = sleep.For(ctx, wait)
	}
}

// stream finds out whether this relay is to read the WAL, and does so until ctx ends. Nil: try again at once.
func (r *Relay) stream(ctx, work context.Context, try *wal.Try) error {
	s := r.session("wal")
	defer s.Close()
	slot := &wal.Slot{
		Session: &s.Session, Schema: r.schema, Log: r.log, Owner: r.owner, Span: r.span,
		Abandoned: func() { r.setWAL(walUnavailable) },
	}
	st, err := slot.State(ctx)
	if err != nil {
		try.Restart()
		return err
	}
	try.Answered()
	if why := st.Unusable(); why != "" {
		return &wal.UnusableError{Why: why}
	}
	if !st.Same {
		if _, err := r.raiseIncarnation(ctx, s); err != nil {
			return err
		}
	}
	if st.PID != 0 {
		return slot.Taken(ctx, st, try)
	}
	if why := slot.Wrong(st); why != "" {
		return slot.Remake(ctx, st, why)
	}
	if try.Stuck(st) {
		return slot.GiveUp(ctx, st, try)
	}
	try.Begins(st)
	reader, err := wal.Open(ctx, r.db, st.Name, uint64(st.Confirmed), wal.Config{
		Lanes: Lanes, Timeout: r.cfg.Lease, Events: r.cfg.ClaimEvents, Bytes: r.cfg.ClaimBytes, Overhead: eventOverhead,
	})
	if err != nil {
		return err
	}
	err = newFollower(r, s, st, reader).run(ctx, work, try)
	try.Ended(err)
	return err
}
