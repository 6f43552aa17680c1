package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

// Source says where a relay takes events from.
type Source int

const (
	// SourceTable reads the table of events, as often as Config.ProbeAwake says.
	SourceTable Source = iota
	// SourceWAL reads the inserts of producers from the write-ahead log, through a replication slot, as they commit. It
	// needs wal_level = logical, a role with REPLICATION, and the publication that [SetUpWAL] makes. One relay reads;
	// the others stand by. Events that cannot be read or sent this way are published from the table, lane by lane:
	// before there is a slot, after it is lost, and in a lane with held or parked events.
	SourceWAL
)

// followWAL publishes from the WAL until ctx ends, and finishes events in progress while work lives.
func (r *Relay) followWAL(ctx, work context.Context) {
	source := wal.Source{
		Engine: &walEngine{Relay: r}, DB: r.db, Schema: r.schema, Log: r.log, Owner: r.owner, Lanes: r.lanes,
		Session:  func(name string) *pg.Session { return r.session(name).Session },
		Postgres: r.postgres, Lease: r.cfg.Lease, Heartbeat: r.cfg.WALHeartbeat, Rescan: r.cfg.RescanEvery,
		Drain: r.cfg.DrainTimeout, Events: r.cfg.ClaimEvents, Bytes: r.cfg.ClaimBytes, Overhead: eventOverhead,
		Archive: r.cfg.ArchiveDays > 0, ParkEvent: r.cfg.OnFailure == ParkEvent, Span: r.span, Numbers: r.numbers,
	}
	source.Run(ctx, work)
}

// walEngine is the relay, as its WAL source sees it.
type walEngine struct {
	*Relay
	claims session // the buffers of its claims
}

// Publish implements wal.Engine.
func (e *walEngine) Publish(ctx context.Context, grants []lanes.Grant, d *delivery.Delivery, paused []string) (
	late bool,
) {
	const part = "effectonce relay wal"
	e.streaming.Store(time.Now().UnixNano())
	defer e.streaming.Store(0)
	_, late = e.deliver(ctx, part, grants, d, paused, nil)
	e.reportPublish(part, nil) // events without an ack are held, or another relay's
	return late
}

// Drain implements wal.Engine.
func (e *walEngine) Drain(ctx context.Context, s *pg.Session) ([]lanes.Grant, map[int16][]int64, error) {
	grants := e.lanes.TakeOffered(time.Now())
	if len(grants) == 0 {
		return nil, nil, nil
	}
	e.claims.Session = s
	c, err := e.claimLanes(ctx, &e.claims, grants)
	if err != nil {
		return nil, nil, err
	}
	claimed := map[int16][]int64{}
	for i := range c.items {
		lane := c.events[i].Position.Lane
		claimed[lane] = append(claimed[lane], c.items[i].ID)
	}
	_, err = e.complete(ctx, &e.claims, c, nil)
	return grants, claimed, err
}

// RaiseIncarnation implements wal.Engine.
func (e *walEngine) RaiseIncarnation(ctx context.Context, s *pg.Session) error {
	_, err := e.raiseIncarnation(ctx, s)
	return err
}

// Pause implements wal.Engine.
func (e *walEngine) Pause(topics []string) { e.setPaused(topics) }

// walWhy is why the WAL is not read, or nil, and since when the relay has had its mode.
type walWhy struct {
	since time.Time
	err   error
}

// SetMode implements wal.Engine. The mode decides how many lanes the relay takes.
func (e *walEngine) SetMode(mode wal.Mode, why error) {
	last := e.walWhy.Load()
	if changed := mode != e.walMode(); changed || last == nil {
		e.walWhy.Store(&walWhy{time.Now(), why})
	} else if why != nil {
		e.walWhy.Store(&walWhy{last.since, why})
	}
	if wal.Mode(e.wal.Swap(int32(mode))) != mode {
		e.requestBeat()
	}
}

// Beat implements wal.Engine.
func (e *walEngine) Beat() { e.requestBeat() }

// Wake implements wal.Engine.
func (e *walEngine) Wake() {
	e.kickPumps()
	e.requestProbe()
}

// Settled implements wal.Engine.
func (e *walEngine) Settled(events int, took time.Duration) {
	e.moved.Store(time.Now().UnixNano())
	if e.cfg.Observer.Settled != nil {
		e.cfg.Observer.Settled(events, 0, took)
	}
}

// BelowFloor implements wal.Engine.
func (e *walEngine) BelowFloor(lane int16) {
	if e.cfg.Observer.BelowFloor != nil {
		e.cfg.Observer.BelowFloor(lane)
	}
}

func (r *Relay) walMode() wal.Mode { return wal.Mode(r.wal.Load()) }

// polls reports whether the pumps get the lanes that have no source.
func (r *Relay) polls() bool { return r.walMode() == wal.Off || r.walMode() == wal.Unavailable }

// share returns how many lanes the relay should own, from its fair share.
func (r *Relay) share(fair int) int {
	switch r.walMode() {
	case wal.Starting, wal.Standby:
		return 0
	case wal.Streaming:
		return Lanes
	case wal.Off, wal.Unavailable:
	}
	return fair
}

// resting reports whether no probes are needed, because events come by themselves or to another relay.
func (r *Relay) resting() bool {
	switch r.walMode() {
	case wal.Standby:
		return true
	case wal.Streaming:
		return r.lanes.AllFromWAL()
	case wal.Off, wal.Starting, wal.Unavailable:
	}
	return false
}

// assignPolled gives lanes that have no source yet to the pumps. If their source was the WAL, and no relay reads it, a
// new numbering begins.
func (r *Relay) assignPolled(ctx context.Context, s *session) error {
	var set laneKeys
	if set.lanes, set.fences = r.lanes.Unassigned(); len(set.lanes) == 0 {
		return nil
	}
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Lock), set.lanes, set.fences, r.owner)
		b.Queue(r.sql(sql.Abandon), set.lanes, set.fences, r.owner).Query(wal.LogRaised(r.log))
	}))
	if err != nil {
		r.doubtUnknown(set, err)
		return fmt.Errorf("relay: giving lanes to the pumps: %w", err)
	}
	r.lanes.Assign(set.lanes, lanes.Pumps)
	r.kickPumps()
	return nil
}

// doubtUnknown puts lanes in doubt if a transaction may have changed, or may still change, their source: once their
// fences are raised it cannot any more (P3.7).
func (r *Relay) doubtUnknown(set laneKeys, err error) {
	if !pg.CommitUnknown(err) {
		return
	}
	for i, lane := range set.lanes {
		r.lanes.Doubt(lane, set.fences[i])
	}
	r.requestBeat()
}
