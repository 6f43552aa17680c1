// Command bench measures what this repository promises about speed, beside the programs that it is compared with, in one
// run and on one machine: a throwaway Postgres with fsync on, a real Kafka, the same bytes. Absolute figures move from
// machine to machine and from run to run; the ratios are what it is for.
//
//	go run .                    every case, five repeats
//	go run . -only relay        one case: relay, inbox, memory, hold or snapshot
//	go run . -tune              look for ProducerPerformance's best settings first
//	go run . -json figures.jsonl
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
	repeats                   int
	events                    int
	memoryEvents, memoryLarge int
	snapshot                  time.Duration
	inboxBatched, inboxSingle int
	pumps, claimEvents        int
	compression               string
	producer                  producerProps
	tune, memory              bool
	json, profile             string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	// A case that measures memory runs this program again, so that the figure is of that part alone.
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
	f.StringVar(&o.only, "only", "", "one case: relay, inbox, memory, hold or snapshot")
	f.IntVar(&o.repeats, "repeats", 5, "how often the alternatives of a case take turns, after a warm-up turn")
	f.IntVar(&o.events, "events", 300_000, "events of 512 bytes in a drain")
	f.IntVar(&o.inboxBatched, "inbox-batched", 100_000, "events for the inbox in batches")
	f.IntVar(&o.inboxSingle, "inbox-single", 10_000, "events for the inbox with one transaction each")
	f.IntVar(&o.pumps, "pumps", 0, "the relay's pumps; 0: its default")
	f.IntVar(&o.claimEvents, "claim-events", 0, "the relay's ClaimEvents; 0: its default")
	f.StringVar(&o.compression, "compression", "", "the publisher's codec; empty: its default. ProducerPerformance has -producer-compression")
	f.IntVar(&o.producer.BatchSize, "producer-batch", 262144, "ProducerPerformance's batch.size, bytes")
	f.IntVar(&o.producer.LingerMS, "producer-linger", 5, "ProducerPerformance's linger.ms")
	f.StringVar(&o.producer.Compression, "producer-compression", "snappy", "ProducerPerformance's compression.type")
	f.BoolVar(&o.tune, "tune", false, "try ProducerPerformance's settings first, and use the best")
	f.BoolVar(&o.memory, "memory", false, "the memory case too: it takes minutes")
	f.IntVar(&o.memoryEvents, "memory-events", 1_000_000, "small events in the memory case; 0: none")
	f.IntVar(&o.memoryLarge, "memory-large", 1000, "events of 1 MiB in the memory case; 0: none")
	f.DurationVar(&o.snapshot, "snapshot", 10*time.Minute, "how long the snapshot case pins a snapshot; it runs only when it is named by -only")
	f.StringVar(&o.json, "json", "", "append the figures to this file, one JSON object a line")
	f.StringVar(&o.profile, "cpuprofile", "", "write the CPU profile of the last relay that drains here")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("no arguments, please: %s", strings.Join(f.Args(), " "))
	case o.only != "" && !slices.Contains(strings.Split(caseNames, ", "), o.only):
		return o, fmt.Errorf("no case %q: one of %s", o.only, caseNames)
	case o.repeats < 1 || o.events < 1 || o.memoryEvents < 0 || o.memoryLarge < 0 || o.inboxBatched < inboxBatch || o.inboxSingle < 1:
		return o, fmt.Errorf("-repeats and the numbers of events must be positive, -inbox-batched at least %d", inboxBatch)
	}
	return o, nil
}

const caseNames = "relay, inbox, memory, hold, snapshot"

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	s, err := start(ctx, o.only != "inbox")
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
	for _, c := range []struct {
		name string
		on   bool
		run  func(context.Context, *stack, options, *report) error
	}{
		{"relay", o.only == "" || o.only == "relay", relayCase},
		{"inbox", o.only == "" || o.only == "inbox", inboxCase},
		{"memory", o.memory || o.only == "memory", memoryCase},
		{"hold", o.only == "" || o.only == "hold", holdCase},
		{"snapshot", o.only == "snapshot", snapshotCase},
	} {
		if !c.on {
			continue
		}
		if err := c.run(ctx, s, o, rep); err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		rep.table(c.name)
	}
	return nil
}
