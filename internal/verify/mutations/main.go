// Command mutations checks the tests: each patch beside it puts one bug into a copy of the product, and the test that the patch
// names must fail and say why. Without the bug the same test must pass.
//
//	go run ./internal/teststack -- go run ./internal/verify/mutations [name ...]
//
// Arguments are names of patches; none means all of them. It exits with 1 when a bug is not found.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	parallel := flag.Int("parallel", 2, "how many tests are built and run at the same time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, flag.Args(), *parallel)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string, parallel int) error {
	began := time.Now()
	module, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	list, err := load(filepath.Join(module, patches), names)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutations")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// All of them first: what no longer applies is told before anything is built.
	overlays := make([]string, len(list))
	for i, m := range list {
		if overlays[i], err = m.overlay(ctx, module, dir); err != nil {
			return err
		}
	}
	jobs := controls(list, dir)
	for i, m := range list {
		b := binary{room: m.Room, tags: m.Tags, overlay: overlays[i], path: filepath.Join(dir, m.Name, "tests")}
		jobs = append(jobs, job{m.Name, b, []string{m.Test}, m.found})
	}
	lines, missed := all(ctx, module, jobs, parallel)
	table := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	for _, line := range lines {
		_, _ = fmt.Fprintln(table, line)
	}
	_ = table.Flush()
	fmt.Printf("%d bugs, %d not as they must be, %.0f s in all\n", len(list), missed, time.Since(began).Seconds())
	if missed > 0 {
		return fmt.Errorf("%d runs: a bug that no test finds is a missing test", missed)
	}
	return ctx.Err()
}

// patches is where the bugs are, in the module.
const patches = "internal/verify/mutations"

func moduleDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	return strings.TrimSpace(string(out)), err
}

// job builds a binary once and runs tests of it, each to be judged.
type job struct {
	name   string
	binary binary
	tests  []string
	judge  func(out string, err error) (said, missed string)
}

// controls are the tests without a bug, each once: one that fails anyway finds nothing.
func controls(list []mutation, dir string) (jobs []job) {
	type key struct{ room, tags, test string }
	at, seen := map[key]int{}, map[key]bool{}
	for _, m := range list {
		if test := (key{m.Room, m.Tags, m.Test}); !seen[test] {
			seen[test] = true
			of := key{m.Room, m.Tags, ""}
			i, known := at[of]
			if !known {
				i = len(jobs)
				at[of] = i
				b := binary{room: m.Room, tags: m.Tags, path: filepath.Join(dir, fmt.Sprintf("%d.tests", i))}
				jobs = append(jobs, job{name: "(none)", binary: b})
			}
			jobs[i].tests = append(jobs[i].tests, m.Test)
		}
	}
	return jobs
}

func (j job) run(ctx context.Context, module string) (lines []string, missed int) {
	defer func() { _ = os.Remove(j.binary.path) }()
	began := time.Now()
	failed := j.binary.build(ctx, module)
	for _, test := range j.tests {
		said, miss := "", ""
		switch {
		case failed != nil:
			miss = failed.Error()
		case j.judge == nil:
			out, err := j.binary.test(ctx, module, test)
			said, miss = "passes without a bug", clean(test, out, err)
		default:
			out, err := j.binary.test(ctx, module, test)
			said, miss = j.judge(out, err)
		}
		if miss != "" {
			said = "NOT AS IT MUST BE: " + miss
			missed++
		}
		lines = append(lines, fmt.Sprintf("%s\t%s\t%.1f s\t%s", j.name, test, time.Since(began).Seconds(), said))
		began = time.Now()
	}
	return lines, missed
}

// all runs jobs, some at a time, and returns their lines in the order of the jobs.
func all(ctx context.Context, module string, jobs []job, parallel int) (lines []string, missed int) {
	results, misses := make([][]string, len(jobs)), make([]int, len(jobs))
	next := make(chan int)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for i := range next {
				results[i], misses[i] = jobs[i].run(ctx, module)
			}
		})
	}
	for i := range jobs {
		next <- i
	}
	close(next)
	workers.Wait()
	for i := range jobs {
		lines, missed = append(lines, results[i]...), missed+misses[i]
	}
	return lines, missed
}
