package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay"
)

// member is an outbox of a fleet. It is asleep while nothing waits in it: nobody owns its lanes then.
type member struct {
	namedOutbox
	fleet *fleet
	db    database
	log   *slog.Logger
	leave func()
	done  chan struct{}
	pause backoff.BackOff

	checked bool   // its tables are right
	numbers bool   // and so are its numbers (checkRestored)
	highest int64  // the id that was drawn last; -1: not known
	outbox  string // which one it is to its server, once that is known; fleet.mu guards it

	mu      sync.Mutex
	relay   *relay.Relay // nil: asleep
	metrics *memberMetrics
	err     error // why it cannot be served
	since   time.Time
}

// run serves the outbox until ctx ends. What fails is tried again, with growing pauses.
func (m *member) run(ctx context.Context) {
	defer m.fleet.metrics.drop(m)
	m.highest = -1
	for ctx.Err() == nil {
		err := m.turn(ctx)
		if ctx.Err() != nil {
			return
		}
		m.report(err)
		if err != nil {
			_ = sleep.For(ctx, m.pause.NextBackOff())
		} else {
			m.pause.Reset()
		}
	}
}

// turn is one sleep and the work after it.
func (m *member) turn(ctx context.Context) error {
	pool, release, err := m.fleet.pool(m)
	if err != nil {
		return err
	}
	defer release()
	if !m.checked {
		checking, cancel := context.WithTimeout(ctx, time.Minute)
		err := m.db.checkSchema(checking, m.log, pool, m.fleet.Migrate)
		cancel()
		if err != nil {
			return withAdvice(err)
		}
		m.checked = true
	}
	if err := m.asleep(ctx, pool); err != nil || ctx.Err() != nil {
		return err
	}
	return m.awake(ctx, pool)
}

// asleep returns nil when there is work, or when ctx ends.
func (m *member) asleep(ctx context.Context, pool *pgxpool.Pool) error {
	began, next := time.Now(), time.Time{} // of the looks for all that may wait
	for ctx.Err() == nil {
		before, woken := m.highest, m.fleet.nextWake()
		whole := m.fleet.Sleep > 0 || time.Now().After(next)
		pause, work, err := m.look(ctx, pool, whole)
		if whole {
			next, pause = time.Now().Add(max(wholeEvery, pause)), watchEvery
		}
		switch {
		case err != nil:
			return withAdvice(err)
		case work, before >= 0 && m.highest != before, m.fleet.Source == "wal":
			return nil
		case m.fleet.ArchiveDays > 0 && (before < 0 || time.Since(began) > archiveTurn):
			return nil
		}
		m.report(nil)
		m.pause.Reset()
		m.fleet.rest(ctx, woken, pause)
	}
	return nil
}

