package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/build"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/internal/tracing"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

// ErrNotDrained is in the error of a Run that was stopped and whose claimed events were not acked within DrainTimeout.
var ErrNotDrained = errors.New("relay: not acked within DrainTimeout")

// Relay publishes what producers append. Make one with [New].
type Relay struct {
	db     *pgxpool.Pool
	to     Publisher
	cfg    Config
	schema *sql.Schema
	log    *slog.Logger

	tracer *tracing.Tracer // nil: no spans

	running       atomic.Bool
	owner         uuid.UUID // of this start
	lanes         *lanes.Table
	table         atomic.Pointer[lanes.Table] // lanes, for callers outside of this start
	postgres      *outage.Monitor
	kafka         *outage.Monitor
	woken         chan struct{} // by Wake
	probeAgain    chan struct{} // what the relay tells itself: unlike Wake, it ends no sleep
	beatRequested chan struct{}
	kicks         []chan struct{}

	members atomic.Int64            // relays alive, as of the last heartbeat
	short   atomic.Bool             // owns less than its share
	beaten  atomic.Int64            // Unix nanoseconds of the last heartbeat
	clock   atomic.Pointer[reading] // the database's, as of the last heartbeat; nil: not read yet
	waiting atomic.Int64            // since when events wait, 0: none do
	moved   atomic.Int64            // when events were last settled

	wal       atomic.Int32 // wal.Mode
	walWhy    atomic.Pointer[walWhy]
	streaming atomic.Int64 // since when events from the WAL are being sent; 0: none are

	dueNext time.Time // the prober's: no probe for scheduled events before it
	dueAt   time.Time // the prober's, while it rests or is about to sleep: when the next event is due
	tired   bool      // the prober's: no event has come for IdleAfter, and the relay may sleep
	asleep  atomic.Bool

	health  *delivery.Health
	refused sync.Map // refusedLane by the lane's int16
	closed  sync.Map // why, an error, by delivery.Place; some may be open again
	proof   atomic.Pointer[proof]

	version string // of this program

	undrained atomic.Int64 // events that the end of work left without an ack

	bulkFrom   int   // see bulk.go
	exceptFrom int64 // see floor.go; tests lower it
	numbers    int32 // how many events of a transaction get a number: wal.MostNumbers, which tests lower
	span       int64 // for how many bytes of WAL the numbers of a base last: wal.Span, which tests lower
	// provedEvery is the constant; tests lower it.
	provedEvery time.Duration
	resignFor   time.Duration // how long it may take to give the lanes back at the end; tests raise it
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
	log := cfg.Logger.With("relay", cfg.Name)
	r := &Relay{
		db: db, to: to, cfg: cfg, schema: schema, log: log, tracer: tracing.New(cfg.TracerProvider, cfg.Propagator),
		postgres: &outage.Monitor{System: "postgres", Log: log, Notify: cfg.Observer.Outage},
		kafka:    &outage.Monitor{System: "kafka", Log: log, Notify: cfg.Observer.Outage},
		woken:    make(chan struct{}, 1), probeAgain: make(chan struct{}, 1), beatRequested: make(chan struct{}, 1),
		version: build.Version(), bulkFrom: bulkFrom, exceptFrom: exceptFrom, numbers: wal.MostNumbers, span: wal.Span,
		provedEvery: provedEvery, resignFor: 5 * time.Second,
	}
	for range cfg.Pumps {
		r.kicks = append(r.kicks, make(chan struct{}, 1))
	}
	return r, nil
}

// sql is a statement with the relay's schema.
func (r *Relay) sql(statement string) string { return r.schema.Expand(statement) }

// Run publishes until ctx ends, then finishes its claims within DrainTimeout, gives its lanes to the others and returns
// nil. It waits out an outage of Postgres or Kafka, at the start too. It returns an error if the first contact shows a
// problem that waiting cannot repair (no tables, no grant, a wrong password), or if the drain could not finish: the
// next owner publishes the rest. Nothing outlives Run.
func (r *Relay) Run(ctx context.Context) error {
	if err := r.start(lanes.Unassigned); err != nil {
		return err
	}
	defer r.running.Store(false)
	err := r.awake(ctx, true)
	for errors.Is(err, errIdle) {
		if r.undrained.Load() == 0 && !r.sleep(ctx) {
			return nil
		}
		if r.cfg.Woken != nil {
			if err := r.cfg.Woken(ctx); err != nil {
				return err
			}
		}
		r.identify(lanes.Unassigned)
		err = r.awake(ctx, false)
	}
	return err
}

