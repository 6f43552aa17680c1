// Command mutations checks the tests: each patch beside it puts one bug into a copy of the product, and each test that
// the patch names must fail and say why. Without the bug the same test must pass.
//
//	go run ./internal/testenv/stack -- go run ./verify/mutations [-part i/n] [name ...]
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
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	parallel := flag.Int("parallel", 2, "how many binaries are built at the same time; twice as many run")
	part := flag.String("part", "", "i/n: every n-th of the bugs, from the i-th on; 1/n to n/n are all of them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, flag.Args(), *part, *parallel)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string, part string, parallel int) error {
	began := time.Now()
	module, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	list, err := load(filepath.Join(module, patches), names)
	if err != nil {
		return err
	}
	if list, err = partOf(list, part); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutations")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// All patches first: one that no longer applies is reported before anything is built.
	overlays := make([]string, len(list))
	for i, m := range list {
		if overlays[i], err = m.overlay(ctx, module, dir); err != nil {
			return err
		}
	}
	g := gate{module: module}
	missed := g.all(ctx, jobs(list, overlays, dir), parallel)
	fmt.Printf("%d bugs, %d not as they must be, %.0f s\n", len(list), missed, time.Since(began).Seconds())
	fmt.Printf("processor time: %.0f s to build the tests, %.0f s to run them\n",
		time.Duration(g.building.Load()).Seconds(), time.Duration(g.testing.Load()).Seconds())
	if err := ctx.Err(); err != nil {
		return err
	}
	if missed > 0 {
		return fmt.Errorf("%d runs: a bug that no test finds is a missing test", missed)
	}
	return nil
}

// patches is where the bugs are, in the repository.
const patches = "verify/mutations"

func moduleDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	return filepath.Dir(strings.TrimSpace(string(out))), err
}

// partOf returns the bugs of a part, given as "i/n". Neighbours in the list are of the same room, so each part has bugs
// of every room.
func partOf(list []mutation, part string) (of []mutation, err error) {
	if part == "" {
		return list, nil
	}
	var i, n int
	if _, err := fmt.Sscanf(part, "%d/%d", &i, &n); err != nil || i < 1 || i > n || fmt.Sprintf("%d/%d", i, n) != part {
		return nil, fmt.Errorf("-part %s: want i/n, i from 1 to n", part)
	}
	for at := i - 1; at < len(list); at += n {
		of = append(of, list[at])
	}
	if len(of) == 0 {
		return nil, fmt.Errorf("-part %s: of %d bugs it has none", part, len(list))
	}
	return of, nil
}

// job is one run of a binary, and its expected result.
type job struct {
	bug    string // "": none
	binary binary
	found  []finder // with a bug, the one that must fail; without, all that must pass
}

// jobs returns the runs without a bug, which are the longest, and then one run for each bug and test.
func jobs(list []mutation, overlays []string, dir string) (all []job) {
	at, seen := map[string]int{}, map[string]map[string]bool{} // by room
	for _, m := range list {
		for _, f := range m.finders {
			i, known := at[f.Room]
			if !known {
				i = len(all)
				at[f.Room], seen[f.Room] = i, map[string]bool{}
				path := filepath.Join(dir, fmt.Sprintf("%d.tests", i))
				all = append(all, job{binary: binary{room: f.Room, path: path}})
			}
			if !seen[f.Room][f.Test] {
				seen[f.Room][f.Test] = true
				all[i].found = append(all[i].found, f)
			}
		}
	}
	for i, m := range list {
		for n, f := range m.finders {
			path := filepath.Join(dir, m.Name, fmt.Sprintf("%d.tests", n))
			b := binary{room: f.Room, overlay: overlays[i], path: path}
			all = append(all, job{m.Name, b, []finder{f}})
		}
	}
	return all
}

// gate runs jobs in a module.
type gate struct {
	module            string
	building, testing atomic.Int64 // processor time, in nanoseconds

	mu sync.Mutex // of the output
}

// all runs jobs and prints a line for each test as it ends. It returns the number of unexpected results.
func (g *gate) all(ctx context.Context, jobs []job, parallel int) (missed int) {
	type ready struct {
		job
		err error
	}
	next, built := make(chan job), make(chan ready)
	var builders, runners sync.WaitGroup
	for range parallel {
		builders.Go(func() {
			for j := range next {
				used, err := j.binary.build(ctx, g.module)
				g.building.Add(int64(used))
				built <- ready{j, err}
			}
		})
	}
	var misses atomic.Int64
	for range 2 * parallel { // most tests wait for a server most of the time
		runners.Go(func() {
			for j := range built {
				misses.Add(g.run(ctx, j.job, j.err))
				_ = os.Remove(j.binary.path)
			}
		})
	}
	for _, j := range jobs {
		next <- j
	}
	close(next)
	builders.Wait()
	close(built)
	runners.Wait()
	return int(misses.Load())
}

// run runs the tests of a job; failed is the error of its build.
func (g *gate) run(ctx context.Context, j job, failed error) (missed int64) {
	began, out := time.Now(), ""
	err := failed
	if failed == nil {
		var used time.Duration
		out, used, err = j.binary.test(ctx, g.module, j.found)
		g.testing.Add(int64(used))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range j.found {
		said, miss := "", ""
		switch {
		case failed != nil:
			miss = failed.Error()
		case j.bug == "":
			said, miss = "passes without a bug", f.passes(out, err)
		default:
			said, miss = f.finds(out, err)
		}
		if miss != "" {
			said = "NOT AS IT MUST BE: " + miss
			missed++
		}
		fmt.Printf("%-50s %s: %s\n", j.bug, f.Test, said)
	}
	if err != nil && failed == nil && j.bug == "" && missed == 0 {
		fmt.Printf("%-50s %s: NOT AS IT MUST BE: its tests pass, and it ends with %v: %s\n",
			"", j.binary.room, err, tail(out))
		missed++
	}
	fmt.Printf("%-50s %s took %.1f s\n", j.bug, j.binary.room, time.Since(began).Seconds())
	return missed
}
