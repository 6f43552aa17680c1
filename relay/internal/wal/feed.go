package wal

import (
	"context"
	"errors"
	"time"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// Feed publishes the committed events of an outbox from the WAL, for one relay. Every field is required.
type Feed struct {
	*start.Start
	Cycle *cycle.Cycle // it sends, and claims what lanes have in the table; a batch is as large as a claim
	Part  *Part

	Heartbeat time.Duration // between confirmations while no event is deleted
	Rescan    time.Duration // between scans of the table for events that the WAL has passed; negative: never
	Drain     time.Duration // for claimed events when the relay ends
	Span      int64         // for how many bytes of WAL the numbers of a base last: [Span]
	Numbers   int32         // of a transaction's events: [MostNumbers]
}

// set sets the relay's part, and tells the keeper, which takes lanes by it.
func (feed *Feed) set(to mode, why error) {
	if feed.Part.set(to, why) {
		feed.Signals.Beat()
	}
}

// kick wakes the pumps and the prober.
func (feed *Feed) kick() {
	feed.Signals.Kick()
	feed.Signals.Probe()
}

// retry is the pause before the next attempt to read the WAL if somebody must change something first, or if another
// relay reads it. It adds to the time that events wait when that relay dies.
const retry = 2 * time.Second

// unreadableTimeout is how long the WAL may be unreadable, while the database answers, before events are published from
// the table, which begins a new numbering. It is a heartbeat longer than a lease: by then a dead relay has a successor.
func unreadableTimeout(lease time.Duration) time.Duration { return lease + lease/3 }

// Run reads the WAL until ctx ends, and recovers from all errors. It finishes events in progress while work lives.
func (feed *Feed) Run(ctx, work context.Context) {
	pause, logged, try := outage.NewBackOff(), "", try{}
	for ctx.Err() == nil {
		try.Worked = false
		err := feed.read(ctx, work, &try)
		feed.Lanes.Unfollowed()
		if ctx.Err() != nil {
			return
		}
		var unusable *unusableError
		wait := pause.NextBackOff()
		switch {
		case err == nil:
			pause.Reset()
			continue
		case errors.Is(err, errStandby):
			feed.set(standby, err)
			wait = retry
			try.Restart()
		case errors.As(err, &unusable), errors.Is(err, errNotYet):
			feed.set(unavailable, err)
			if logged != err.Error() {
				logged = err.Error()
				feed.Log.Error("events are published from the table and not from the WAL", "error", err)
			}
			wait = retry
			try.Restart()
		default:
			if try.Worked {
				pause.Reset()
				logged, wait = "", pause.NextBackOff()
			}
			feed.Log.Warn("reading the WAL was interrupted; trying again", "error", err)
			to := feed.Part.now()
			if try.TimedOut(unreadableTimeout(feed.Lease)) && to != unavailable {
				feed.Log.Error("the WAL cannot be read for a while: events are published from the table meanwhile",
					"error", err)
				to = unavailable
			}
			feed.set(to, err)
		}
		_ = sleep.For(ctx, wait)
	}
}

// read finds out whether this relay should read the WAL, and does so until ctx ends. Nil: try again at once.
func (feed *Feed) read(ctx, work context.Context, try *try) error {
	if feed.Foreign.Load() { // a relay of the right cluster reads
		return errStandby
	}
	s := feed.Session("wal")
	defer s.Close()
	slot := &slot{feed, s}
	st, err := slot.State(ctx)
	switch {
	case pgerr.Is(err, pgerr.Untranslatable):
		return &unusableError{"the database's encoding is not UTF8"}
	case err != nil && pgerr.Answered(err) && !pgerr.Away(err) && !pgerr.Retry(err):
		try.Answered() // a right that is missing may be so for ever
		return err
	case err != nil:
		try.Restart()
		return err
	}
	try.Answered()
	if why := st.Unusable(); why != "" {
		return &unusableError{Why: why}
	}
	if !st.Same {
		if _, err := feed.Cycle.RaiseIncarnation(ctx, s); err != nil {
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
	if err := slot.Follow(ctx, st); err != nil {
		return err
	}
	try.Begins(st)
	reader, err := openReader(ctx, feed, st)
	if err != nil {
		return err
	}
	err = newFollower(feed, s, st, reader).run(ctx, work, try)
	try.Ended(err)
	return err
}
