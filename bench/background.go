package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	proc "github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/relay"
)

// background is a relay process that runs until it is stopped or killed, or until this process ends.
type background struct {
	process *proc.Process
	answer  string // the file that it answers in
}

// laneTurn is when a relay last took a lane, and when it first had an ack for one of its events.
type laneTurn struct{ Taken, Published time.Time }

// background starts n relays. stop ends the running ones.
func (s *stack) background(n int, j job) (relays []*background, stop func(), err error) {
	j.Kind = "run"
	stop = func() {
		for _, b := range relays {
			b.process.Stop(syscall.SIGKILL, time.Second)
		}
	}
	for range n {
		b, err := s.startBackground(j)
		if err != nil {
			stop()
			return nil, nil, err
		}
		relays = append(relays, b)
	}
	return relays, stop, nil
}

func (s *stack) startBackground(j job) (*background, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.dir, "relay-")
	if err != nil {
		return nil, err
	}
	j.Answer = filepath.Join(dir, "answer")
	in, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, childArg)
	cmd.Stdin = bytes.NewReader(in)
	p, err := proc.Start(cmd, filepath.Join(dir, "log"), syscall.SIGKILL)
	return &background{p, j.Answer}, err
}

// end stops the relay with SIGTERM, and returns its measurements.
func (b *background) end() (a answer, err error) {
	b.process.Stop(syscall.SIGTERM, 30*time.Second)
	if err := b.process.Wait(); err != nil {
		return a, fmt.Errorf("a relay ended: %w\n%s", err, b.process.LogTail())
	}
	raw, err := os.ReadFile(b.answer)
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(raw, &a)
}

// shares returns how many lanes each live relay owns.
func (s *stack) shares(ctx context.Context) ([]int, error) {
	rows, err := s.db.Query(ctx, queryShares)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

// unevenness is the difference between the largest and the smallest share.
func unevenness(shares []int) int { return slices.Max(shares) - slices.Min(shares) }

// awaitShares waits until n relays own all lanes in equal shares.
func (s *stack) awaitShares(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		shares, err := s.shares(ctx)
		if err != nil {
			return fmt.Errorf("waiting for %d relays: %w", n, err)
		}
		owned := 0
		for _, share := range shares {
			owned += share
		}
		if len(shares) == n && owned == relay.Lanes && unevenness(shares) <= 1 {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for %d relays, with shares %v: %w", n, shares, err)
		}
	}
}

// awaitReader is awaitShares for one relay that may read the WAL.
func (s *stack) awaitReader(ctx context.Context, wal bool) error {
	if err := s.awaitShares(ctx, 1); err != nil || !wal {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		var n int
		if err := s.db.QueryRow(ctx, queryStreamed).Scan(&n); err != nil {
			return fmt.Errorf("waiting for a relay that reads the WAL: %w", err)
		}
		if n == relay.Lanes {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for a relay that reads the WAL, which has %d lanes: %w", n, err)
		}
	}
}

// lanePublisher is a publisher that notes laneTurns.
type lanePublisher struct {
	closingPublisher
	mu      sync.Mutex
	lanes   [relay.Lanes]laneTurn
	settled int
	last    time.Time // of the settles
}

func (w *lanePublisher) Publish(ctx context.Context, events []event.Event) []error {
	verdicts := w.closingPublisher.Publish(ctx, events)
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, err := range verdicts {
		// from the WAL it is -1
		if lane := events[i].Position.Lane; err == nil && lane >= 0 && w.lanes[lane].Published.IsZero() {
			w.lanes[lane].Published = now
		}
	}
	return verdicts
}

func (w *lanePublisher) observer() relay.Observer {
	return relay.Observer{
		LaneTaken: func(lane int16, _ int64) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lanes[lane] = laneTurn{Taken: time.Now()}
		},
		Settled: func(n, _ int, _ time.Duration) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.settled, w.last = w.settled+n, time.Now()
		},
	}
}

// runChild runs a relay until SIGTERM.
func runChild(ctx context.Context, j job) (a answer, err error) {
	pool, kafka, free, err := relayEnds(ctx, j, nil)
	if err != nil {
		return a, err
	}
	defer free()
	to := &lanePublisher{closingPublisher: kafka}
	r, err := relay.New(pool, to, relay.Config{
		Schema: "public", Source: j.source(), Pumps: j.Pumps, ClaimEvents: j.ClaimEvents, Lease: j.Lease,
		Logger: quiet(), Observer: to.observer(),
	})
	if err != nil {
		return a, err
	}
	if err := r.Run(ctx); err != nil {
		return a, err
	}
	if ctx.Err() == nil {
		return a, errors.New("the relay ended by itself")
	}
	a.Settled, a.LastSettle, a.Lanes = to.settled, to.last, to.lanes[:]
	return a, nil
}
