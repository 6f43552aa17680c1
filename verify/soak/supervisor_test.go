package soak

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/verify/roles"
)

// The share of statements at which a process is killed, or loses its connection: before the statement is sent, or when
// the reply arrives.
const (
	deadlyShare = 0.0001
	lostShare   = 0.0003
)

// supervisor runs the wanted processes, and restarts those that end.
type supervisor struct {
	dir     string // of their logs
	mu      sync.Mutex
	members map[string]*member
	over    chan struct{} // closed: no more restarts
	done    sync.WaitGroup

	safe bool // no statement is deadly any more

	crashes []string // of processes that were not killed
	starts  int
	kills   map[string]int // at statements
}

// member is a process with all its restarts.
type member struct {
	cfg     roles.Config
	process *child.Process // nil: not running
	wanted  bool
	wake    chan struct{} // of capacity one: wanted has changed
}

func newSupervisor(t *testing.T, dir string) *supervisor {
	c := &supervisor{dir: dir, members: map[string]*member{}, over: make(chan struct{}), kills: map[string]int{}}
	t.Cleanup(c.end)
	return c
}

// end kills all processes and waits for their exit.
func (c *supervisor) end() {
	c.mu.Lock()
	select {
	case <-c.over:
	default:
		close(c.over)
	}
	for _, p := range c.members {
		if p.process != nil {
			_ = p.process.Signal(syscall.SIGKILL)
		}
	}
	c.mu.Unlock()
	c.done.Wait()
}

// add adds a member, which starts at once if it is wanted.
func (c *supervisor) add(cfg roles.Config, wanted bool) {
	p := &member{cfg: cfg, wanted: wanted, wake: make(chan struct{}, 1)}
	c.mu.Lock()
	c.members[cfg.Name] = p
	c.mu.Unlock()
	c.done.Go(func() { c.supervise(p) })
}

// supervise keeps a member running while it is wanted.
func (c *supervisor) supervise(p *member) {
	for {
		c.mu.Lock()
		var err error
		if p.wanted {
			err = c.start(p)
		}
		process := p.process
		c.mu.Unlock()
		if process != nil {
			c.ended(p, process.Wait())
		} else {
			select {
			case <-p.wake:
			case <-c.over:
			}
		}
		if err != nil {
			c.crashed(fmt.Sprintf("%s could not start: %v", p.cfg.Name, err))
		}
		timer := time.NewTimer(200 * time.Millisecond)
		select {
		case <-timer.C:
		case <-c.over:
			timer.Stop()
			return
		}
	}
}

// start starts a member's process; c.mu is held.
func (c *supervisor) start(p *member) error {
	select {
	case <-c.over:
		return nil
	default:
	}
	p.cfg.Life++
	c.starts++
	cmd, err := roles.Command(p.cfg)
	if err != nil {
		return err
	}
	p.process, err = child.Start(cmd, filepath.Join(c.dir, p.cfg.Name+".log"), syscall.SIGKILL)
	return err
}

// ended reports an exit as a crash unless it was by a signal or an orderly one.
func (c *supervisor) ended(p *member, err error) {
	c.mu.Lock()
	tail := p.process.LogTail()
	p.process = nil
	c.mu.Unlock()
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return
	}
	routes := strings.Split(tail, "\n")
	c.crashed(fmt.Sprintf("%s: %v: %s", p.cfg.Name, err, routes[len(routes)-1]))
}

func (c *supervisor) crashed(how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.crashes = append(c.crashes, how)
}

// signal sends a signal to a member's process, and reports whether it was running.
func (c *supervisor) signal(name string, sig syscall.Signal) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.members[name]
	return p != nil && p.process != nil && p.process.Signal(sig) == nil
}

// process returns a member's process, or nil if it is not running.
func (c *supervisor) process(name string) *child.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[name].process
}

// want sets whether a member is to run. One that is no longer wanted gets SIGTERM.
func (c *supervisor) want(name string, wanted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.members[name]
	if p == nil {
		return
	}
	p.wanted = wanted
	if !wanted && p.process != nil {
		_ = p.process.Signal(syscall.SIGTERM)
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// awaitExit waits for the exit of a process that is not wanted, and kills it after the timeout.
func (c *supervisor) awaitExit(name string, timeout time.Duration) error {
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	c.mu.Lock()
	p := c.members[name].process
	c.mu.Unlock()
	if p == nil {
		return nil
	}
	select {
	case <-p.Done():
		return nil
	case <-limit.C:
		_ = p.Signal(syscall.SIGQUIT) // logs its goroutines
		<-p.Done()
		return fmt.Errorf("%s did not end within %v of SIGTERM: see its log", name, timeout)
	}
}

// names returns the members of a role, or all members.
func (c *supervisor) names(role string) (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, p := range c.members {
		if role == "" || p.cfg.Role == role {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// logs returns the logs of the processes by file.
func (c *supervisor) logs(t *testing.T) map[string][]byte {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(c.dir, "*.log"))
	all := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(f)] = b
	}
	return all
}

// deadly are prefixes of log lines that no fault excuses.
var deadly = []string{"panic:", "fatal error:", "WARNING: DATA RACE"}

// panics returns the log lines that begin with one of deadly.
func (c *supervisor) panics(t *testing.T) (all []string) {
	t.Helper()
	for name, log := range c.logs(t) {
		for line := range bytes.Lines(log) {
			if slices.ContainsFunc(deadly, func(s string) bool { return bytes.HasPrefix(line, []byte(s)) }) {
				all = append(all, name+": "+string(bytes.TrimSpace(line)))
			}
		}
	}
	return all
}

// killed returns how many processes were killed at each statement.
func (c *supervisor) killed() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.kills)
}

// makeSafe ends the kills at statements. A relay that is killed while all stop would leave lanes that nobody takes.
func (c *supervisor) makeSafe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.safe = true
}

func (c *supervisor) isSafe() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.safe
}

// atStatement returns a random trap for a statement of a member, mostly nil.
func (c *supervisor) atStatement(name string, s pgtest.Passing) *pgtest.Trap {
	statement, named := strings.CutPrefix(s.SQL, "-- ")
	if !named || c.isSafe() {
		return nil
	}
	statement, _, _ = strings.Cut(statement, "\n")
	action := pgtest.CutBefore
	if rand.IntN(2) == 0 && s.SQL != pgtest.StandbyStatus {
		action = pgtest.DropReply
	}
	switch x := rand.Float64(); {
	case x < deadlyShare:
		return pgtest.NewTrap(action, func(bool) {
			if p := c.process(name); p != nil && p.Signal(syscall.SIGKILL) == nil {
				<-p.Done()
				c.mu.Lock()
				c.kills[statement]++
				c.mu.Unlock()
			}
		})
	case x < deadlyShare+lostShare:
		return pgtest.NewTrap(action, nil)
	}
	return nil
}
