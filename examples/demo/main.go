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
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/cmd/devstack"
	"github.com/effectonce/effectonce/process"
)

type flags struct {
	Payments, Rate     int
	Keep, Faults       bool
	Listen             string   // of the pages
	DatabaseURL, Topic string   // empty: downloaded and started; generated
	KafkaBrokers       []string // empty: in this process
}

// parse reads the command line. What is wrong, and the help, are on w already.
func (f *flags) parse(args []string, stdout, w io.Writer) error {
	set := flag.NewFlagSet("demo", flag.ContinueOnError)
	set.SetOutput(w)
	set.Usage = func() {
		fmt.Fprint(w, "Usage: demo [flags]\n\nMakes payments, injects faults, and checks the results.\n\n")
		set.PrintDefaults()
		fmt.Fprint(w, "\n", footer, "\n")
	}
	set.IntVar(&f.Payments, "payments", 500, "number of payments")
	set.IntVar(&f.Rate, "rate", 250, "payments per second")
	terminal := devstack.IsTerminal(stdout)
	set.BoolVar(&f.Keep, "keep", terminal, "at the end keep everything running until Ctrl-C, with a page to play on; "+
		"servers that you name keep the data after that (default: on a terminal)")
	set.StringVar(&f.Listen, "listen", "127.0.0.1:9188", "address of the page, on this machine; another one if it is "+
		"taken")
	none := set.Bool("no-faults", false, "do not deliver records twice, kill processes or cut mail connections")
	set.StringVar(&f.DatabaseURL, "database-url", "", "Postgres to use instead of one that is downloaded and started; "+
		"the user may create a schema, which is dropped at the end")
	set.Func("kafka-brokers", "Kafka to use instead of one in this process, comma-separated host:port; the topic is "+
		"deleted at the end", func(list string) error {
		f.KafkaBrokers = strings.Split(list, ",")
		return nil
	})
	set.StringVar(&f.Topic, "topic", "", "topic to use, which must be empty or not exist (default generated)")
	err := set.Parse(args)
	switch {
	case err != nil:
		return err
	case set.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", set.Arg(0))
	case f.Payments < 1 || f.Payments > 1_000_000:
		err = fmt.Errorf("--payments %d: want 1 to 1000000", f.Payments)
	case f.Rate < 1 || f.Rate > 100_000:
		err = fmt.Errorf("--rate %d: want 1 to 100000", f.Rate)
	}
	if err == nil && f.DatabaseURL != "" {
		_, err = pgx.ParseConfig(f.DatabaseURL)
	}
	if err != nil {
		fmt.Fprintln(w, "demo:", err)
	}
	f.Faults = !*none
	return err
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
	switch err := f.parse(args, stdout, stderr); {
	case errors.Is(err, flag.ErrHelp):
		return process.CodeOK
	case err != nil:
		return process.CodeUsage
	}
	err := run(ctx, f, stdout, beforeReconcile)
	switch {
	case err == nil:
		return process.CodeOK
	case errors.Is(err, errDiffer):
		return codeDiffer
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "demo: ended by a signal; all processes and files are removed")
		return codeInterrupted
	}
	fmt.Fprintln(stderr, "demo:", err)
	return process.CodeFailed
}
