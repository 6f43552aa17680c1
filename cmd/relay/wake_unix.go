//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/effectonce/effectonce/relay"
)

// wakeOnSignal has a relay look for events, and wake if it sleeps, at each SIGUSR1.
func wakeOnSignal(ctx context.Context, r *relay.Relay) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			r.Wake()
		}
	}
}
