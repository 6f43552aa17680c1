// Command demo sends payments through the whole system: an API accepts them, one in ten with a card that a bank
// charges, two relays publish their events, one worker books them and another mails receipts. Meanwhile records are
// delivered twice and processes are killed, one of them after the bank has charged a card and before that is recorded.
// At the end the demo reconciles all results by code of its own. It exits with 0 if every payment has exactly one
// ledger pair and one mail, and every card one charge.
//
// Without flags it needs nothing but Go: it downloads Postgres at the first run and imitates Kafka in its own process.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/process"
)

type flags struct {
	Payments     int      `default:"2000" help:"Number of payments."`
	Rate         int      `default:"500" help:"Payments per second."`
	Keep         bool     `help:"At the end print all addresses and keep everything running until Ctrl-C. Servers that you name keep the data after that."`
	UI           bool     `name:"ui" help:"Serve the pages too, on this machine: the events on their way, and what is wrong. They end with the demo, unless --keep."`
	Faults       bool     `default:"true" negatable:"" help:"Deliver records twice, kill processes, and cut mail connections; --no-faults disables all of it."`
	DatabaseURL  string   `name:"database-url" secret:"" shown:"(downloaded and started)" help:"Postgres to use. The user may create a schema, which is dropped at the end."`
	KafkaBrokers []string `shown:"(in this process)" help:"Kafka to use, comma-separated host:port. The topic is deleted at the end."`
	Topic        string   `shown:"(generated)" help:"Topic to use. It must be empty or not exist."`
}

const footer = `Exit codes:
  0    every payment has exactly one ledger pair and one mail, and every card one charge
  1    the results differ, or the demo failed
  2    invalid command line
  5    a second SIGINT ended the demo at once; the next start removes its directory
  130  ended by a signal before the results were compared`

const (
	codeDiffer      = process.CodeFailed
	codeInterrupted = 130
)

// errDiffer is returned after the report has printed the differences.
var errDiffer = errors.New("the results differ")

func main() {
	if role := os.Getenv(envRole); role != "" {
		os.Exit(childMain(role))
	}
	ctx, stop := process.Signals(context.Background(), func(os.Signal) { os.Exit(process.CodeForced) })
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr, nil)
	stop()
	os.Exit(code)
}

// tamper is called before the results are compared. Tests corrupt them there.
type tamper func(ctx context.Context, s *stack, e evidence) error

// command runs the demo and returns its exit code. The end of ctx stands for a signal.
func command(ctx context.Context, args []string, stdout, stderr io.Writer, beforeReconcile tamper) int {
	var f flags
	line := service.CommandLine{
		Name: "demo", Prefix: "DEMO_", Footer: footer,
		Description: "Makes payments, injects faults, and checks the results.",
	}
	parsed, err := line.Parse(&f, args, stdout, stderr)
	if err == nil && parsed == nil {
		return process.CodeOK
	}
	if err == nil {
		err = f.check()
	}
	if err == nil {
		err = run(ctx, f, stdout, beforeReconcile)
	}
	usage, isUsage := errors.AsType[*service.UsageError](err)
	switch {
	case err == nil:
		return process.CodeOK
	case errors.Is(err, errDiffer):
		return codeDiffer
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "demo: ended by a signal; all processes and files are removed")
		return codeInterrupted
	case isUsage:
		fmt.Fprintln(stderr, "demo:", usage)
		return process.CodeUsage
	}
	fmt.Fprintln(stderr, "demo:", err)
	return process.CodeFailed
}

func (f flags) check() error {
	switch {
	case f.Payments < 1 || f.Payments > 1_000_000:
		return service.Usage("--payments %d: want 1 to 1000000", f.Payments)
	case f.Rate < 1 || f.Rate > 100_000:
		return service.Usage("--rate %d: want 1 to 100000", f.Rate)
	}
	return nil
}
