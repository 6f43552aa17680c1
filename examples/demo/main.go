// Command demo shows the whole way of a payment: accepted over HTTP, one in ten with a card that a bank charges,
// published by two relays, booked by one worker and mailed by another, while records are delivered twice and processes
// are killed, one of them between the bank's booking and its own record of it. Then it counts, by other code than the
// workers', and ends with 0 when every payment has exactly one ledger pair and one mail, and every card one charge.
//
// With no flags it needs nothing but Go: it fetches a Postgres the first time, and has an imitation of Kafka inside.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/effectonce/effectonce/internal/service"
)

type flags struct {
	Payments     int      `default:"2000" help:"How many payments to make."`
	Rate         int      `default:"500" help:"How many to make in a second."`
	Keep         bool     `help:"Keep everything running at the end, and say where, until Ctrl-C. Real servers keep their data after that."`
	Faults       bool     `default:"true" negatable:"" help:"Deliver records twice, kill processes, and cut mail connections; --no-faults for none of it."`
	DatabaseURL  string   `name:"database-url" secret:"" shown:"(fetched and started)" help:"Postgres to use, with the right to make a schema, which is dropped at the end."`
	KafkaBrokers []string `shown:"(inside)" help:"Kafka to use, as host:port with commas between. The topic is deleted at the end."`
	Topic        string   `shown:"(made up)" help:"Topic to use; it must be empty or not there yet."`
}

const footer = `Exit codes:
  0    every payment has exactly one ledger pair and one mail, and every card one charge
  1    they differ, or something failed
  2    wrong command line
  5    a second SIGINT ended the demo at once; its processes end with it, its directory goes at the next start
  130  ended by a signal before the count`

// The exit codes that are the demo's own.
const (
	codeDiffer      = service.CodeFailed
	codeInterrupted = 130
)

// errDiffer: the count was made, and the report has said what is wrong.
var errDiffer = errors.New("the figures differ")

func main() {
	if role := os.Getenv(envRole); role != "" {
		os.Exit(childMain(role))
	}
	ctx, stop := service.Signals(context.Background(), func(os.Signal) { os.Exit(service.CodeForced) })
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr, nil)
	stop()
	os.Exit(code)
}

// tamper is called before the count. Tests break something there that the count must find.
type tamper func(ctx context.Context, s *stack, e evidence) error

// command is the program without its process. The end of ctx is what a signal is to the process.
func command(ctx context.Context, args []string, stdout, stderr io.Writer, before tamper) int {
	var f flags
	line := service.CommandLine{
		Name: "demo", Prefix: "DEMO_", Footer: footer,
		Description: "Makes payments, breaks things on the way, and counts what became of them.",
	}
	parsed, err := line.Parse(&f, args, stdout, stderr)
	if err == nil && parsed == nil {
		return service.CodeOK
	}
	if err == nil {
		err = f.check()
	}
	if err == nil {
		err = run(ctx, f, stdout, before)
	}
	usage, isUsage := errors.AsType[*service.UsageError](err)
	switch {
	case err == nil:
		return service.CodeOK
	case errors.Is(err, errDiffer):
		return codeDiffer
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "demo: ended by a signal; nothing is left behind")
		return codeInterrupted
	case isUsage:
		fmt.Fprintln(stderr, "demo:", usage)
		return service.CodeUsage
	}
	fmt.Fprintln(stderr, "demo:", err)
	return service.CodeFailed
}

func (f flags) check() error {
	switch {
	case f.Payments < 1 || f.Payments > 1_000_000:
		return service.Usage("--payments %d: from 1 to 1000000", f.Payments)
	case f.Rate < 1 || f.Rate > 100_000:
		return service.Usage("--rate %d: from 1 to 100000", f.Rate)
	}
	return nil
}
