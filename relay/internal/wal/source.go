package wal

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Source publishes from the WAL what is committed to an outbox, for one relay. Every field is required.
type Source struct {
	Engine   Engine
	DB       *pgxpool.Pool // whose configuration the replication connection has
	Session  func(name string) *pg.Session
	Schema   *sql.Schema
	Log      *slog.Logger
	Owner    uuid.UUID // the relay
	Lanes    *lanes.Table
	Postgres *outage.Monitor

	Lease     time.Duration
	Heartbeat time.Duration // between confirmations while nothing is deleted
	Rescan    time.Duration // between scans of the table for what the WAL has passed; negative: never
	Drain     time.Duration // for what was claimed when the relay ends
	// A batch with as many events or bytes waits until it was taken. Overhead is counted for each event beside its
	// values.
	Events, Bytes, Overhead int
	Archive                 bool  // published events go to the archive
	ParkEvent               bool  // a refused event is parked without its key
	Span                    int64 // for how many bytes of WAL the numbers of a base last: [Span]
	Numbers                 int32 // of a transaction's events: [MostNumbers]

	mode Mode
}

// Engine is what a source needs of its relay.
type Engine interface {
	// Publish sends events of granted lanes until each is acked, or is to be published from the table. It gives up when
	// ctx ends, and when a lease is not certain any more (late).
	Publish(ctx context.Context, grants []lanes.Grant, d *delivery.Delivery) (late bool)
	// Drain claims, publishes and settles once what offered lanes have in the table. It returns the ids that were
	// claimed, by lane.
	Drain(ctx context.Context, s *pg.Session) (grants []lanes.Grant, claimed map[int16][]int64, err error)
	// RaiseIncarnation begins a new numbering: the database is another system or on another timeline.
	RaiseIncarnation(ctx context.Context, s *pg.Session) error
	// Pause makes topics the paused ones.
	Pause(topics []string)
	// SetMode takes over the mode, and why there is no reading, if that is not nil.
	SetMode(mode Mode, why error)
	// Beat asks for a heartbeat. Wake has the pumps, and who looks for events, go on at once.
	Beat()
	Wake()
	// Settled tells that published events are deleted, BelowFloor that one stood where none can be.
	Settled(events int, took time.Duration)
	BelowFloor(lane int16)
}

// Mode is what a relay does about the WAL.
type Mode int32

const (
	Off         Mode = iota // it has no source
	Starting                // it is not known yet who reads: it takes no lanes
	Standby                 // another relay reads: it takes no lanes
	Streaming               // it reads: it takes all lanes
	Unavailable             // nobody can: it publishes from the table
)

func (src *Source) set(mode Mode, why error) {
	src.mode = mode
	src.Engine.SetMode(mode, why)
}

func (src *Source) sql(statement string) string { return src.Schema.Expand(statement) }

// retry is the pause before the WAL is tried again when somebody must change something first, or when another relay
// reads it. It bounds how long events wait when that one dies, beside its lease.
const retry = 2 * time.Second

// unreadableTimeout is how long the WAL may be unreadable, while the database answers, before events are published from
// the table, which begins a new numbering. It is a heartbeat longer than a lease: a dead relay has a successor by then.
func unreadableTimeout(lease time.Duration) time.Duration { return lease + lease/3 }

// Run reads the WAL until ctx ends, and gets over whatever keeps it from that. It finishes what it has while work
// lives.
func (src *Source) Run(ctx, work context.Context) {
	src.mode = Starting
	pause, logged, try := outage.NewBackOff(), "", try{}
	for ctx.Err() == nil {
		try.Worked = false
		err := src.read(ctx, work, &try)
		src.Lanes.Unfollowed()
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
			src.set(Standby, err)
			wait = retry
			try.Restart()
		case errors.As(err, &unusable), errors.Is(err, errNotYet):
			src.set(Unavailable, err)
			if logged != err.Error() {
				logged = err.Error()
				src.Log.Error("events are published from the table and not from the WAL", "err", err)
			}
			wait = retry
			try.Restart()
		default:
			if try.Worked {
				pause.Reset()
				logged, wait = "", pause.NextBackOff()
			}
			src.Log.Warn("reading the WAL was interrupted; trying again", "err", err)
			mode := src.mode
			if try.TimedOut(unreadableTimeout(src.Lease)) && mode != Unavailable {
				src.Log.Error("the WAL cannot be read for a while: events are published from the table meanwhile",
					"err", err)
				mode = Unavailable
			}
			src.set(mode, err)
		}
		_ = sleep.For(ctx, wait)
	}
}

// read finds out whether this relay is to read the WAL, and does so until ctx ends. Nil: try again at once.
func (src *Source) read(ctx, work context.Context, try *try) error {
	s := src.Session("wal")
	defer s.Close()
	slot := &slot{src, s}
	st, err := slot.State(ctx)
	if err != nil {
		try.Restart()
		return err
	}
	try.Answered()
	if why := st.Unusable(); why != "" {
		return &unusableError{Why: why}
	}
	if !st.Same {
		if err := src.Engine.RaiseIncarnation(ctx, s); err != nil {
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
	reader, err := openReader(ctx, src, st)
	if err != nil {
		return err
	}
	err = newFollower(src, s, st, reader).run(ctx, work, try)
	try.Ended(err)
	return err
}
