package worker

import (
	"context"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/metrics"
)

// Worker defines a worker.
type Worker struct {
	// Name is the inbox's consumer name.
	Name string
	// Tables are the worker's tables, the inbox's included.
	Tables Tables
	// Handler returns the handler with the worker's effect.
	Handler func(in *inbox.Inbox) inbox.Handler
	// Background runs beside the consumer until ctx ends. Optional.
	Background func(ctx context.Context, db *pgxpool.Pool) error
}

// Run consumes until ctx ends, then drains and returns nil. It fails on an invalid configuration and on missing tables,
// and waits for a database or a Kafka that is away.
func Run(ctx context.Context, cfg Config, w Worker) error {
	cfg = cfg.withDefaults(w.Name)
	listener, err := listen(cfg)
	if err != nil {
		return err
	}
	if listener != nil {
		defer listener.Close() // for returns before ServeOn, which closes it too
	}
	db, err := NewDB(ctx, cfg.database(), cfg.Schema, w.Tables, cfg.SkipMigrate, cfg.Logger)
	if err != nil {
		return fmt.Errorf("%s: %w", w.Name, err)
	}
	defer db.Close()
	registry := prometheus.NewRegistry()
	workerMetrics, err := metrics.NewWorker(registry, w.Name)
	if err != nil {
		return err
	}
	cfg.Inbox.Observer = metrics.Both(workerMetrics.Inbox(), cfg.Inbox.Observer)
	cfg.Consumer.Observer = metrics.Both(workerMetrics.Consumer(), cfg.Consumer.Observer)
	in, err := inbox.New(db.Pool, w.Name, cfg.Inbox)
	if err != nil {
		return err
	}
	c, err := consumer.New(w.Handler(in), cfg.Brokers, []string{cfg.Topic}, cfg.Consumer)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	// Serve before the database answers, so that a liveness probe does not restart a worker that waits for it.
	group.Go(func() error { return service.ServeOn(ctx, listener, health(db, c, registry).Handler()) })
	group.Go(func() error {
		if err := db.Prepare(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("%s: %w", w.Name, err)
		}
		group.Go(func() error { return in.Run(ctx) })
		group.Go(func() error { return c.Run(ctx) })
		group.Go(func() error { return workerMetrics.Run(ctx, in, c) })
		if w.Background != nil {
			group.Go(func() error { return w.Background(ctx, db.Pool) })
		}
		return nil
	})
	return group.Wait()
}

func listen(cfg Config) (net.Listener, error) {
	if cfg.Listener != nil || cfg.Listen == "" {
		return cfg.Listener, nil
	}
	return service.Listen(cfg.Listen)
}
