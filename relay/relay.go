package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/build"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/internal/tracing"
	"github.com/effectonce/effectonce/relay/internal/archive"
	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/floors"
	"github.com/effectonce/effectonce/relay/internal/keeper"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/prober"
	"github.com/effectonce/effectonce/relay/internal/pump"
	"github.com/effectonce/effectonce/relay/internal/reviver"
	"github.com/effectonce/effectonce/relay/internal/signal"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

// Errors of Run and Once.
var (
	// ErrNotDrained: Run was stopped, and its claimed events were not acked within DrainTimeout.
	ErrNotDrained = errors.New("relay: not acked within DrainTimeout")
	// ErrTables: the tables are missing, old, or not as migrations made them; waiting does not help.
	ErrTables = keeper.ErrTables
	// ErrAccess: at the first contact Postgres refuses the connection, or the role lacks a grant.
	ErrAccess = keeper.ErrAccess
)

// Relay publishes what producers append. Make one with [New].
type Relay struct {
	db       *pgxpool.Pool
	to       start.Publisher
	cfg      Config
	schema   *sql.Schema
	tracer   *tracing.Tracer // nil: no spans
	postgres *outage.Monitor
	kafka    *outage.Monitor
	signals  *signal.Signals
	limits   limits

	running atomic.Bool
	now     atomic.Pointer[engine] // of the last start; nil: there was none
	asleep  atomic.Bool
}

// limits are constants that tests change.
type limits struct {
	bulkFrom    int           // cycle.BulkFrom
	numbers     int32         // how many events of a transaction get a number: wal.MostNumbers
	span        int64         // for how many bytes of WAL the numbers of a base last: wal.Span
	provedEvery time.Duration // keeper.ProvedEvery
	resignFor   time.Duration // how long it may take to give the lanes back at the end
}

// engine is one start of a relay: its actors, and what they share.
type engine struct {
	*start.Start
	limits  limits
	cfg     Config
	wal     wal.Part
	cycle   *cycle.Cycle
	keeper  *keeper.Keeper
	prober  *prober.Prober
	floors  *floors.Finder
	reviver *reviver.Reviver
}

