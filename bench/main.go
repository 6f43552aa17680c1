// Command bench measures the performance claims of this repository, beside the programs that it is compared with, in
// one run on one machine: a temporary Postgres with fsync on, a real Kafka, the same bytes. Absolute figures vary
// between machines and runs; compare the ratios.
//
//	go run .                    the cases that take minutes at most, five repeats
//	go run . -all               every case
//	go run . -only relay,inbox  some cases; -h names them
//	go run . -quick             small numbers, for a test of the benchmark: the figures mean nothing
//	go run . -json figures.jsonl
//	go run . -figures figures.jsonl -docs ../docs   write the tables and the chart of docs/benchmarks.md
//	go run . -model [-docs ../docs]                 what a rate needs, from costs.json; into docs/scaling.md
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
)

// options are the flags.
type options struct {
	only                      string
	repeats                   int
	events                    int
	memoryEvents, memoryLarge int
	inboxBatched, inboxSingle int
	debeziumEvents            int
	pumps, claimEvents        int
	compression               string
	producer                  producerProps
	live                      live
	all, quick                bool
	json, profile             string
	costEvents                int
	costSeconds, steady       float64
	rates, costs              string
	model                     bool
	figures, docs             string
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
	f.IntVar(&o.inboxBatched, "inbox-batched", 100_000, "events for the inbox in batches")
	f.IntVar(&o.inboxSingle, "inbox-single", 10_000, "events for the inbox with one transaction each")
	f.IntVar(&o.debeziumEvents, "debezium-events", 100_000, "events for Debezium in the peers case")
	f.IntVar(&o.pumps, "pumps", 0, "the relay's pumps; 0: its default")
	f.IntVar(&o.claimEvents, "claim-events", 0, "the relay's ClaimEvents; 0: its default")
	f.StringVar(&o.compression, "compression", "", "the publisher's codec; empty: its default. ProducerPerformance "+
		"has -producer-compression")
	f.IntVar(&o.producer.BatchSize, "producer-batch", 262144, "ProducerPerformance's batch.size, bytes")
	f.IntVar(&o.producer.LingerMS, "producer-linger", 5, "ProducerPerformance's linger.ms")
	f.StringVar(&o.producer.Compression, "producer-compression", "snappy", "ProducerPerformance's compression.type")
	f.IntVar(&o.memoryEvents, "memory-events", 1_000_000, "small events in the memory case; 0: none")
	f.IntVar(&o.memoryLarge, "memory-large", 1000, "events of 1 MiB in the memory case; 0: none")
	o.live.flags(f)
	f.StringVar(&o.json, "json", "", "append the figures to this file, one JSON object a line")
	o.planFlags(f)
	f.StringVar(&o.profile, "cpuprofile", "", "write the CPU profile of the last relay that drains here")
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
	case o.repeats < 1 || o.events < 1 || o.debeziumEvents < 1 ||
		o.memoryEvents < 0 || o.memoryLarge < 0 || o.inboxBatched < inboxBatch ||
		o.inboxSingle < 1 || o.costEvents < 400 || !o.live.valid():
		return o, fmt.Errorf("-repeats, times and the numbers of events must be positive, -inbox-batched at least %d",
			inboxBatch)
	}
	o.costEvents -= o.costEvents % 160 // whole transactions and claims, in small batches too
	return o, nil
}

// shrink lowers the options that no flag sets.
func (o *options) shrink(f *flag.FlagSet) {
	set := map[string]bool{}
	f.Visit(func(one *flag.Flag) { set[one.Name] = true })
	for name, v := range map[string]struct {
		number *int
		quick  int
	}{
		"repeats": {&o.repeats, 1}, "events": {&o.events, 5000}, "memory-events": {&o.memoryEvents, 5000},
		"memory-large":  {&o.memoryLarge, 20},
		"inbox-batched": {&o.inboxBatched, 5000}, "inbox-single": {&o.inboxSingle, 200},
		"cost-events":     {&o.costEvents, 8000},
		"debezium-events": {&o.debeziumEvents, 5000},
	} {
		if !set[name] {
			*v.number = v.quick
		}
	}
	if !set["costs"] && !o.model {
		o.costs = ""
	}
	for name, seconds := range map[string]*float64{"cost-seconds": &o.costSeconds, "steady": &o.steady} {
		if !set[name] {
			*seconds = 1
		}
	}
	o.live.shrink(set)
}

// measureCase is a case of -only.
type measureCase struct {
	name         string
	unasked      bool // runs by default; the others take many minutes
	withoutKafka bool // needs no Kafka
	run          func(context.Context, *stack, options, *report) error
}

// cases in the order in which they run.
func cases() []measureCase {
	return []measureCase{
		{name: "relay", unasked: true, run: relayCase},
		{name: "peers", unasked: true, run: peersCase},
		{name: "inbox", unasked: true, withoutKafka: true, run: inboxCase},
		{name: "latency", unasked: true, run: latencyCase},
		{name: "wal", unasked: true, run: walCase},
		{name: "append", unasked: true, run: appendCase},
		{name: "relays", unasked: true, run: relaysCase},
		{name: "memory", run: memoryCase},
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
	if o.model || o.figures != "" {
		return o.write(os.Stdout)
	}
	chosen := o.chosen()
	s, err := start(ctx, slices.ContainsFunc(chosen, func(c measureCase) bool { return !c.withoutKafka }))
	if err != nil {
		return err
	}
	defer s.close()
	rep, err := newReport(os.Stdout, o.json)
	if err != nil {
		return err
	}
	defer rep.close()
	about, err := s.about(ctx)
	if err != nil {
		return err
	}
	rep.about(about)
	for _, c := range chosen {
		if err := c.run(ctx, s, o, rep); err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		if len(rep.names(c.name)) == 0 {
			return fmt.Errorf("case %s has measured nothing", c.name)
		}
		rep.table(c.name)
	}
	return nil
}
