package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// children are the child processes. Methods may be called from any goroutine.
type children struct {
	self     string // this program
	dir      string // of the logs
	settings settings
	printf   func(format string, args ...any)
	failed   chan error // the first child that ended and was not killed by the demo

	mu     sync.Mutex
	byName map[string]*childProcess
	closed bool
}

type childProcess struct {
	name, role string
	process    *child.Process
	stdin      *os.File // the child ends when this is closed
	ended      chan struct{}
	stopping   bool
	retry      bool // of one that had ended by itself
}

func newChildren(dir string, p settings, printf func(string, ...any)) (*children, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program's path: %w", err)
	}
	return &children{
		self: self, dir: dir, settings: p, printf: printf, failed: make(chan error, 1),
		byName: map[string]*childProcess{},
	}, nil
}

// start starts a child, which logs to name.log. After stop it does nothing.
func (c *children) start(name, role string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.startLocked(name, role)
}

func (c *children) startLocked(name, role string) error {
	if c.closed {
		return nil
	}
	p := c.settings
	p.Name = name
	env, err := json.Marshal(p)
	if err != nil {
		return err
	}
	childEnd, parentEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer childEnd.Close()
	cmd := exec.Command(c.self)
	cmd.Stdin = childEnd
	cmd.Env = append(os.Environ(), envRole+"="+role, envSettings+"="+string(env))
	process, err := child.Start(cmd, filepath.Join(c.dir, name+".log"), syscall.SIGKILL)
	if err != nil {
		_ = parentEnd.Close()
		return fmt.Errorf("starting %s: %w", name, err)
	}
	again := c.byName[name] != nil
	m := &childProcess{name: name, role: role, process: process, stdin: parentEnd, ended: make(chan struct{})}
	c.byName[name] = m
	go c.watch(m)
	if again {
		c.printf("started %s again (pid %d)", name, process.PID())
	}
	return nil
}

func (c *children) watch(m *childProcess) {
	defer close(m.ended)
	<-m.process.Done()
	_ = m.stdin.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !m.stopping {
		select {
		case c.failed <- m.failure():
		default:
		}
	}
}

// failure says how the process ended.
func (m *childProcess) failure() error {
	how, _ := m.end()
	return fmt.Errorf("%s (pid %d) %s:\n%s", m.name, m.process.PID(), how, m.process.LogTail())
}

// end waits for the process. A child exits with 0 only when it is told to stop.
func (m *childProcess) end() (how string, itself bool) {
	err := m.process.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return fmt.Sprintf("ended by itself (%v)", err), true
	}
	if err == nil {
		return "was stopped from outside", false
	}
	return fmt.Sprintf("was killed from outside (%v)", err), false
}

// revive starts again what others have killed, and what has ended by itself; twice in a row is an error.
func (c *children) revive(say func(format string, args ...any)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, m := range c.byName {
		if m.stopping || !isClosed(m.ended) {
			continue
		}
		how, itself := m.end()
		if itself && m.retry {
			return m.failure()
		}
		if err := c.startLocked(name, m.role); err != nil {
			return err
		}
		c.byName[name].retry = itself
		say("%s %s: it runs again", name, how)
	}
	return nil
}

// kill sends SIGKILL and waits for the end of the process.
func (c *children) kill(name string) {
	c.mu.Lock()
	m := c.byName[name]
	if m == nil || m.stopping {
		c.mu.Unlock()
		return
	}
	m.stopping = true
	c.mu.Unlock()
	_ = m.process.Signal(os.Kill)
	<-m.ended
	c.printf("killed %s (kill -9, pid %d)", name, m.process.PID())
}

// expect says whether the end of a child is no failure, and returns a channel that is closed then.
func (c *children) expect(name string, end bool) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.byName[name]
	m.stopping = end
	return m.ended
}

// running reports whether a child runs.
func (c *children) running(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.byName[name]
	return m != nil && !isClosed(m.ended)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// stop sends SIGTERM to all children, kills those that do not end in time, and waits for the end of all.
func (c *children) stop() {
	c.mu.Lock()
	c.closed = true
	var all []*childProcess
	for _, m := range c.byName {
		m.stopping = true
		all = append(all, m)
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, m := range all {
		wg.Go(func() {
			m.process.Stop(syscall.SIGTERM, stopTimeout)
			<-m.ended
		})
	}
	wg.Wait()
}
