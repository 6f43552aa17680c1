// Command starter takes payments, and books each of them once.
package main

import (
	"context"
	_ "embed"
	"log/slog"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/metrics"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/process"
)

//go:embed schema.sql
var schema string

func main() { os.Exit(process.Main(run)) }

// run runs until a signal, and drains. Meanwhile /healthz, /readyz, /healthz/moving and /metrics answer.
func run(ctx context.Context) error {
	env, address := process.NewEnv(""), "127.0.0.1:8080"
	db, kafka := env.Pool(), env.Kafka()
	env.Set("LISTEN", &address)
	if err := env.Err(); err != nil {
		return err
	}
	defer db.Close()
	listener, err := process.Listen(address)
	if err != nil {
		return err
	}
	slog.Info("listening", "address", listener.Addr())
	registry, mux := prometheus.NewRegistry(), http.NewServeMux()
	figures, err := metrics.NewWorker(registry, "ledger")
	if err != nil {
		return err
	}
	in, err := inbox.New(db, "ledger", inbox.Config{Observer: figures.Inbox()})
	if err != nil {
		return err
	}
	consume, err := consumer.New(in.Each(effect), kafka.Brokers, []string{"payments"},
		consumer.Config{Dial: kafka.Dial, SASL: kafka.SASL, Observer: figures.Consumer()})
	if err != nil {
		return err
	}
	sweep, err := routes(mux, db) // http
	if err != nil {               // http
		return err // http
	} // http
	health := process.Health{
		Prepare: func(ctx context.Context) error { return prepare(ctx, db) }, Ready: db.Ping,
		Moving: process.Moving(consume), Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
	}
	return health.Run(ctx, listener, mux, in.Run, consume.Run,
		sweep, // http
		func(ctx context.Context) error { return figures.Run(ctx, in, consume) })
}

// prepare creates all tables.
func prepare(ctx context.Context, db *pgxpool.Pool) error {
	if err := migrations.Up(ctx, db.Config().ConnConfig, migrations.Options{}); err != nil {
		return err
	}
	_, err := db.Exec(ctx, schema)
	return err
}
