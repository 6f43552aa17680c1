package main

import (
	"context"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay"
)

// The claims case makes an hour's worth of claims in minutes, with many pumps, small claims and no Kafka. A few events
// are appended each tick while it measures, and many in between.
const (
	claimsSlices = 3
	claimsPumps  = 16
	claimsTick   = 10 * time.Millisecond
	claimsCalm   = 5 // events a tick
	claimsStorm  = 100
	nameFirst    = "claims, at the start"
	nameLast     = "claims, at the end"
)

// claimsCase: an open snapshot keeps the dead rows of all settled claims and events. A claim of few events must be as
// fast after an hour's worth of claims as at the start. The figures are claims per second of claiming.
func claimsCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("claims", fmt.Sprintf("%d claims under a pinned snapshot by %d pumps, without Kafka. Before and after "+
		"them, %d slices of %v with %d events per second are measured. A rate is 1/median claim time", o.claims,
		claimsPumps, claimsSlices, o.claimsSlice, claimsCalm*int(time.Second/claimsTick)))
	if err := s.exec(ctx, queryEmptyOutbox, queryVacuumOutbox); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := s.watchClaims(ctx, ackAll{}, relay.Config{Pumps: claimsPumps, ClaimEvents: relay.Lanes})
	if err != nil {
		return err
	}
	calm := func(name string, turn int) error {
		stop := w.append(ctx, s, claimsTick, "none", claimsCalm)
		defer stop()
		f, err := w.slice(ctx, s, rep, o.claimsSlice)
		if err == nil {
			f.Case, f.Name, f.Turn = "claims", name, turn
			rep.add(f)
		}
		return err
	}
	if err := calm(nameFirst, 0); err != nil {
		return err
	}
	closeSnapshot, err := s.openSnapshot(ctx)
	if err != nil {
		return err
	}
	defer closeSnapshot()
	for turn := 1; turn <= claimsSlices; turn++ {
		if err := calm(nameFirst, turn); err != nil {
			return err
		}
	}
	if err := w.runClaims(ctx, s, rep, o.claims); err != nil {
		return err
	}
	for turn := range claimsSlices + 1 {
		if err := calm(nameLast, turn); err != nil {
			return err
		}
	}
	rep.ratio("claims", nameLast, nameFirst, 0.9)
	cancel()
	return w.end()
}

// runClaims makes claims until there were so many.
func (w *claimWatch) runClaims(ctx context.Context, s *stack, rep *report, claims int) error {
	stop := w.append(ctx, s, claimsTick, "none", claimsStorm)
	defer stop()
	began, made := time.Now(), 0
	for told := began; made < claims; {
		if err := w.wait(100 * time.Millisecond); err != nil {
			return err
		}
		n, median, worst := w.claims()
		if made += n; time.Since(told) > 30*time.Second {
			told = time.Now()
			rep.printf("  %d claims, median now %v, worst %v", made, median, worst)
		}
	}
	stop()
	var entries, rows int64
	if err := s.db.QueryRow(ctx, queryDead).Scan(&entries, &rows); err != nil {
		return err
	}
	rep.printf("  %d claims in %.0f s; about %d dead rows in outbox_claim, %d in outbox_event", made, since(began),
		entries, rows)
	return nil
}

// ackAll is a publisher that acks at once.
type ackAll struct{}

func (ackAll) Publish(_ context.Context, events []event.Event) []error {
	return make([]error, len(events))
}
