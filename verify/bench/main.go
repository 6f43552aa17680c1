// Command bench measures the performance claims of this repository on one machine, with a temporary Postgres with fsync
// on, and a real Kafka. Absolute figures vary between machines and runs; compare the ratios.
//
//	go run .                    the cases that take minutes at most, five repeats
//	go run . -all               every case
//	go run . -only relay,inbox  some cases; -h names them
//	go run . -quick             small numbers, for a test of the benchmark: the figures mean nothing
//	go run . > tables.md        the tables, in Markdown; what is measured meanwhile goes to standard error
//	go run . -check             what an event costs, compared with baseline.json
//	go run . -model [-docs ../../docs]  what a rate needs, from costs.json; into docs/scaling.md
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	only                      string
	all, quick                bool
	repeats                   int
	events, large             int
	inboxBatched, inboxSingle int
	debeziumEvents            int
	pumps                     int
	latency, append           time.Duration
	costEvents                int
	steady                    float64
	costs                     string
	model                     bool
	docs                      string
	check, baseline           bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	// Cases run parts as child processes, to measure their CPU and memory separately.
	if len(os.Args) == 2 && os.Args[1] == childArg {
		err = childMain(ctx, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:])
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.only, "only", "", "some cases, with commas between them: "+caseNames())
	f.BoolVar(&o.all, "all", false, "every case, those of many minutes too")
	f.BoolVar(&o.quick, "quick", false, "one repeat of small numbers, to see that everything works; other flags "+
		"still count")
	f.IntVar(&o.repeats, "repeats", 5, "how often the alternatives of a case take turns, after a warm-up turn")
	f.IntVar(&o.events, "events", 300_000, "events of 512 bytes in a drain")
	f.IntVar(&o.large, "large", 1000, "events of 1 MiB in the relay case")
	f.IntVar(&o.inboxBatched, "inbox-batched", 100_000, "events for the inbox in batches")
	f.IntVar(&o.inboxSingle, "inbox-single", 10_000, "events for the inbox with one transaction each")
	f.IntVar(&o.debeziumEvents, "debezium-events", 100_000, "events for Debezium in the peers case")
	f.IntVar(&o.pumps, "pumps", 0, "the relay's pumps; 0: its default")
	f.DurationVar(&o.latency, "latency", 7*time.Second, "how long a turn of the latency case measures, after its own "+
		"warm-up")
	f.DurationVar(&o.append, "append", 3*time.Second, "how long each alternative of the append case works in a turn")
	f.IntVar(&o.costEvents, "cost-events", 200_000, "events in large batches of the costs case, and in the "+
		"simulation's drain")
	f.Float64Var(&o.steady, "steady", 10, "how long each steady load of the costs case and the simulation is "+
		"measured, seconds")
	f.StringVar(&o.costs, "costs", costsFile, "where the costs case and the simulation write, and -model reads; with "+
		"-quick nothing is written unless this is set")
	f.BoolVar(&o.model, "model", false, "measure nothing: print what rates need, from -costs")
	f.StringVar(&o.docs, "docs", "", "with -model: write into scaling.md in this folder instead")
	f.BoolVar(&o.check, "check", false, "measure no case: compare what an event costs with "+baselineFile)
	f.BoolVar(&o.baseline, "baseline", false, "with -check: write "+baselineFile+" instead")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.quick {
		o.shrink(f)
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("no arguments, please: %s", strings.Join(f.Args(), " "))
	case o.only != "" && len(o.chosen()) != len(strings.Split(o.only, ",")):
		return o, fmt.Errorf("no cases %q: of %s, each once", o.only, caseNames())
	case min(o.repeats, o.events, o.large, o.inboxSingle, o.debeziumEvents, int(o.latency), int(o.append)) < 1 ||
		o.inboxBatched < inboxBatch || o.costEvents < 400:
		return o, fmt.Errorf("-repeats, times and the numbers of events must be positive, -inbox-batched at least %d",
			inboxBatch)
	}
	o.costEvents -= o.costEvents % 160 // whole transactions and claims, in small batches too
	return o, nil
}

// shrink lowers the options that no flag sets.
func (o *options) shrink(f *flag.FlagSet) {
	set := map[string]bool{"costs": o.model}
	f.Visit(func(one *flag.Flag) { set[one.Name] = true })
	for name, quick := range map[string]string{
		"repeats": "1", "events": "5000", "large": "20", "inbox-batched": "5000", "inbox-single": "200",
		"debezium-events": "5000", "latency": "1s", "append": "200ms", "cost-events": "8000", "steady": "1",
		"costs": "",
	} {
		if !set[name] {
			_ = f.Set(name, quick) // a constant of the flag's type
		}
	}
}

// measureCase is a case of -only.
type measureCase struct {
	name    string
	unasked bool // runs by default; the others take many minutes
	run     func(context.Context, *stack, options, *report) error
}

// cases in the order in which they run.
func cases() []measureCase {
	return []measureCase{
		{name: "relay", unasked: true, run: relayCase},
		{name: "relays", unasked: true, run: relaysCase},
		{name: "latency", unasked: true, run: latencyCase},
		{name: "append", unasked: true, run: appendCase},
		{name: "inbox", unasked: true, run: inboxCase},
		{name: "consumer", unasked: true, run: consumerCase},
		{name: "peers", unasked: true, run: peersCase},
		{name: "costs", run: costsCase},
		{name: "simulation", run: simulationCase},
	}
}

func caseNames() string {
	var names []string
	for _, c := range cases() {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

// chosen returns the cases that the flags select.
func (o options) chosen() (out []measureCase) {
	for _, c := range cases() {
		if slices.Contains(strings.Split(o.only, ","), c.name) || o.only == "" && (c.unasked || o.all) {
			out = append(out, c)
		}
	}
	return out
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.model {
		return o.writeModel(os.Stdout)
	}
	s, err := start(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	rep := newReport(os.Stdout, os.Stderr)
	about, err := s.about(ctx)
	if err != nil {
		return err
	}
	rep.about(about)
	if o.check {
		return s.check(ctx, o, rep)
	}
	for _, c := range o.chosen() {
		began := load()
		if err := c.run(ctx, s, o, rep); err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		if len(rep.names(c.name)) == 0 {
			return fmt.Errorf("case %s has measured nothing", c.name)
		}
		rep.table(c.name, began)
	}
	return nil
}
