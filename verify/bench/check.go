package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outbox"
)

const (
	baselineFile = "baseline.json"
	checkTurns   = 5
	checkEvents  = 60_000 // in batches
	checkSingles = 3_000  // with a transaction each
	// checkBacklog is a drain's events: with few, a relay has all of its floors at once.
	checkBacklog = 1_000_000

	// By how much an event may cost more than the baseline says, with nothing else on the machine.
	mostCPU, mostAllocations = 1.35, 1.05
)

// cost is what an event costs: CPU of all processes, and objects allocated by ours.
type cost struct {
	// CPU is a ratio to that of an event of a calibration, which another load or machine slows as much.
	CPU         float64 `json:"cpu"`
	Allocations float64 `json:"allocations"`
}

// check measures the costs and compares them with the baseline, or writes it.
func (s *stack) check(ctx context.Context, o options, rep *report) error {
	now, err := s.costsOf(ctx, o, rep)
	if err != nil {
		return err
	}
	if o.baseline {
		text, err := json.MarshalIndent(now, "", "\t")
		return errors.Join(err, os.WriteFile(baselineFile, append(text, '\n'), 0o644))
	}
	text, err := os.ReadFile(baselineFile)
	then := map[string]cost{}
	if err := errors.Join(err, json.Unmarshal(text, &then)); err != nil {
		return fmt.Errorf("the baseline: %w", err)
	}
	return judgeCosts(rep, then, now)
}

// judgeCosts prints the costs and returns an error if one is too high, or is missing in either.
func judgeCosts(rep *report, then, now map[string]cost) error {
	var errs []error
	rep.printf("| | CPU / calibration's, baseline | now | allocations, baseline | now |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(now)) {
		a, b := then[name], now[name]
		rep.printf("| %s | %s | %s | %s | %s |\n", name, number(a.CPU), number(b.CPU), number(a.Allocations),
			number(b.Allocations))
		switch {
		case a.CPU == 0:
			errs = append(errs, fmt.Errorf("%s is not in the baseline", name))
		case b.CPU > mostCPU*a.CPU:
			errs = append(errs, fmt.Errorf("%s: an event costs %.2f times the CPU of the baseline", name, b.CPU/a.CPU))
		case b.Allocations > mostAllocations*a.Allocations:
			errs = append(errs, fmt.Errorf("%s: an event costs %.2f times the allocations of the baseline", name,
				b.Allocations/a.Allocations))
		}
	}
	for name := range then {
		if _, ok := now[name]; !ok {
			errs = append(errs, fmt.Errorf("%s is in the baseline and was not measured", name))
		}
	}
	return errors.Join(errs...)
}

// costsOf measures the costs in turns and returns the medians. The calibrations are the same effects without an inbox,
// in batches and with a transaction each: machines differ in what a round trip and a COMMIT cost beside the rest.
func (s *stack) costsOf(ctx context.Context, o options, rep *report) (map[string]cost, error) {
	if err := s.exec(ctx, queryLedgerTable); err != nil {
		return nil, err
	}
	in, err := inbox.New(s.db, "ledger", inbox.Config{Schema: "public"})
	if err != nil {
		return nil, err
	}
	kinds, payload := s.checkedKinds(ctx, in), payloads(distinct)
	all := map[string][]cost{}
	for turn := range checkTurns + 1 {
		var unit float64
		for _, k := range kinds {
			if err := s.exec(ctx, queryEmptyInbox, queryEmptyOutbox, queryVacuumInbox, queryCheckpoint); err != nil {
				return nil, err
			}
			servers, own, objects := serverCPU(), selfCPU(), allocations()
			if err := k.do(); err != nil {
				return nil, fmt.Errorf("%s: %w", k.name, err)
			}
			used, n := serverCPU().minus(servers), float64(k.events)
			cpu := (used.postgres + selfCPU() - own) / n
			if k.name == "" {
				unit = cpu
				rep.tell("  check %d: a unit of %.2f µs", turn, unit*1e6)
				continue
			}
			all[k.name] = append(all[k.name], cost{cpu / unit, (allocations() - objects) / n})
		}
		f, err := s.drainOnce(ctx, o, checkBacklog, payload)
		if err != nil {
			return nil, err
		}
		all["relay"] = append(all["relay"], cost{(f.CPU + f.PostgresCPU + f.KafkaCPU) / 1e6 / unit, f.Allocations})
	}
	out := map[string]cost{}
	for name, turns := range all {
		var cpu, objects []float64
		for _, c := range turns[1:] { // without the warm-up
			cpu, objects = append(cpu, c.CPU), append(objects, c.Allocations)
		}
		var c cost
		c.CPU, _, _ = spread(cpu)
		c.Allocations, _, _ = spread(objects)
		out[name] = c
	}
	return out, nil
}

// checkedKind is a way to handle or append events.
type checkedKind struct {
	name   string // empty: the calibration of the next ones
	events int
	do     func() error
}

func (s *stack) checkedKinds(ctx context.Context, in *inbox.Inbox) []checkedKind {
	many, more := partitioned(checkEvents, inboxBatch, 4), partitioned(checkEvents, inboxBatch, 4)
	single, few := partitioned(checkSingles, 1, 4), partitioned(checkSingles, inboxBatch, 4)
	handled := func(h inbox.Handler, e []event.Event, size int) func() error {
		return func() error {
			_, err := stream(ctx, h, e, size, 4)
			return err
		}
	}
	appended := events("payments", checkSingles, payloads(distinct))
	for i := range appended {
		appended[i].ID = [16]byte{} // Append makes one
	}
	appendOne := func(ctx context.Context, tx pgx.Tx, e event.Event) error { return outbox.Append(ctx, tx, e) }
	return []checkedKind{
		{"", checkSingles, handled(s.alone(credit), single, 1)},
		{"inbox, each alone", checkSingles, handled(in.Each(credit), single, 1)},
		{"append", checkSingles, handled(s.alone(appendOne), appended, 1)},
		{"", 2 * checkEvents, func() error {
			plain := inbox.HandlerFunc(s.plainAll)
			return errors.Join(handled(plain, many, inboxBatch)(), handled(plain, more, inboxBatch)())
		}},
		{"inbox, batches", checkEvents, handled(in.Batch(creditAll), many, inboxBatch)},
		{"inbox, each in batches", checkSingles, handled(in.Each(credit), few, inboxBatch)},
	}
}
