package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"strings"

	"github.com/effectonce/effectonce/verify/bench/plan"
)

// costsFile is written by the costs case and read by -model and the simulation, relative to this directory.
const costsFile = "costs.json"

// How the steady loads are appended.
const (
	steadyAppend    = 20
	steadyProducers = 16
)

// simulationCase compares the simulation of the chain from append to effect, which uses the costs of its steps, with
// measurements of the chain: at steady rates, and in a drain of a backlog.
func simulationCase(ctx context.Context, s *stack, o options, rep *report) error {
	costs, err := o.readCosts(s)
	if err != nil {
		return err
	}
	if _, err := s.db.Exec(ctx, queryLedgerTable); err != nil {
		return err
	}
	cores := float64(runtime.NumCPU())
	rep.note("simulation", fmt.Sprintf("The chain of append (%d events per transaction, %d producers), relay, Kafka "+
		"and an inbox with a ledger row, simulated with measured costs on %.0f cores. CPU is per event. The latency "+
		"ends when the effect is committed", steadyAppend, steadyProducers, cores))
	costs.Checks = nil
	for _, l := range []plan.Load{{Rate: 5000}, {Rate: 20_000}, {Waiting: o.costEvents}} {
		l.PerAppend, l.Producers, l.Seconds, l.Cores = steadyAppend, steadyProducers, o.steady, cores
		l.Pumps, l.Partitions = 2, partitions
		name := fmt.Sprintf("%.0f events/s", l.Rate)
		if l.Waiting > 0 {
			name, l.Seconds = fmt.Sprintf("drain of %d", l.Waiting), 600
		}
		said := plan.Simulate(costs, l)
		rep.add(simulated(name+", simulated", said))
		observed, err := s.load(ctx, o, l, name+", measured", rep)
		if err != nil {
			return err
		}
		costs.Checks = append(costs.Checks, checks(name, said, observed)...)
	}
	rep.tell("%s", plan.CheckTable(costs))
	if o.costs == "" {
		return nil
	}
	return plan.Write(o.costs, costs)
}

// readCosts returns the costs that this run has measured, or those in costsFile.
func (o options) readCosts(s *stack) (plan.Costs, error) {
	if s.costs != nil {
		return *s.costs, nil
	}
	return plan.Read(cmp.Or(o.costs, costsFile))
}

func simulated(name string, out plan.Outcome) figure {
	f := figure{Case: "simulation", Name: name, Turn: 1, Rate: out.Rate, P50: out.Apply50, P99: out.Apply99}
	if out.Rate > 0 {
		f.CPU, f.PostgresCPU, f.KafkaCPU = out.Client*1e6/out.Rate, out.Postgres*1e6/out.Rate, out.Kafka*1e6/out.Rate
	}
	return f
}

// load measures a load several times, and returns the medians without the warm-up.
func (s *stack) load(ctx context.Context, o options, l plan.Load, name string, rep *report) (plan.Outcome, error) {
	var all []plan.Outcome
	for turn := range o.repeats + 1 {
		g, err := s.loadOnce(ctx, o, l)
		if err != nil {
			return plan.Outcome{}, fmt.Errorf("%s: %w", name, err)
		}
		out := plan.Outcome{
			Rate: float64(g.Handled) / g.Seconds, Client: g.Client / g.Seconds, Postgres: g.Postgres / g.Seconds,
			Kafka: g.Kafka / g.Seconds, Publish50: g.Publish50, Publish99: g.Publish99, Apply50: g.Apply50,
			Apply99: g.Apply99,
		}
		f := simulated(name, out)
		f.Turn, f.Events, f.Seconds = turn, g.Handled, g.Seconds
		rep.add(f)
		if turn > 0 {
			all = append(all, out)
		}
	}
	var out plan.Outcome
	for _, q := range quantities() {
		var values []float64
		for i := range all {
			values = append(values, *q.field(&all[i]))
		}
		*q.field(&out), _, _ = spread(values)
	}
	return out, nil
}

func (s *stack) loadOnce(ctx context.Context, o options, l plan.Load) (g answer, err error) {
	topic, drop, err := s.topic(ctx)
	if err != nil {
		return g, err
	}
	defer drop()
	if err := s.fill(ctx, topic, l.Waiting, payloads(distinct)); err != nil {
		return g, err
	}
	if err := s.exec(ctx, queryEmptyInbox, queryVacuumInbox); err != nil {
		return g, err
	}
	one := job{
		URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Pumps: l.Pumps, Append: l.Rate > 0, Relay: true,
		Consume: true, Rate: l.Rate, PerAppend: l.PerAppend, Producers: l.Producers, Consumer: topic, Events: l.Waiting,
	}
	if l.Waiting == 0 {
		one.Seconds = l.Seconds
	}
	return child(ctx, one)
}

// quantity is a value that a check compares.
type quantity struct {
	name   string
	steady bool // means nothing in a drain, where every event was appended before
	field  func(*plan.Outcome) *float64
}

func quantities() []quantity {
	return []quantity{
		{"events/s", false, func(o *plan.Outcome) *float64 { return &o.Rate }},
		{"cores: producers, relay, workers", false, func(o *plan.Outcome) *float64 { return &o.Client }},
		{"cores: Postgres", false, func(o *plan.Outcome) *float64 { return &o.Postgres }},
		{"cores: Kafka", false, func(o *plan.Outcome) *float64 { return &o.Kafka }},
		{"ms until acked by Kafka, p50", true, func(o *plan.Outcome) *float64 { return &o.Publish50 }},
		{"ms until acked by Kafka, p99", true, func(o *plan.Outcome) *float64 { return &o.Publish99 }},
		{"ms until the effect, p50", true, func(o *plan.Outcome) *float64 { return &o.Apply50 }},
		{"ms until the effect, p99", true, func(o *plan.Outcome) *float64 { return &o.Apply99 }},
	}
}

func checks(load string, said, observed plan.Outcome) (out []plan.Check) {
	for _, q := range quantities() {
		if !q.steady || strings.HasSuffix(load, "/s") {
			out = append(out, plan.Check{
				Load: load, What: q.name, Predicted: *q.field(&said),
				Measured: *q.field(&observed),
			})
		}
	}
	return out
}
