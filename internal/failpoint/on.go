//go:build failpoints

package failpoint

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Enabled tells whether this binary was built with the tag failpoints.
const Enabled = true

// ErrInjected is what the action error makes a step fail with: to those who look at it, a connection that has ended, so
// that what became of the step is unknown.
var ErrInjected = fmt.Errorf("failpoint: an injected fault: %w", io.ErrUnexpectedEOF)

// process holds the settings of this process. It is the one place where the rule against state of a package is broken:
// a point must be one line in the code that it stands in, and nobody builds this file in by mistake.
var process = start()

func start() *set {
	s, err := newSet(os.Getenv(EnvSettings), os.Getenv(EnvSeed))
	if err == nil && os.Getenv(EnvLog) != "" {
		s.log, err = os.OpenFile(os.Getenv(EnvLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "failpoint:", err)
		os.Exit(2)
	}
	return s
}

// Hit reaches a point that has no error path.
func Hit(name Name) { _ = process.reach(name) }

// Err reaches a point where a fault may come back as an error.
func Err(name Name) error { return process.reach(name) }

// After reaches a point that lies behind a step, unless the step has failed. It returns the step's error, or the
// point's.
func After(name Name, err error) error {
	if err != nil {
		return err
	}
	return process.reach(name)
}

// Hits counts how often the process has reached a point.
func Hits(name Name) int64 {
	process.mu.Lock()
	defer process.mu.Unlock()
	return process.hits[name]
}

// set is what a process does at its points.
type set struct {
	mu     sync.Mutex
	hits   map[Name]int64
	rules  map[Name][]*rule
	random randomness
	log    *os.File // nil: none
}

func newSet(settings, seed string) (*set, error) {
	n := uint64(1)
	if seed != "" {
		var err error
		if n, err = strconv.ParseUint(seed, 10, 64); err != nil {
			return nil, fmt.Errorf("%s=%q: give a number", EnvSeed, seed)
		}
	}
	rules, err := parse(settings)
	if err != nil {
		return nil, err
	}
	return &set{hits: map[Name]int64{}, rules: rules, random: newRandomness(n)}, nil
}

func (s *set) reach(name Name) error {
	do := s.next(name)
	if do == nil {
		return nil
	}
	switch do.action {
	case actionKill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // nothing more happens in this goroutine
	case actionPause:
		standStill(do.time)
	case actionDelay:
		time.Sleep(do.time)
	case actionError:
		return fmt.Errorf("%w at %s", ErrInjected, name)
	}
	return nil
}

// next counts a hit and returns the rule whose turn it is, if any.
func (s *set) next(name Name) *rule {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hits[name]++
	if s.hits[name] == 1 {
		s.note("reached", name)
	}
	for _, r := range s.rules[name] {
		if s.hits[name] < r.from || r.left == 0 || (r.chance < 1 && s.random.Float64() >= r.chance) {
			continue
		}
		if r.left > 0 {
			r.left--
		}
		s.note(string(r.action), name)
		return r
	}
	return nil
}

// note writes a line of the log. One write, so that lines of several processes do not mix.
func (s *set) note(what string, name Name) {
	if s.log != nil {
		_, _ = fmt.Fprintf(s.log, "%d %s %s\n", os.Getpid(), what, name)
	}
}

// standStill stops the whole process. Somebody else must make it go on: a shell that sleeps.
func standStill(d time.Duration) {
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("sleep %.3f; kill -CONT %d", d.Seconds(), os.Getpid()))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if cmd.Start() != nil {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	_ = cmd.Wait()
}
