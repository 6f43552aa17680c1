//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// wakeOnSignal calls wake at each SIGUSR1.
func wakeOnSignal(ctx context.Context, wake func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			wake()
		}
	}
}
