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

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// member is an outbox of a fleet. It is asleep while it has no work: its lanes have no owner then.
type member struct {
	namedOutbox
	fleet *fleet
	db    database
	log   *slog.Logger
	leave func()
	done  chan struct{}
	pause backoff.BackOff

	checked bool   // its tables were checked
	numbers string // the identity of the outbox whose numbers were compared with Kafka's
	of      string // the identity of the outbox that was checked
	lastID  int64  // the last id that was drawn; -1: not known
	outbox  string // its identity on its server, once known; fleet.mu guards it
	left    bool   // it is not listed any more; so does fleet.mu

	mu      sync.Mutex
	relay   *relay.Relay // nil: asleep
	metrics *memberMetrics
	err     error // the reason why it cannot be served
	since   time.Time
}

// run serves the outbox until ctx ends. After an error it tries again, with growing pauses.
func (m *member) run(ctx context.Context) {
	defer m.fleet.metrics.drop(m)
	m.lastID = -1
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

// turn is one sleep and the relay's run after it.
func (m *member) turn(ctx context.Context) error {
	if m.wrong != nil {
		return m.wrong
	}
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
	if err := m.asleep(ctx, pool); err != nil || ctx.Err() != nil || !m.checked {
		return err
	}
	return m.awake(ctx, pool)
}

// asleep returns nil when there is work, or when ctx ends.
func (m *member) asleep(ctx context.Context, pool *pgxpool.Pool) error {
	began, next := time.Now(), time.Time{} // of the checks for all kinds of work
	for ctx.Err() == nil {
		before, woken := m.lastID, m.fleet.nextWake()
		whole := m.fleet.Sleep > 0 || time.Now().After(next)
		pause, work, err := m.checkWork(ctx, pool, whole)
		if whole {
			next, pause = time.Now().Add(max(wholeEvery, pause)), watchEvery
		}
		switch {
		case err != nil:
			return withAdvice(err)
		case !m.checked: // it is another one than before
			return nil
		case work, before >= 0 && m.lastID != before, m.fleet.Feed == "wal":
			if !whole { // only a whole check tells whether it is the same outbox
				_, _, err = m.checkWork(ctx, pool, true)
			}
			return withAdvice(err)
		case m.fleet.ArchiveDays > 0 && (before < 0 || time.Since(began) > archiveTurn):
			return nil
		}
		m.report(nil)
		m.pause.Reset()
		m.fleet.rest(ctx, woken, pause)
	}
	return nil
}

// checkWork reads the last drawn id and, if whole, whether there is any work. pause is the least pause before the next
// whole check.
func (m *member) checkWork(ctx context.Context, pool *pgxpool.Pool, whole bool) (pause time.Duration, work bool,
	err error,
) {
	// The wait for a shared connection does not count as the check's time.
	waiting, got := context.WithTimeout(ctx, turnTimeout)
	conn, err := pool.Acquire(waiting)
	got()
	if err != nil {
		return watchEvery, false, fmt.Errorf("checking whether events wait: %w", err)
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	since := time.Now()
	box, err := relay.Open(conn, m.db.Schema)
	if err != nil {
		return watchEvery, false, err
	}
	var w relay.Waiting
	if whole {
		w, err = box.Waits(ctx)
	} else {
		w.LastID, err = box.LastID(ctx)
	}
	pause = max(watchEvery, watchShare*time.Since(since))
	if err == nil && w.LastID >= 0 {
		m.lastID = w.LastID
	}
	switch {
	case err != nil && pgerr.Is(err, pgerr.UndefinedTable):
		m.checked = false
	case err == nil && w.Outbox != "":
		m.sees(w.Outbox)
		err = m.fleet.claim(ctx, m, w.Outbox)
	}
	return pause, w.Work, err
}

// sees compares the identity of the outbox with the one that was checked: its tables were restored or made anew, or
// another server answers.
func (m *member) sees(outbox string) {
	if m.of != "" && m.of != outbox {
		m.checked = false
		m.log.Info("the outbox's tables or its server are others than before: they are checked again")
	}
	m.of = outbox
}

// awake runs a relay until there has been no work for a while, or ctx ends.
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
	box, err := relay.Open(pool, m.db.Schema)
	if err != nil {
		return service.Usage("schema: %w", err)
	}
	first, pin := m.fleet.newFirstUses(m.log, pool, m.db.Schema, m.fleet.conn, box.Pin)
	kafka := m.fleet.kafka.Share(pin, m.log, metrics.Publisher())
	defer func() { _ = kafka.Close() }()
	cfgOf := m.fleet.relayConfig()
	cfgOf.Schema, cfgOf.Logger, cfgOf.Observer = m.db.Schema, m.log, metrics.Observer()
	cfgOf.Sleep = 0 // the fleet stops it instead
	first.checked = m.numbers
	cfgOf.Check = func(ctx context.Context) (string, error) { return first.compare(ctx, box) }
	r, err := relay.New(pool, kafka, cfgOf)
	if err != nil {
		return service.Usage("%s", asFlags(err))
	}
	return m.work(ctx, r, metrics, shared, first)
}

func (m *member) work(ctx context.Context, r *relay.Relay, metrics *memberMetrics, shared *pgxpool.Pool,
	first *firstUses,
) error {
	m.log.Debug("events wait: the outbox has a relay")
	m.setRelay(r, metrics)
	defer m.setRelay(nil, nil)
	running, end := context.WithCancel(ctx)
	beside, endBeside := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	others.Go(func() { _ = metrics.Run(beside, r) })
	others.Go(func() { m.awaitIdle(running, shared); end() })
	err := first.until(running, r.Run)
	end()
	endBeside()
	others.Wait()
	m.numbers = first.checked
	if _, outdated := errors.AsType[*operator.OutdatedError](err); outdated {
		m.numbers = ""
	}
	if errors.Is(err, relay.ErrNotDrained) {
		m.log.Warn("the drain did not finish; nothing is lost, the next relay sends them again", "error", err)
		if ctx.Err() != nil {
			m.fleet.undrained.Add(1)
		}
		return nil
	}
	return withAdvice(err)
}

// awaitIdle returns when for a while no event was appended and there was no work.
func (m *member) awaitIdle(ctx context.Context, pool *pgxpool.Pool) {
	idle := time.Now()
	for pause := watchEvery; sleep.For(ctx, pause) == nil; {
		before := m.lastID
		after, work, err := m.checkWork(ctx, pool, true)
		pause = after
		switch {
		case errors.Is(err, errListedTwice), !m.checked:
			return
		case err != nil, work, m.lastID != before, m.fleet.Feed == "wal":
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

// report logs once why the outbox cannot be served, and once when it can.
func (m *member) report(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil && m.err != nil:
		m.log.Info("the outbox can be checked again")
	case err != nil && m.err == nil:
		m.since = time.Now()
		level := slog.LevelError
		if pgerr.Away(err) {
			level = slog.LevelWarn
		}
		m.log.Log(context.Background(), level, "the outbox is not served; it is tried again, and the others go on",
			"error", err)
	}
	m.err = err
}

// state returns the state for metrics.
func (m *member) state() (awake, failing bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.relay != nil, m.err != nil
}

// unmoved returns the reason why waiting events are not published.
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
