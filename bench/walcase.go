package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/relay/operator"
)

const (
	nameWAL     = "relay that reads the WAL"
	nameTable   = "relay that polls"
	nameWALIdle = "empty outbox, relay that reads the WAL"
	// statements per second at most: the relay renews its lease every 5 s, and checks for missed notifications
	walHeartbeats = 4
)

// walCase compares a relay that reads the WAL with one that polls, in turns: the latency, the rate of a drain of a
// backlog that grew while the relay was paused, and the cost while idle.
func walCase(ctx context.Context, s *stack, o options, rep *report) (err error) {
	rep.note("wal", fmt.Sprintf("The latency is measured as in the case latency, at %d events per second, in turns "+
		"of %v. The drains are as in the case relays, of %d events that were appended while the relay was stopped. "+
		"The rates of the empty outbox are statements per second", latencyRate, o.live.latency, o.live.relayEvents))
	if _, err := operator.SetUpWAL(ctx, s.db, "public"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.dropWAL(ctx)) }()
	payload := payloads(distinct)
	for turn := range o.repeats + 1 {
		for _, name := range []string{nameTable, nameWAL} {
			m, err := s.latencyOnce(ctx, o, name, o.live.latency, payload)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			times := latencies(m.due, m.arrived, m.warm)
			f := m.figure
			f.Case, f.Name, f.Turn = "wal", name, turn
			f.P50, f.P99 = milliseconds(percentile(times, 0.5)), milliseconds(percentile(times, 0.99))
			rep.add(f)
			rep.printf("    p50 %.1f, p99 %.1f, max %.1f ms", f.P50, f.P99, milliseconds(times[len(times)-1]))
			if f, _, err = s.drainShared(ctx, o, 1, name == nameWAL, payload); err != nil {
				return fmt.Errorf("%s, drain: %w", name, err)
			}
			f.Case, f.Name, f.Turn = "wal", name+drainOf, turn
			rep.add(f)
		}
	}
	rep.atMost("wal", nameWAL+", p50 ms", 5, rep.pick("wal", nameWAL, func(f figure) float64 { return f.P50 }))
	rep.ratio("wal", nameWAL+drainOf, nameTable+drainOf, 0.6)
	return s.idleReader(ctx, o, rep)
}

const drainOf = ", drain"

// idleReader measures a relay that reads the WAL of an empty outbox.
func (s *stack) idleReader(ctx context.Context, o options, rep *report) error {
	if err := s.exec(ctx, queryEmptyOutbox, queryVacuumOutbox); err != nil {
		return err
	}
	a, err := child(ctx, job{
		Kind: "idle", URL: s.pg.URL(), Brokers: s.brokers, Pumps: o.pumps,
		IdleAfter: 3 * time.Second, Length: o.live.idle, WAL: true,
	})
	if err != nil {
		return err
	}
	c := a.Costs[1]
	n := float64(max(c.Statements, 1))
	rep.add(figure{
		Case: "wal", Name: nameWALIdle, Turn: 1, Events: int(c.Statements), Seconds: c.Seconds, Rate: n / c.Seconds,
		CPU: c.CPU * 1e6 / n, PostgresCPU: c.PostgresCPU * 1e6 / n,
	})
	rep.printf("    %.2f%% of one core for the relay, %.2f%% for its backends in Postgres", 100*c.CPU/c.Seconds,
		100*c.PostgresCPU/c.Seconds)
	rep.atMost("wal", nameWALIdle+", statements/s", walHeartbeats, []float64{float64(c.Statements) / c.Seconds})
	return nil
}

// dropWAL drops the slot once no relay is connected to it.
func (s *stack) dropWAL(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for {
		_, err := operator.DropWAL(ctx, s.db, "public")
		if !errors.Is(err, operator.ErrSlotInUse) {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