// New makes a relay that takes events from the outbox in db and gives them to a publisher. It starts nothing and dials
// no server. It fails if the configuration cannot work.
//
// It uses the configuration of db for Pumps+3 connections of its own, and one more after a topic or partition was held.
// It uses the pool itself for Status.
func New(db *pgxpool.Pool, to Publisher, cfg Config) (*Relay, error) {
	if db == nil || to == nil {
		return nil, errors.New("relay: New needs a pool and a publisher")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	schema, err := sql.For(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	cfg.Logger = cfg.Logger.With("relay", cfg.Name)
	return &Relay{
		db: db, to: publisherOf(to), cfg: cfg, schema: schema, tracer: tracing.New(cfg.TracerProvider, cfg.Propagator),
		postgres: &outage.Monitor{System: "postgres", Log: cfg.Logger, Notify: cfg.Observer.Outage},
		kafka:    &outage.Monitor{System: "kafka", Log: cfg.Logger, Notify: cfg.Observer.Outage},
		signals:  signal.New(cfg.Pumps),
		limits: limits{
			bulkFrom: cycle.BulkFrom, numbers: wal.MostNumbers, span: wal.Span,
			provedEvery: keeper.ProvedEvery, resignFor: 5 * time.Second,
		},
	}, nil
}

// publisherOf is what a publisher can do.
func publisherOf(p Publisher) start.Publisher {
	to := start.Publisher{Publish: p.Publish}
	if p, ok := p.(Router); ok {
		to.Route = p.Route
	}
	if p, ok := p.(Reacher); ok {
		to.Reach = p.Reach
	}
	return to
}

// Run publishes until ctx ends, then finishes its claims within DrainTimeout, gives its lanes to the others and returns
// nil. It waits out an outage of Postgres or Kafka, at the start too. It returns an error if the first contact shows a
// problem that waiting cannot repair ([ErrTables], [ErrAccess]), or if the drain could not finish: the next owner
// publishes the rest. Nothing outlives Run.
func (r *Relay) Run(ctx context.Context) error {
	e, err := r.start(lanes.Unassigned)
	if err != nil {
		return err
	}
	defer r.running.Store(false)
	for first := true; ; first = false {
		if r.cfg.Check != nil {
			if e.Outbox, err = r.cfg.Check(ctx); err != nil || ctx.Err() != nil {
				return err
			}
		}
		switch err = e.awake(ctx, first); {
		case errors.Is(err, errIdle):
			if e.cycle.Undrained.Load() == 0 && !r.sleep(ctx, e.prober.DueAt) {
				return nil
			}
		case errors.Is(err, start.ErrOther):
			r.cfg.Logger.Warn("the outbox's tables or its server are others than before: they are checked again")
			_ = sleep.For(ctx, 100*time.Millisecond) // should Check name a wrong one again and again
		default:
			return err
		}
		e = r.newEngine(lanes.Unassigned)
	}
}

// A sleeping relay is one that has stopped cleanly: its lanes are free, and its row in relay_member and its connections
// are gone. So no rule depends on sleep, and the other relays see one that has left. It wakes as another relay, with an
// identity and fences of its own.

// errIdle ends the awake state.
var errIdle = errors.New("relay: nothing to publish")

// awake runs until ctx ends, until the relay is to sleep (errIdle), or until the outbox is not the one that was checked
// (start.ErrOther). Nothing outlives it.
func (e *engine) awake(ctx context.Context, first bool) error {
	e.Lanes.ExpectFloors()
	ctx, end := context.WithCancelCause(ctx)
	cancel := func() { end(context.Canceled) }
	defer cancel()
	work, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()

	var pumps, others sync.WaitGroup
	pumpsDone := make(chan struct{})
	for i := range e.cfg.Pumps {
		pump := &pump.Pump{Start: e.Start, Cycle: e.cycle, Number: i, Of: e.cfg.Pumps}
		pumps.Go(func() { pump.Run(ctx, work) })
	}
	if e.cfg.Feed == FeedWAL {
		e.wal.Begin()
		feed := &wal.Feed{
			Start: e.Start, Cycle: e.cycle, Part: &e.wal, Heartbeat: e.cfg.WALHeartbeat, Rescan: e.cfg.RescanEvery,
			Drain: e.cfg.DrainTimeout, Span: e.limits.span, Numbers: e.limits.numbers,
		}
		pumps.Go(func() { feed.Run(ctx, work) })
	}
	others.Go(func() { e.prober.Run(ctx, func() { end(errIdle) }) })
	others.Go(func() { e.floors.Run(ctx) })
	others.Go(func() { e.reviver.Run(ctx, work) })
	if e.cfg.ArchiveDays > 0 {
		days := archive.Archive{DB: e.DB, Schema: e.Schema, Days: e.cfg.ArchiveDays}
		others.Go(func() { days.Run(ctx, e.Log) })
	}
	others.Go(func() { pumps.Wait(); close(pumpsDone) })
	others.Go(func() { <-ctx.Done(); e.limitDrain(work, abandon) })

	err := e.keeper.Run(work, pumpsDone, first, func() { end(start.ErrOther) })
	why := context.Cause(ctx)
	cancel()
	abandon()
	others.Wait()
	if errors.Is(why, errIdle) || errors.Is(why, start.ErrOther) {
		if err != nil { // its lanes are free when their lease has run out
			e.Log.Warn("the relay could not give its lanes back", "error", err)
		}
		return why
	}
	if left := e.cycle.Undrained.Load(); err == nil && left > 0 {
		err = fmt.Errorf("%w: %d events; their next owner sends them again", ErrNotDrained, left)
	}
	return err
}

// limitDrain ends work when the drain takes too long.
func (e *engine) limitDrain(work context.Context, abandon func()) {
	if e.cfg.DrainTimeout > 0 {
		_ = sleep.For(work, e.cfg.DrainTimeout)
	}
	abandon()
}

// Once runs one step without loop, timer or goroutine: it joins, takes its share of the lanes, claims once (more often
// for held and released events), publishes, settles, and gives the lanes back. It returns how many events the publisher
// acked; 0 if none wait or if others own every lane. It blocks while the publisher is down, until ctx ends.
func (r *Relay) Once(ctx context.Context) (published int, err error) {
	e, err := r.start(lanes.Unassigned)
	if err != nil {
		return 0, err
	}
	defer r.running.Store(false)
	s := &cycle.Session{Session: e.Session("once")}
	defer s.Close()
	if err := e.keeper.Join(ctx, s.Session); err != nil {
		return 0, err
	}
	var refused error
	for step, steps := 0, onceSteps; step < steps; step++ {
		// Held and released events are found by the first claim, and sent by the next.
		if step > 0 && refused == nil && !e.Lanes.Beside() {
			break
		}
		grants := e.Lanes.Take(0, 1, time.Now())
		if len(grants) == 0 {
			break
		}
		var n int
		n, err = e.cycle.Step(ctx, s, grants, nil)
		published += n
		if err != nil && !pgerr.Answered(err) {
			break
		}
		if err != nil { // lanes whose work is refused are claimed apart
			refused, steps = err, onceApart
		}
	}
	return published, errors.Join(cmp.Or(err, refused), e.keeper.Resign(ctx, s.Session))
}

// onceSteps: one for an open entry, and one each for held, released and new events. onceApart is enough to find the
// lanes whose work the server refuses, by halves, and to work on each of the others.
const (
	onceSteps = 4
	onceApart = 4 * Lanes
)

// start makes sure that only one start runs. Lanes have this feed at first.
func (r *Relay) start(first lanes.Feed) (*engine, error) {
	if !r.running.CompareAndSwap(false, true) {
		return nil, errors.New("relay: this Relay runs already; make another one with New")
	}
	return r.newEngine(first), nil
}

// newEngine makes the actors of a start, or of a waking: under another identity, and without knowledge of lanes.
func (r *Relay) newEngine(first lanes.Feed) *engine {
	e := &engine{
		Start: &start.Start{
			DB: r.db, Schema: r.schema, Owner: uuid.New(), Lease: r.cfg.Lease, Log: r.cfg.Logger,
			Observer: start.Observer(r.cfg.Observer), To: r.to, Lanes: lanes.New(first),
			Health:   delivery.NewHealth(r.cfg.HoldAfter, time.Now(), newPauses),
			Postgres: r.postgres, Kafka: r.kafka, Signals: r.signals,
		},
		limits: r.limits, cfg: r.cfg,
	}
	e.cycle = &cycle.Cycle{
		Start: e.Start, Tracer: r.tracer, MostEvents: r.cfg.ClaimEvents, MostBytes: r.cfg.ClaimBytes,
		BulkFrom: r.limits.bulkFrom, Archive: r.cfg.ArchiveDays > 0, ParkEvent: r.cfg.OnFailure == ParkEvent,
	}
	e.keeper = &keeper.Keeper{
		Start: e.Start, Part: &e.wal, Name: r.cfg.Name, Version: build.Version(), ProvedEvery: r.limits.provedEvery,
		ResignFor: r.limits.resignFor,
	}
	e.prober = &prober.Prober{
		Start: e.Start, Cycle: e.cycle, Keeper: e.keeper, Part: &e.wal, Awake: r.cfg.ProbeAwake, Idle: r.cfg.ProbeIdle,
		IdleAfter: r.cfg.IdleAfter, Sleeps: r.cfg.Sleep > 0,
	}
	e.reviver = &reviver.Reviver{Start: e.Start, Cycle: e.cycle}
	e.floors = &floors.Finder{
		Start: e.Start, Every: r.cfg.FloorEvery, Awake: r.cfg.ProbeAwake, IdleAfter: r.cfg.IdleAfter,
		RescanEvery: r.cfg.RescanEvery, ExceptFrom: floors.ExceptFrom,
	}
	r.now.Store(e)
	return e
}

func newPauses() delivery.Pauses { return outage.NewBackOff() }

// Wake makes the relay probe for events at once, and wakes a sleeping one. Call it after the commit of a transaction
// that appended, if producer and relay share a process. It never blocks.
func (r *Relay) Wake() { r.signals.Wake() }

// Stalled returns for how long events have waited in this relay's lanes while none was settled, also those held for a
// partition that does not take them. It is 0 when nothing waits, and for a relay that owns no lanes.
func (r *Relay) Stalled() time.Duration {
	if e := r.now.Load(); e != nil {
		_, held := e.Held(time.Now())
		return e.Progress.Stalled(held)
	}
	return 0
}

// sleep waits until Wake is called, an event is due (zero: none is), or Config.Sleep is over. It reports whether ctx
// lives.
func (r *Relay) sleep(ctx context.Context, due time.Time) bool {
	wait := r.cfg.Sleep
	if !due.IsZero() {
		wait = min(wait, time.Until(due))
	}
	r.asleep.Store(true) // before it says so: from then on nobody asks the database on its behalf
	defer r.asleep.Store(false)
	r.cfg.Logger.Info("nothing has come for a while: the relay sleeps, with neither lanes nor connections", "for", wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-r.signals.Wakes:
	case <-timer.C:
	}
	r.cfg.Logger.Info("the relay is awake")
	return true
}

// Asleep reports whether the relay sleeps (Config.Sleep).
func (r *Relay) Asleep() bool { return r.asleep.Load() }
