// Command mutants is the mutation testing of packages with pure logic. Each mutant changes their code in one small
// place, and a test of the package must fail. survivors.txt lists the mutants that may survive, each with its reason;
// the run fails if another mutant survives, or if one of these is killed.
//
//	go run ./verify/mutants [-at text] [room ...]
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// room is a package: the files to mutate, each optionally with the functions to mutate, and flags of the test binary.
// Its tests are fast and need no server.
type room struct {
	dir   string
	files []string
	flags []string
}

// rapid makes package rapid deterministic, without shrinking.
var rapid = []string{"-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=1ns"}

var rooms = []room{
	{"event", []string{"header.go"}, rapid},
	{"publisher", []string{"verdict.go"}, []string{"-test.run=^TestVerdict"}},
	{"relay/internal/lanes", []string{"table.go", "grant.go", "floors.go", "feed.go"}, rapid},
	{"relay/internal/delivery", []string{"delivery.go", "health.go", "judge.go", "place.go", "verdict.go"}, nil},
	{
		"inbox",
		[]string{
			"walk.go", "route.go undecidable route whyUndecidable", "plan.go plan sort newIDs holds new of fresh wrote",
			"watermark.go numberingOf compare newJudge judge byOffset find advance writtenAt newer older route plan",
		},
		[]string{"-test.run=^TestWalk"},
	},
	{"idempotency/store", []string{"store.go", "stuck.go"}, nil},
	{"idempotency/memstore", []string{"transitions.go", "store.go"}, []string{"-test.run=^Test(Transitions|Memory)_"}},
}

//go:embed survivors.txt
var survivors string

func main() {
	at := flag.String("at", "", "only mutants whose names contain this; does not compare with survivors.txt")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, flag.Args(), *at)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string, at string) error {
	began, wrong, total, killed := time.Now(), 0, 0, 0
	reasons, err := parse(survivors)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return err
	}
	module := filepath.Dir(strings.TrimSpace(string(out)))
	for _, name := range names {
		if !slices.ContainsFunc(rooms, func(r room) bool { return r.dir == name }) {
			return fmt.Errorf("%s is no room that is mutated", name)
		}
	}
	for _, r := range rooms {
		if len(names) > 0 && !slices.Contains(names, r.dir) {
			continue
		}
		all, alive, err := r.run(ctx, module, at)
		if err != nil {
			return fmt.Errorf("%s: %w", r.dir, err)
		}
		for _, miss := range compare(r.dir, all, alive, reasons) {
			fmt.Println(miss)
			wrong++
		}
		total, killed = total+len(all), killed+len(all)-len(alive)
		fmt.Printf("%s: %d of %d killed, %.0f s\n", r.dir, len(all)-len(alive), len(all), time.Since(began).Seconds())
	}
	fmt.Printf("%d of %d mutants killed, %.1f %%\n", killed, total, 100*float64(killed)/float64(max(total, 1)))
	switch {
	case at != "":
		return nil
	case wrong > 0:
		return fmt.Errorf(
			"%d differences from survivors.txt: a mutant that survives needs a test or a reason",
			wrong,
		)
	case killed*100 < total*95:
		return errors.New("fewer than 95 % of the mutants are killed")
	}
	return nil
}

// parse reads survivors.txt: one line per mutant, with its name and reason.
func parse(text string) (map[string]string, error) {
	reasons := map[string]string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndex(line, " // ")
		if at < 0 || reasons[line[:at]] != "" {
			return nil, fmt.Errorf("survivors.txt: %q: want each mutant once, with its reason after //", line)
		}
		reasons[line[:at]] = line[at+4:]
	}
	return reasons, nil
}

// compare lists the differences of a room from the reasons, by name.
func compare(dir string, all, alive []string, reasons map[string]string) (wrong []string) {
	for _, name := range alive {
		if reasons[name] == "" {
			wrong = append(wrong, "SURVIVES: "+name)
		}
	}
	for name := range reasons {
		switch {
		case filepath.Dir(strings.Fields(name)[0]) != dir || slices.Contains(alive, name):
		case slices.Contains(all, name):
			wrong = append(wrong, "KILLED, but in survivors.txt: "+name)
		default:
			wrong = append(wrong, "NO MUTANT, but in survivors.txt: "+name)
		}
	}
	slices.Sort(wrong)
	return wrong
}

// run builds the room's tests with all mutants in one binary, checks that they pass without a mutant, and returns the
// names of all mutants, and of those that survive.
func (r room) run(ctx context.Context, module, at string) (all, alive []string, err error) {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	all, overlay, err := r.mutate(ctx, module, dir)
	if err != nil {
		return nil, nil, err
	}
	binary := filepath.Join(dir, "tests")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "-vet=off", "-overlay", overlay, "./"+r.dir)
	build.Dir = module
	if out, err := build.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("building its tests: %w\n%s", err, out)
	}
	test := func(id int, limit time.Duration) (string, error) {
		cmd := exec.CommandContext(
			ctx,
			binary,
			append(r.flags, "-test.failfast", "-test.short", "-test.timeout="+limit.String())...)
		cmd.Dir, cmd.Env = filepath.Join(module, r.dir), append(os.Environ(), fmt.Sprintf("%s=%d", variable, id))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	began := time.Now()
	if out, err := test(0, 5*time.Minute); err != nil || strings.Contains(out, "no tests to run") {
		return nil, nil, fmt.Errorf("without a mutant: %w\n%s", err, out)
	}
	limit := 10*time.Since(began) + 30*time.Second // a mutant that does not terminate is killed, too
	var mu sync.Mutex
	var group sync.WaitGroup
	next := make(chan int)
	for range 2 {
		group.Go(func() {
			for i := range next {
				if _, err := test(i+1, limit); err == nil {
					mu.Lock()
					alive = append(alive, all[i])
					mu.Unlock()
				}
			}
		})
	}
	for i, name := range all {
		if strings.Contains(name, at) {
			next <- i
		}
	}
	close(next)
	group.Wait()
	return all, alive, ctx.Err()
}
