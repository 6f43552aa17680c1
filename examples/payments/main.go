// Command payments accepts payments over HTTP. It commits each payment's row and event in one transaction.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/effectonce/effectonce/examples/internal/worker"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/internal/service"
)

type flags struct {
	worker.Database
	Listen  string `default:"${listen}" help:"Address of the API, with /healthz and /readyz."`
	Topic   string `default:"payments" help:"Topic of the events."`
	Cards   string `name:"card-provider" help:"URL of a card provider that charges each payment. Default: none."`
	Migrate bool   `default:"true" negatable:"" help:"Create the tables at start, under an advisory lock."`
}

func main() {
	var f flags
	os.Exit(worker.Main(&f, "payments", "Accepts payments: POST /payments {account_id, amount, currency}.",
		"127.0.0.1:8080", "PAYMENTS",
		func(ctx context.Context, log *slog.Logger) error {
			var cards payments.Provider
			if f.Cards != "" {
				var err error
				if cards, err = payments.HTTPProvider(f.Cards, 0); err != nil {
					return service.Usage("--card-provider: %w", err)
				}
			}
			return payments.Run(ctx, payments.Config{
				Cards:       cards,
				DatabaseURL: f.DatabaseURL, Password: f.DatabasePassword, Plaintext: f.Plaintext, Schema: f.Schema,
				Listen: f.Listen, Topic: f.Topic, SkipMigrate: !f.Migrate, Logger: log,
			})
		}))
}
