// Command ledger books payments: two rows in ledger_entry for each PaymentCreated, also if it is delivered twice.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/effectonce/effectonce/examples/internal/worker"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
)

func main() {
	var flags worker.Flags
	os.Exit(worker.Main(&flags, "ledger", "Books each payment from Kafka once in a double-entry ledger.",
		"127.0.0.1:9188", "LEDGER",
		func(ctx context.Context, log *slog.Logger) error {
			cfg, err := flags.Worker()
			if err != nil {
				return err
			}
			cfg.Logger = log
			return ledger.Run(ctx, cfg)
		}))
}
