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

// Worker is what makes one worker differ from another.
type Worker struct {
	// Name is the inbox's consumer name.
	Name string
	// Tables are its own, beside the inbox's.
	Tables Tables
	// Handler makes its effect.
	Handler func(in *inbox.Inbox) inbox.Handler
	// Beside runs next to the consumer on the same database until ctx ends. Nil: nothing.
	Beside func(ctx context.Context, db *pgxpool.Pool) error
}

// Run consumes until ctx ends, then drains and returns nil. An error is a wrong configuration or missing tables;
// whatever is only away is waited for.
func Run(ctx context.Context, cfg Config, w Worker) error {
	cfg = cfg.withDefaults(w.Name)
	listener, err := listen(cfg)
	if err != nil {
		return err
	}
	if listener != nil {
		// ServeOn closes it, too; this is for the ways that do not get there.
		defer listener.Close()
	}
	db, err := Pool(ctx, cfg.database(), cfg.Schema, w.Tables, cfg.SkipMigrate, cfg.Logger)
	if err != nil {
		return fmt.Errorf("%s: %w", w.Name, err)
	}
	defer db.Close()
	registry := prometheus.NewRegistry()
	figures, err := metrics.NewWorker(registry, w.Name)
	if err != nil {
		return err
	}
	cfg.Inbox.Observer = metrics.Both(figures.Inbox(), cfg.Inbox.Observer)
	cfg.Consumer.Observer = metrics.Both(figures.Consumer(), cfg.Consumer.Observer)
	in, err := inbox.New(db.Pool, w.Name, cfg.Inbox)
	if err != nil {
		return err
	}
	c, err := consumer.New(w.Handler(in), cfg.Brokers, []string{cfg.Topic}, cfg.Consumer)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	// Before the database answers: whoever restarts by /healthz would restart a worker that only waits.
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
		group.Go(func() error { return figures.Run(ctx, in, c) })
		if w.Beside != nil {
			group.Go(func() error { return w.Beside(ctx, db.Pool) })
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
