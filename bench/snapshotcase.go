package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay"
)

// snapshotRate is the rate of appends while the snapshot is open.
const snapshotRate = 1000

// snapshotCase: a relay works while an open snapshot keeps vacuum from removing dead rows, and claims must not become
// slower. The figures are claims per second of claiming, slice by slice; the warm-up is the first slice, before the
// snapshot.
func snapshotCase(ctx context.Context, s *stack, o options, rep *report) error {
	each := min(snapshotSlice, o.snapshot/4)
	rep.note("snapshot", fmt.Sprintf("%d events per second are appended for %v under a pinned snapshot. The figures "+
		"are 1/median claim time, in each %v", snapshotRate, o.snapshot, each))
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyOutbox, queryVacuumOutbox); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	to, err := newPublisher(job{Brokers: s.brokers, Topic: topic}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	w, err := s.watchClaims(ctx, to, relay.Config{})
	if err != nil {
		return err
	}
	defer w.append(ctx, s, 10*time.Millisecond, topic, snapshotRate/100)()
	slice := func(turn int) (figure, error) {
		f, err := w.slice(ctx, s, rep, each)
		if err == nil {
			f.Case, f.Name, f.Turn = "snapshot", "claim", turn
			rep.add(f)
		}
		return f, err
	}
	if _, err := slice(0); err != nil {
		return err
	}
	closeSnapshot, err := s.openSnapshot(ctx)
	if err != nil {
		return err
	}
	defer closeSnapshot()
	var all []figure
	for turn := 1; turn <= max(int(o.snapshot/each), 2); turn++ {
		f, err := slice(turn)
		if err != nil {
			return err
		}
		all = append(all, f)
	}
	var entries, rows int64
	if err := s.db.QueryRow(ctx, queryDead).Scan(&entries, &rows); err != nil {
		return err
	}
	rep.printf("  about %d dead rows in outbox_claim and %d in outbox_event at the end", entries, rows)
	rep.goal("snapshot", "claim rate, last slice / first slice", 0.9, []float64{all[len(all)-1].Rate / all[0].Rate})
	cancel()
	return w.end()
}

// snapshotSlice is the time of one figure of the snapshot case, unless the whole run is short.
const snapshotSlice = 30 * time.Second

// claimWatch is a relay in this process, whose claims are timed.
type claimWatch struct {
	times   timings // of claims
	pages   pageCounts
	relayed chan error
	failed  chan error // of a producer beside it
}

// watchClaims runs a relay until ctx ends.
func (s *stack) watchClaims(ctx context.Context, to relay.Publisher, cfg relay.Config) (*claimWatch, error) {
	w := &claimWatch{relayed: make(chan error, 1), failed: make(chan error, 1)}
	pool, err := pgxpool.New(ctx, s.pg.URL())
	if err != nil {
		return nil, err
	}
	cfg.Schema, cfg.Logger = "public", quiet()
	cfg.Observer.Claimed = func(_, _ int, took time.Duration) { w.times.add(took) }
	r, err := relay.New(pool, to, cfg)
	if err != nil {
		return nil, err
	}
	go func() {
		defer pool.Close()
		w.relayed <- r.Run(ctx)
	}()
	return w, nil
}

// append starts to append n events at every tick, until stop is called.
func (w *claimWatch) append(ctx context.Context, s *stack, every time.Duration, topic string, n int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := ignoreCanceled(appendEvery(ctx, s.db, every, topic, n)); err != nil {
			w.fail(err)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// end waits until the relay has ended, and returns its error.
func (w *claimWatch) end() error {
	err := <-w.relayed
	select {
	case failed := <-w.failed:
		return errors.Join(err, failed)
	default:
		return err
	}
}

// fail notes the end of a producer; the first one counts.
func (w *claimWatch) fail(err error) {
	select {
	case w.failed <- err:
	default:
	}
}

// wait sleeps, or returns early with the error of the relay or a producer.
func (w *claimWatch) wait(d time.Duration) error {
	select {
	case err := <-w.relayed:
		return errors.Join(errors.New("the relay ended"), err)
	case err := <-w.failed:
		return errors.Join(errors.New("the producer ended"), err)
	case <-time.After(d):
		return nil
	}
}

// claims returns the number and times of the claims since the last call.
func (w *claimWatch) claims() (n int, median, worst time.Duration) {
	all := w.times.take()
	if n = len(all); n > 0 {
		median, worst = all[n/2], all[n-1]
	}
	return n, median, worst
}

// slice measures the claims in a time.
func (w *claimWatch) slice(ctx context.Context, s *stack, rep *report, d time.Duration) (figure, error) {
	w.times.take()
	if _, err := w.pages.since(ctx, s); err != nil {
		return figure{}, err
	}
	if err := w.wait(d); err != nil {
		return figure{}, err
	}
	n, median, worst := w.claims()
	if n == 0 {
		return figure{}, errors.New("no claim in a whole slice")
	}
	read, err := w.pages.since(ctx, s)
	if err != nil {
		return figure{}, err
	}
	rep.printf("  %d claims, median %v, worst %v; pages read per claim: %s", n, median, worst, read.per(n))
	return figure{Events: n, Rate: 1 / median.Seconds(), Seconds: worst.Seconds()}, nil
}

// appendEvery appends n events at every tick, until ctx ends.
func appendEvery(ctx context.Context, db *pgxpool.Pool, every time.Duration, topic string, n int) error {
	payload := payloads(1000)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			return outbox.Append(ctx, tx, events(topic, n, payload)...)
		})
		if err != nil {
			return err
		}
	}
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// pageCounts are the pages that were read of each table since the last call.
type pageCounts struct {
	last, now map[string]int64
}

func (p *pageCounts) since(ctx context.Context, s *stack) (*pageCounts, error) {
	rows, err := s.db.Query(ctx, queryBuffers)
	if err != nil {
		return nil, err
	}
	p.last, p.now = p.now, map[string]int64{}
	var table string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&table, &n}, func() error { p.now[table] = n; return nil })
	return p, err
}

func (p *pageCounts) per(claims int) string {
	var out []string
	for _, table := range slices.Sorted(maps.Keys(p.now)) {
		if n := (p.now[table] - p.last[table]) / int64(claims); n > 0 {
			out = append(out, fmt.Sprintf("%s %d", table, n))
		}
	}
	return strings.Join(out, ", ")
}
