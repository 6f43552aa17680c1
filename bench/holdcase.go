package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay"
)

const (
	nameAlive       = "others, all alive"
	nameDead        = "others, one partition dead"
	nameSteadyAlive = "others at a steady rate, all alive"
	nameSteadyDead  = "others at a steady rate, one partition dead"
)

// steadyRate is the rate of appends in the steady half of the hold case, far below the possible rate. It is measured
// for steadyFor, starting after steadyIn, when the dead partition is held.
const (
	steadyRate = 20_000
	steadyIn   = 8 * time.Second
	steadyFor  = 10 * time.Second
)

// holdCase: one of the partitions does not answer. The events of the others must go on nearly as fast; the rate is that
// of the others, from the moment at which the relay holds the dead partition (every lane waits for it for HoldAfter).
func holdCase(ctx context.Context, s *stack, o options, rep *report) error {
	payload := payloads(distinct)
	rep.note("hold", fmt.Sprintf("%d events of %d bytes over %d partitions. The rates are those of the partitions "+
		"other than the one that may be dead", o.events, payloadSize, partitions))
	for _, half := range []struct {
		kind, alive, dead string
		events            int
	}{{"hold", nameAlive, nameDead, o.events}, {"steady", nameSteadyAlive, nameSteadyDead, 0}} {
		for turn := range o.repeats + 1 {
			for _, name := range []string{half.alive, half.dead} {
				f, err := s.holdOnce(ctx, o, half.kind, name == half.dead, half.events, payload)
				if err != nil {
					return err
				}
				f.Name, f.Turn = name, turn
				rep.add(f)
			}
		}
		rep.ratio("hold", half.dead, half.alive, 0.9)
	}
	return s.exec(ctx, queryEmptyHeld)
}

// holdOnce measures once, with a backlog of waiting events.
func (s *stack) holdOnce(ctx context.Context, o options, kind string, dead bool, waiting int, payload [][]byte) (figure,
	error,
) {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return figure{}, err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyHeld); err != nil {
		return figure{}, err
	}
	if err := s.fill(ctx, topic, waiting, payload); err != nil {
		return figure{}, err
	}
	a, err := child(ctx, job{Kind: kind, URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Pumps: o.pumps, Dead: dead})
	return figure{Case: "hold", Events: a.Others, Seconds: a.Seconds, Rate: float64(a.Others) / max(a.Seconds, 1e-9)},
		err
}

// partlyDead is a publisher with a partition that may be dead.
type partlyDead struct {
	closingPublisher
	dead   bool
	others atomic.Int64 // acked, beside the first partition
}

// deadPartition is the partition that may be dead.
const deadPartition = 0

func (h *partlyDead) Publish(ctx context.Context, events []event.Event) []error {
	route, err := h.Route(ctx, events[0].Topic)
	if err != nil {
		return h.closingPublisher.Publish(ctx, events)
	}
	alive, at := make([]event.Event, 0, len(events)), make([]int, 0, len(events))
	verdicts := make([]error, len(events))
	others := 0
	for i := range events {
		first := route(&events[i]) == deadPartition
		if first && h.dead {
			verdicts[i] = errors.New("no answer")
			continue
		}
		if !first {
			others++
		}
		alive, at = append(alive, events[i]), append(at, i)
	}
	for i, err := range h.closingPublisher.Publish(ctx, alive) {
		if verdicts[at[i]] = err; err != nil {
			others = 0 // do not count a failed call
		}
	}
	h.others.Add(int64(others))
	return verdicts
}

// holdChild drains until all events are published or held.
func holdChild(ctx context.Context, j job) (a answer, err error) {
	pool, kafka, free, err := relayEnds(ctx, j, nil)
	if err != nil {
		return a, err
	}
	defer free()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	to := &partlyDead{closingPublisher: kafka, dead: j.Dead}
	type moment struct {
		at     time.Time
		others int64
	}
	var began atomic.Pointer[moment]
	began.Store(&moment{at: time.Now()})
	r, err := relay.New(pool, to, relay.Config{
		Schema: "public", Pumps: j.Pumps, Logger: quiet(), DrainTimeout: -1,
		Observer: relay.Observer{
			Closed: func(string, int32, error) { began.Store(&moment{time.Now(), to.others.Load()}) },
		},
	})
	if err != nil {
		return a, err
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for left := true; left; {
		select {
		case err := <-ended:
			return a, errors.Join(errors.New("the relay ended"), err)
		case <-time.After(20 * time.Millisecond):
		}
		if err := pool.QueryRow(ctx, queryAnyLeft).Scan(&left); err != nil {
			return a, err
		}
	}
	from := began.Load()
	a.Seconds, a.Others = since(from.at), int(to.others.Load()-from.others)
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, relay.ErrNotDrained) {
		return a, err
	}
	return a, nil
}

// steadyChild relays while a producer appends.
func steadyChild(ctx context.Context, j job) (a answer, err error) {
	pool, kafka, free, err := relayEnds(ctx, j, nil)
	if err != nil {
		return a, err
	}
	defer free()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	to := &partlyDead{closingPublisher: kafka, dead: j.Dead}
	r, err := relay.New(pool, to, relay.Config{Schema: "public", Pumps: j.Pumps, Logger: quiet(), DrainTimeout: -1})
	if err != nil {
		return a, err
	}
	ended, appended := make(chan error, 1), make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	go func() { appended <- appendEvery(ctx, pool, 50*time.Millisecond, j.Topic, steadyRate/20) }()
	wait := func(d time.Duration) error {
		select {
		case err := <-ended:
			return errors.Join(errors.New("the relay ended"), err)
		case err := <-appended:
			return errors.Join(errors.New("the producer ended"), err)
		case <-time.After(d):
			return nil
		}
	}
	if err := wait(steadyIn); err != nil {
		return a, err
	}
	began, before := time.Now(), to.others.Load()
	if err := wait(steadyFor); err != nil {
		return a, err
	}
	a.Seconds, a.Others = since(began), int(to.others.Load()-before)
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, relay.ErrNotDrained) {
		return a, err
	}
	return a, ignoreCanceled(<-appended)
}
