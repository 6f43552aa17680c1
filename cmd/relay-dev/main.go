// Command relay-dev runs all of effectonce in one process, without an installation: Postgres with the tables, a fake
// Kafka, a relay, and the pages. Services under development use the DATABASE_URL and KAFKA_BROKERS that it prints. Its
// data is kept in a folder. Ctrl-C stops everything. `relay-dev init` writes a small service to begin with.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/loopback"
	"github.com/effectonce/effectonce/process"
)

type cli struct {
	Run  flags     `cmd:"" default:"withargs" help:"Run the servers until Ctrl-C, as without a command. Its flags: relay-dev run --help."`
	Init initFlags `cmd:"" help:"Write a small service of your own: payments to a ledger, each booked once."`
}

type flags struct {
	Dir    string   `shown:"effectonce/dev in the user's cache; for root in /var/cache" placeholder:"PATH" help:"Folder that keeps the data of Postgres and Kafka. Delete it to begin anew."`
	Listen string   `shown:"127.0.0.1:9188" placeholder:"HOST:PORT" help:"Address of the pages, on this machine."`
	Topics []string `placeholder:"NAME" help:"Topics to create, comma-separated, with 6 partitions each."`
	Seed   bool     `help:"Fill it with a shop: orders that go on, and one trouble of each kind to look at and to mend."`
	Open   bool     `default:"true" negatable:"" help:"Open the page in a browser, when this is a terminal and there is one."`
}

const footer = `Ports: the pages 9188, Postgres 55432, Kafka 59092 to 59094. Where one is taken, another is used, and printed,
unless --listen names it.

Exit codes:
  0  ended by a signal
  1  failed
  2  invalid command line
  5  a second SIGINT ended it at once; the data is as after a crash, which Postgres repairs at the next start`

func main() {
	ctx, stop := process.Signals(context.Background(), func(os.Signal) { os.Exit(process.CodeForced) })
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command runs the program until ctx ends, and returns its exit code.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	line := service.CommandLine{
		Name: "relay-dev", Prefix: "EFFECTONCE_DEV_", Footer: footer,
		Description: "Runs Postgres, Kafka, a relay and the pages on this machine, for development.",
	}
	parsed, err := line.Parse(&c, args, stdout, stderr)
	if err == nil && parsed == nil {
		return process.CodeOK
	}
	switch {
	case err != nil:
	case parsed.Selected().Name == "init":
		err = c.Init.write(ctx, stdout)
	default:
		if err = c.Run.check(); err == nil {
			err = run(ctx, c.Run, stdout)
		}
	}
	if err == nil || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return process.CodeOK
	}
	fmt.Fprintln(stderr, "relay-dev:", err)
	if _, usage := errors.AsType[*service.UsageError](err); usage {
		return process.CodeUsage
	}
	return process.CodeFailed
}

// check allows only loopback addresses: the pages have no login.
func (f flags) check() error {
	if f.Listen == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(f.Listen)
	if err != nil {
		return service.Usage("--listen: want host:port: %w", err)
	}
	if !loopback.Is(host) {
		return service.Usage("--listen=%s: these pages are for this machine only: listen at 127.0.0.1", f.Listen)
	}
	return nil
}
