package main

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/pgconf"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/ui"
)

// openPages serves the pages over what the demo does, on this machine, until the stack is closed. It returns their
// address.
func (s *stack) openPages(ctx context.Context) (string, error) {
	cfg, err := pgconf.PoolConfig("--database-url", s.settings.DatabaseURL)
	if err != nil {
		return "", err
	}
	cfg.MaxConns = 4
	db, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return "", err
	}
	s.onClose(db.Close)
	transport := &kafka.Transport{}
	s.onClose(transport.CloseIdleConnections)
	pages, err := ui.New([]ui.Database{{Name: "demo", Pool: db, Schema: s.settings.Schema}}, ui.Config{
		Authorize: ui.Localhost("demo"),
		Kafka: &kafka.Client{
			Addr: kafka.TCP(s.settings.Brokers...), Timeout: 10 * time.Second, Transport: transport,
		},
	})
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	serving.Go(func() { _ = pages.Run(ctx) })
	serving.Go(func() { _ = process.Serve(ctx, l, pages) })
	s.onClose(func() {
		cancel()
		serving.Wait()
	})
	return "http://" + l.Addr().String() + "/", nil
}
