// Command payments accepts payments over HTTP: POST /payments {account_id, amount, currency}. It commits each payment's
// row and event in one transaction. Its settings are the variables of process.Env.Pool and those below, with PAYMENTS_
// in front.
package main

import (
	"context"
	"os"

	"github.com/effectonce/effectonce/examples/payments/figures"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/process"
)

func main() { os.Exit(process.Main(run)) }

func run(ctx context.Context) error {
	env := process.NewEnv("PAYMENTS_")
	db, cfg := env.Pool(), payments.Config{Listen: "127.0.0.1:8080"}
	migrate, cards := true, ""
	env.Set("LISTEN", &cfg.Listen)
	env.Set("SCHEMA", &cfg.Schema)
	env.Set("TOPIC", &cfg.Topic)
	env.Set("CARD_PROVIDER", &cards) // URL of a card provider that charges each payment
	env.Set("MIGRATE", &migrate)
	if err := env.Err(); err != nil {
		return err
	}
	defer db.Close()
	cfg.SkipMigrate = !migrate
	var err error
	if cfg.Telemetry, cfg.Metrics, err = figures.Prometheus(); err != nil {
		return err
	}
	if cards != "" {
		if cfg.Cards, err = payments.HTTPProvider(cards, 0); err != nil {
			return err
		}
	}
	return payments.Run(ctx, db, cfg)
}
