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

// snapshotRate is how many events a second are appended while the snapshot is open.
const snapshotRate = 1000

// snapshotCase: a relay works while somebody's snapshot stays open, so that no vacuum takes away what it deletes. Claims must
// not become slower as the dead rows pile up. The figures are claims a second of claiming, minute by minute; the warm-up is
// the first half minute, before the snapshot.
func snapshotCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("snapshot", fmt.Sprintf("%d events a second appended for %v under a pinned snapshot; the figures are 1/median claim time, in each %v", snapshotRate, o.snapshot, snapshotSlice))
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
	times := &claimTimes{}
	relayed, err := s.relayBeside(ctx, topic, times)
	if err != nil {
		return err
	}
	pages := &pageCounts{}
	appended := make(chan error, 1)
	go func() { appended <- appendEvery(ctx, s.db, 10*time.Millisecond, topic, snapshotRate/100) }()
	slice := func() (figure, error) {
		select {
		case err := <-relayed:
			return figure{}, errors.Join(errors.New("the relay ended"), err)
		case err := <-appended:
			return figure{}, errors.Join(errors.New("the producer ended"), err)
		case <-time.After(snapshotSlice):
		}
		n, median, worst := times.take()
		if n == 0 {
			return figure{}, errors.New("no claim in a whole slice")
		}
		read, err := pages.since(ctx, s)
		if err != nil {
			return figure{}, err
		}
		rep.say("  %d claims, median %v, worst %v; pages read per claim: %s", n, median, worst, read.per(n))
		return figure{Case: "snapshot", Name: "claim", Events: n, Rate: 1 / median.Seconds(), Seconds: worst.Seconds()}, nil
	}
	first, err := slice()
	if err != nil {
		return err
	}
	rep.add(first)
	pin, err := s.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err
	}
	defer func() { _ = pin.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := pin.Exec(ctx, queryPinSnapshot); err != nil {
		return err
	}
	var all []figure
	for turn := 1; turn <= max(int(o.snapshot/snapshotSlice), 2); turn++ {
		f, err := slice()
		if err != nil {
			return err
		}
		f.Turn = turn
		rep.add(f)
		all = append(all, f)
	}
	var dead int64
	if err := s.db.QueryRow(ctx, queryDead).Scan(&dead); err != nil {
		return err
	}
	rep.say("  %d dead rows in outbox_event at the end", dead)
	rep.goal("snapshot", "claim rate, last slice / first slice", 0.9, []float64{all[len(all)-1].Rate / all[0].Rate})
	cancel()
	return errors.Join(<-relayed, ignoreCanceled(<-appended))
}

// snapshotSlice is how long one figure of the snapshot case is measured.
const snapshotSlice = 30 * time.Second

// relayBeside runs a relay in this process until ctx ends.
func (s *stack) relayBeside(ctx context.Context, topic string, times *claimTimes) (done <-chan error, err error) {
	to, err := newPublisher(job{Brokers: s.brokers, Topic: topic}, nil)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, s.pg.URL())
	if err != nil {
		return nil, err
	}
	r, err := relay.New(pool, to, relay.Config{Schema: "public", Logger: quiet(), Observer: relay.Observer{
		Claimed: func(_, _ int, took time.Duration) { times.add(took) },
	}})
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() {
		defer pool.Close()
		defer func() { _ = to.Close() }()
		ended <- r.Run(ctx)
	}()
	return ended, nil
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

// pageCounts are the pages that were read of each table, since the last look.
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

// claimTimes collects how long claims took.
type claimTimes struct {
	mu  sync.Mutex
	all []time.Duration
}

func (c *claimTimes) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, d)
}

func (c *claimTimes) take() (n int, median, worst time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n = len(c.all); n > 0 {
		slices.Sort(c.all)
		median, worst = c.all[n/2], c.all[n-1]
	}
	c.all = nil
	return n, median, worst
}
