package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/relay"
)

const (
	nameAwake = "empty outbox, relay awake"
	nameIdle  = "empty outbox, relay idle"
)

// cost is that of an idle relay in some time.
type cost struct {
	Seconds     float64
	Statements  int64   // each statement of a pipeline counts
	CPU         float64 // seconds, of the relay's process
	PostgresCPU float64 // seconds, of the backends that serve it
}

func (c cost) minus(before cost) cost {
	return cost{
		c.Seconds - before.Seconds, c.Statements - before.Statements, c.CPU - before.CPU,
		c.PostgresCPU - before.PostgresCPU,
	}
}

// idleRelay measures a relay of an empty outbox: during its first IdleAfter, in which it polls as often as with events,
// and after that.
func (s *stack) idleRelay(ctx context.Context, o options, rep *report) error {
	if err := s.exec(ctx, queryEmptyOutbox, queryVacuumOutbox); err != nil {
		return err
	}
	a, err := child(ctx, job{
		Kind: "idle", URL: s.pg.URL(), Brokers: s.brokers, Pumps: o.pumps,
		IdleAfter: o.live.idleAfter, Length: o.live.idle,
	})
	if err != nil {
		return err
	}
	for i, c := range a.Costs {
		name := []string{nameAwake, nameIdle}[i]
		n := float64(c.Statements)
		rep.add(figure{
			Case: "latency", Name: name, Turn: 1, Events: int(c.Statements), Seconds: c.Seconds, Rate: n / c.Seconds,
			CPU: c.CPU * 1e6 / n, PostgresCPU: c.PostgresCPU * 1e6 / n,
		})
		rep.printf("    %.2f%% of one core for the relay, %.2f%% for its backends in Postgres", 100*c.CPU/c.Seconds,
			100*c.PostgresCPU/c.Seconds)
	}
	idle := a.Costs[1]
	rep.atMost("latency", nameIdle+", % of one core", 1, []float64{100 * idle.CPU / idle.Seconds})
	rep.atMost("latency", nameIdle+", statements/s", 60, []float64{float64(idle.Statements) / idle.Seconds})
	return nil
}

// idleChild runs a relay of an empty outbox.
func idleChild(ctx context.Context, j job) (a answer, err error) {
	to, err := newPublisher(j, nil)
	if err != nil {
		return a, err
	}
	defer func() { _ = to.Close() }()
	cfg, err := pgxpool.ParseConfig(j.URL)
	if err != nil {
		return a, err
	}
	counted := &statements{backends: map[int]bool{}}
	cfg.ConnConfig.Tracer = counted
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return a, err
	}
	defer pool.Close()
	r, err := relay.New(pool, to, relay.Config{
		Schema: "public", Source: j.source(), Pumps: j.Pumps,
		IdleAfter: j.IdleAfter, Logger: quiet(),
	})
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	started := time.Now()
	go func() { ended <- r.Run(ctx) }()
	idleAfter := j.IdleAfter
	if idleAfter == 0 {
		idleAfter = 30 * time.Second // the default
	}
	// The join and the take-over of the lanes end within the first tenth, the last poll after IdleAfter within a second
	// or two.
	var at []cost
	for _, moment := range []time.Duration{idleAfter / 10, idleAfter * 9 / 10, idleAfter + 2*time.Second, idleAfter +
		2*time.Second + j.Length} {
		select {
		case err := <-ended:
			return a, errors.Join(errors.New("the relay ended"), err)
		case <-time.After(moment - time.Since(started)):
		}
		at = append(at, counted.costSoFar(time.Since(started)))
	}
	a.Costs = []cost{at[1].minus(at[0]), at[3].minus(at[2])}
	cancel()
	if err := <-ended; err != nil {
		return a, fmt.Errorf("the idle relay: %w", err)
	}
	return a, nil
}

// statements counts the statements of a relay, and notes the backends that served it.
type statements struct {
	mu       sync.Mutex
	n        int64
	backends map[int]bool // process ids
}

func (s *statements) add(conn *pgx.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	s.backends[int(conn.PgConn().PID())] = true
}

func (s *statements) costSoFar(running time.Duration) cost {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := cost{Seconds: running.Seconds(), Statements: s.n, CPU: selfCPU()}
	for pid := range s.backends {
		self, _ := cpuOf(pid)
		c.PostgresCPU += self
	}
	return c
}

// TraceQueryStart counts a statement outside a pipeline.
func (s *statements) TraceQueryStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.add(conn)
	return ctx
}

// TraceQueryEnd does nothing.
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart does nothing.
func (*statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery counts a statement of a pipeline.
func (s *statements) TraceBatchQuery(_ context.Context, conn *pgx.Conn, _ pgx.TraceBatchQueryData) {
	s.add(conn)
}

// TraceBatchEnd does nothing.
func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
