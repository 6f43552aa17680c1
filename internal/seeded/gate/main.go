// Command gate checks the tests: for each seeded bug it runs the test that has to find it, with the bug switched on, and it
// must fail and say why; with no bug it must pass. go run ./internal/teststack -- go run ./internal/seeded/gate, or make bugs.
// Arguments are the names of bugs; none means all of them. It exits with 1 when a bug is not found.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/effectonce/effectonce/internal/seeded"
)

func main() {
	repeat := flag.Int("repeat", 1, "how often to run each")
	parallel := flag.Int("parallel", 2, "how many tests run at the same time")
	report := flag.String("json", "", "a file for the results, as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, flag.Args(), *repeat, *parallel, *report)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string, repeat, parallel int, report string) error {
	chosen := append(catchers(), more()...)
	if len(names) > 0 {
		for _, name := range names {
			if !slices.ContainsFunc(chosen, func(c catcher) bool { return string(c.Bug) == name }) {
				return fmt.Errorf("%s is no bug; see internal/seeded", name)
			}
		}
		chosen = slices.DeleteFunc(chosen, func(c catcher) bool { return !slices.Contains(names, string(c.Bug)) })
	}
	began := time.Now()
	dir, err := os.MkdirTemp("", "bugs")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	list := binaries(dir, chosen)
	// The first tests run while the others are still being built.
	var building sync.WaitGroup
	building.Go(func() {
		for _, b := range list {
			b.build(ctx)
		}
	})
	defer building.Wait()
	var jobs []job
	for _, b := range list {
		for range repeat {
			for _, c := range append(clean(b.catchers), b.catchers...) {
				jobs = append(jobs, job{catcher: c, binary: b})
			}
		}
	}
	results := all(ctx, jobs, parallel)
	table(os.Stdout, results)
	if report != "" {
		if err := write(report, results); err != nil {
			return err
		}
	}
	missed := 0
	for _, r := range results {
		if r.Missed != "" {
			missed++
		}
	}
	for _, b := range list {
		fmt.Printf("%s built in %.0f s\n", b.room, b.took.Seconds())
	}
	fmt.Printf("%d bugs, %d runs, %d not as they must be, %.0f s in all\n", len(bugs(chosen)), len(results), missed, time.Since(began).Seconds())
	if missed > 0 {
		return fmt.Errorf("%d runs: a bug that no test finds is a missing test", missed)
	}
	return ctx.Err()
}

// bugs are those of catchers, each once.
func bugs(chosen []catcher) map[seeded.Bug]bool {
	set := map[seeded.Bug]bool{}
	for _, c := range chosen {
		set[c.Bug] = true
	}
	return set
}

// clean are the tests of catchers, each once, to be run without a bug: one that fails anyway finds nothing.
func clean(chosen []catcher) (list []catcher) {
	for _, c := range chosen {
		c.Bug, c.Says = "", ""
		if !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}

// all runs jobs, some at a time, and returns their results in the order of the jobs.
func all(ctx context.Context, jobs []job, parallel int) []result {
	results := make([]result, len(jobs))
	next := make(chan int)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for i := range next {
				results[i] = jobs[i].run(ctx)
			}
		})
	}
	for i := range jobs {
		next <- i
	}
	close(next)
	workers.Wait()
	return results
}

func table(out io.Writer, results []result) {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	_, _ = fmt.Fprintln(w, "bug\ttest\ttime (limit)\twhat it said")
	for _, r := range results {
		said := r.Said
		if r.Missed != "" {
			said = "NOT AS IT MUST BE: " + r.Missed
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%.1f s (%.0f)\t%s\n", r.Bug, r.Test, r.Seconds, within.Seconds(), said)
	}
}

func write(path string, results []result) error {
	text, err := json.MarshalIndent(results, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