// look asks which id was drawn last and, where all is to be seen, whether there is work. pause is how long the next
// such look waits at least.
func (m *member) look(ctx context.Context, pool *pgxpool.Pool, whole bool) (pause time.Duration, work bool,
	err error,
) {
	// Waiting for the connections that all share is not the outbox's time.
	waiting, got := context.WithTimeout(ctx, turnTimeout)
	conn, err := pool.Acquire(waiting)
	got()
	if err != nil {
		return watchEvery, false, fmt.Errorf("looking whether anything waits: %w", err)
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	since := time.Now()
	var w relay.Waiting
	if whole {
		w, err = relay.Waits(ctx, conn, m.db.Schema)
	} else {
		w.Highest, err = relay.Drawn(ctx, conn, m.db.Schema)
	}
	pause = max(watchEvery, watchShare*time.Since(since))
	if err == nil && (!whole || w.Outbox != "") {
		m.highest = w.Highest
	}
	if err == nil && w.Outbox != "" {
		err = m.fleet.claim(ctx, m, w.Outbox)
	}
	return pause, w.Work, err
}

// awake runs a relay until nothing has waited for a while, or ctx ends.
func (m *member) awake(ctx context.Context, shared *pgxpool.Pool) error {
	cfg, err := m.db.config()
	if err != nil {
		return err
	}
	cfg.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return fmt.Errorf("opening the database: %w", err)
	}
	defer pool.Close()
	metrics, err := m.fleet.metrics.of(m)
	if err != nil {
		return err
	}
	defer metrics.hide()
	pin, err := relay.Pins(pool, m.db.Schema)
	if err != nil {
		return service.Usage("schema: %w", err)
	}
	kafka := m.fleet.kafka.Share(pin, m.log, metrics.Publisher())
	defer func() { _ = kafka.Close() }()
	cfgOf := m.fleet.relayConfig()
	cfgOf.Schema, cfgOf.Logger, cfgOf.Observer = m.db.Schema, m.log, metrics.Observer()
	cfgOf.Sleep = 0 // it is ended instead
	r, err := relay.New(pool, kafka, cfgOf)
	if err != nil {
		return service.Usage("%s", asFlags(err))
	}
	if m.fleet.RestoreCheck && !m.numbers {
		if err := checkRestored(ctx, m.log, pool, m.db.Schema, m.fleet.conn); err != nil {
			return withAdvice(err)
		}
		m.numbers = true
	}
	return m.work(ctx, r, metrics, shared)
}

func (m *member) work(ctx context.Context, r *relay.Relay, metrics *memberMetrics, shared *pgxpool.Pool) error {
	m.log.Debug("events wait: the outbox has a relay")
	m.setRelay(r, metrics)
	defer m.setRelay(nil, nil)
	running, end := context.WithCancel(ctx)
	beside, endBeside := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	others.Go(func() { _ = metrics.Run(beside, r) })
	others.Go(func() { m.awaitIdle(running, shared); end() })
	err := r.Run(running)
	end()
	endBeside()
	others.Wait()
	if errors.Is(err, relay.ErrNotDrained) {
		m.log.Warn("the drain did not finish; nothing is lost, the next relay sends it again", "err", err)
		if ctx.Err() != nil {
			m.fleet.undrained.Add(1)
		}
		return nil
	}
	return withAdvice(err)
}

// awaitIdle returns when nothing was appended and nothing has waited for a while.
func (m *member) awaitIdle(ctx context.Context, pool *pgxpool.Pool) {
	idle := time.Now()
	for pause := watchEvery; sleep.For(ctx, pause) == nil; {
		before := m.highest
		after, work, err := m.look(ctx, pool, true)
		pause = after
		switch {
		case errors.Is(err, errListedTwice):
			return
		case err != nil, work, m.highest != before, m.fleet.Source == "wal":
			idle = time.Now()
		case time.Since(idle) >= m.fleet.IdleAfter:
			return
		}
	}
}

func (m *member) setRelay(r *relay.Relay, metrics *memberMetrics) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.relay, m.metrics = r, metrics
	if r != nil {
		m.err = nil
	}
}

// report says once what keeps the outbox from being served, and once that nothing does any more.
func (m *member) report(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil && m.err != nil:
		m.log.Info("the outbox can be looked at again")
	case err != nil && m.err == nil:
		m.since = time.Now()
		level := slog.LevelError
		if pgerr.Away(err) {
			level = slog.LevelWarn
		}
		m.log.Log(context.Background(), level, "the outbox is not served; it is tried again, and the others go on",
			"err", err)
	}
	m.err = err
}

// state is for metrics.
func (m *member) state() (awake, failing bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.relay != nil, m.err != nil
}

// unmoved says why nothing moves that should.
func (m *member) unmoved(after time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil && time.Since(m.since) > after:
		return m.err
	case m.relay == nil:
		return nil
	}
	if stalled := m.relay.Stalled(); stalled > after {
		return fmt.Errorf("events wait, and none was published for %v%s", stalled.Round(time.Second), m.metrics.away())
	}
	return nil
}
