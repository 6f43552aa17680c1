package worker

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/process"
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

// Figures are the metrics of a worker; see package figures.
type Figures struct {
	http.Handler
	// Run reads what is read now and then.
	Run func(ctx context.Context, in *inbox.Inbox, c *consumer.Consumer) error
}

// Run consumes until ctx ends, then drains and returns nil. It fails on an invalid configuration and on missing tables,
// and waits for a database or a Kafka that is away.
func Run(ctx context.Context, cfg Config, w Worker) error {
	cfg = cfg.withDefaults(w.Name)
	listener := cfg.Listener
	if listener == nil && cfg.Listen != "" {
		var err error
		if listener, err = process.Listen(cfg.Listen); err != nil {
			return err
		}
	}
	if listener != nil {
		defer listener.Close() // for returns before health.Run, which closes it too
	}
	var figures Figures
	if cfg.Figures != nil {
		var err error
		if figures, err = cfg.Figures(w.Name, &cfg.Inbox.Observer, &cfg.Consumer.Observer); err != nil {
			return err
		}
	}
	in, err := inbox.New(cfg.DB, w.Name, cfg.Inbox)
	if err != nil {
		return err
	}
	c, err := consumer.New(w.Handler(in), cfg.Brokers, []string{cfg.Topic}, cfg.Consumer)
	if err != nil {
		return err
	}
	parts := []func(context.Context) error{in.Run, c.Run}
	if figures.Run != nil {
		parts = append(parts, func(ctx context.Context) error { return figures.Run(ctx, in, c) })
	}
	if w.Background != nil {
		parts = append(parts, func(ctx context.Context) error { return w.Background(ctx, cfg.DB) })
	}
	// It serves before the database answers, so that a liveness probe does not restart a worker that waits for it.
	health := process.Health{
		Prepare: w.Tables.Prepare(cfg.DB, cfg.Schema, cfg.SkipMigrate), Ready: cfg.DB.Ping, Moving: process.Moving(c),
		Metrics: figures.Handler, Logger: cfg.Logger,
	}
	if err := health.Run(ctx, listener, nil, parts...); err != nil {
		return fmt.Errorf("%s: %w", w.Name, err)
	}
	return nil
}