// awake runs until ctx ends, or until the relay is to sleep: then it returns errIdle. Nothing outlives it.
func (r *Relay) awake(ctx context.Context, first bool) error {
	if r.cfg.FloorEvery > 0 {
		r.lanes.ExpectFloors()
	}
	ctx, end := context.WithCancelCause(ctx)
	cancel := func() { end(context.Canceled) }
	defer cancel()
	work, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()

	var pumps, others sync.WaitGroup
	pumpsDone := make(chan struct{})
	for i := range r.cfg.Pumps {
		pumps.Go(func() { r.pump(ctx, work, i) })
	}
	if r.cfg.Source == SourceWAL {
		r.wal.Store(int32(wal.Starting)) // before the first heartbeat
		pumps.Go(func() { r.followWAL(ctx, work) })
	}
	others.Go(func() { r.probe(ctx, func() { end(errIdle) }) })
	if r.cfg.FloorEvery > 0 {
		others.Go(func() { r.findFloors(ctx) })
	}
	others.Go(func() { r.revive(ctx, work) })
	if r.cfg.ArchiveDays > 0 {
		others.Go(func() { r.keepArchive(ctx) })
	}
	others.Go(func() { pumps.Wait(); close(pumpsDone) })
	others.Go(func() { <-ctx.Done(); r.limitDrain(work, abandon) })

	err := r.keep(work, pumpsDone, first)
	idle := errors.Is(context.Cause(ctx), errIdle)
	cancel()
	abandon()
	others.Wait()
	if idle {
		if err != nil { // its lanes are free when their lease has run out
			r.log.Warn("the relay goes to sleep and could not say so", "error", err)
		}
		return errIdle
	}
	if left := r.undrained.Load(); err == nil && left > 0 {
		err = fmt.Errorf("%w: %d events; their next owner sends them again", ErrNotDrained, left)
	}
	return err
}

// limitDrain ends work when the drain takes too long.
func (r *Relay) limitDrain(work context.Context, abandon func()) {
	if r.cfg.DrainTimeout > 0 {
		_ = sleep.For(work, r.cfg.DrainTimeout)
	}
	abandon()
}

// Once runs one step without loop, timer or goroutine: it joins, takes its share of the lanes, claims once (more often
// for held and released events), publishes, settles, and gives the lanes back. It returns how many events the publisher
// acked; 0 if none wait or if others own every lane. It blocks while the publisher is down, until ctx ends.
func (r *Relay) Once(ctx context.Context) (published int, err error) {
	if err := r.start(lanes.Unassigned); err != nil {
		return 0, err
	}
	defer r.running.Store(false)
	s := r.session("once")
	defer s.Close()
	err = r.checkSequence(ctx, s)
	if err == nil {
		err = r.beat(ctx, s)
	}
	if err != nil {
		if start := startError(err); start != nil {
			return 0, start
		}
		return 0, err
	}
	if err := r.assignPolled(ctx, s); err != nil {
		return 0, err
	}
	var refused error
	for step, steps := 0, onceSteps; step < steps; step++ {
		// Held and released events are found by the first claim, and sent by the next.
		if step > 0 && refused == nil && !r.lanes.Beside() {
			break
		}
		grants := r.lanes.Take(0, 1, time.Now())
		if len(grants) == 0 {
			break
		}
		var n int
		n, err = r.step(ctx, s, grants, nil)
		published += n
		if err != nil && !pgerr.Answered(err) {
			break
		}
		if err != nil { // lanes whose work is refused are claimed apart
			refused, steps = err, onceApart
		}
	}
	return published, errors.Join(cmp.Or(err, refused), r.resign(ctx, s))
}

// onceSteps: one for an open entry, and one each for held, released and new events. onceApart is enough to find the
// lanes whose work the server refuses, by halves, and to work on each of the others.
const (
	onceSteps = 4
	onceApart = 4 * Lanes
)

// start makes sure that only one start runs. Lanes have this source at first.
func (r *Relay) start(first lanes.Source) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("relay: this Relay runs already; make another one with New")
	}
	r.identify(first)
	return nil
}

// identify makes another identity, without knowledge of lanes.
func (r *Relay) identify(first lanes.Source) {
	r.owner, r.lanes = uuid.New(), lanes.New(first)
	r.table.Store(r.lanes)
	r.health = delivery.NewHealth(r.cfg.HoldAfter, time.Now(), newPauses)
	r.wal.Store(int32(wal.Off))
	r.waiting.Store(0)
	r.streaming.Store(0)
	r.undrained.Store(0)
	r.refused.Clear()
	r.proof.Store(nil)
	r.short.Store(true)
	r.beaten.Store(0)
}

func newPauses() delivery.Pauses { return outage.NewBackOff() }

// Wake makes the relay probe for events at once, and wakes a sleeping one. Call it after the commit of a transaction
// that appended, if producer and relay share a process. It never blocks.
func (r *Relay) Wake() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// requestProbe makes the prober probe at once.
func (r *Relay) requestProbe() {
	select {
	case r.probeAgain <- struct{}{}:
	default:
	}
}

// Stalled returns for how long events have waited in this relay's lanes while none was settled. It is 0 when nothing
// waits, and for a relay that owns no lanes.
func (r *Relay) Stalled() time.Duration {
	since := r.waiting.Load()
	if s := r.streaming.Load(); since == 0 || s != 0 && s < since {
		since = s
	}
	if since == 0 {
		return 0
	}
	return max(time.Since(time.Unix(0, max(since, r.moved.Load()))), 0)
}

// session is a session with Postgres, and the slices of its last claim for reuse.
type session struct {
	*pg.Session
	claimed, scratch buffers
}

func (r *Relay) session(name string) *session {
	return &session{Session: &pg.Session{
		Dial: pg.DialAs(r.db), Name: "effectonce relay " + name, Timeout: r.cfg.Lease,
		Reopened: func() { r.lanes.Reset() },
	}}
}

func (r *Relay) kickPumps() {
	for _, kick := range r.kicks {
		select {
		case kick <- struct{}{}:
		default:
		}
	}
}
