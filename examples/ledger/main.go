// Command ledger books payments: two rows in ledger_entry for each PaymentCreated, also if it is delivered twice. Its
// settings are the variables of worker.FromEnv, with LEDGER_ in front.
package main

import (
	"context"
	"os"

	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/examples/worker/figures"
	"github.com/effectonce/effectonce/process"
)

func main() { os.Exit(process.Main(run)) }

func run(ctx context.Context) error {
	env := process.NewEnv("LEDGER_")
	cfg := worker.FromEnv(env, "127.0.0.1:9188")
	if err := env.Err(); err != nil {
		return err
	}
	defer cfg.DB.Close()
	cfg.Figures = figures.Prometheus
	return ledger.Run(ctx, cfg)
}
