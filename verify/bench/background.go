package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	proc "github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/relay"
)

// background is a relay process that runs until it is stopped or killed, or until this process ends.
type background struct {
	process *proc.Process
	answer  string // the file that it answers in
}

// background starts n relays. stop ends the running ones.
func (s *stack) background(n int, j job) (relays []*background, stop func(), err error) {
	j.URL, j.Brokers, j.Relay = s.pg.URL(), s.brokers, true
	stop = func() {
		for _, b := range relays {
			b.process.Stop(syscall.SIGKILL, time.Second)
		}
	}
	for i := range n {
		log := filepath.Join(s.dir, fmt.Sprintf("relay-%d", i))
		j.Answer = log + ".answer"
		cmd, err := command(context.Background(), j) // stop and this process's end end it
		var p *proc.Process
		if err == nil {
			p, err = proc.Start(cmd, log, syscall.SIGKILL)
		}
		if err != nil {
			stop()
			return nil, nil, err
		}
		relays = append(relays, &background{p, j.Answer})
	}
	return relays, stop, nil
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

// awaitRelays waits until n relays own all lanes in equal shares, or with wal until the one has passed them to its
// reader.
func (s *stack) awaitRelays(ctx context.Context, n int, wal bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		var relays, owned, least, most, streamed int
		err := s.db.QueryRow(ctx, queryShares).Scan(&relays, &owned, &least, &most, &streamed)
		switch {
		case err != nil:
			return fmt.Errorf("waiting for %d relays: %w", n, err)
		case relays == n && owned == relay.Lanes && most-least <= 1 && (!wal || streamed == owned):
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for %d relays: there are %d with %d lanes, of them %d streamed: %w", n, relays,
				owned, streamed, err)
		}
	}
}
