// Command relay publishes an outbox in Postgres to Kafka, and maintains its tables. `relay --help` is the manual;
// docs/operations has the rest.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/effectonce/effectonce/process"
)

func main() {
	ctx, stop := process.Signals(context.Background(), func(s os.Signal) {
		fmt.Fprintf(os.Stderr, "relay: another signal (%v): ending at once, nothing is lost\n", s)
		os.Exit(codeForced)
	})
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
