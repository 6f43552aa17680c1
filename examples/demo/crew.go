package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// crew is the child processes, by name. Its methods may be called from any goroutine.
type crew struct {
	self   string // this program
	dir    string // of the logs
	places places
	say    func(format string, args ...any)
	lost   chan error // the first child that ended by itself

	mu      sync.Mutex
	members map[string]*member
	closed  bool
}

type member struct {
	name, role string
	process    *child.Process
	life       *os.File // closing it tells the child that the demo is gone
	ended      chan struct{}
	told       bool // its end is wanted
}

func newCrew(dir string, p places, say func(string, ...any)) (*crew, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program, to run it again: %w", err)
	}
	return &crew{self: self, dir: dir, places: p, say: say, lost: make(chan error, 1), members: map[string]*member{}},
		nil
}

// start starts a child; the name is that of its log, too. After stop it does nothing.
func (c *crew) start(name, role string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	p := c.places
	p.Name = name
	settings, err := json.Marshal(p)
	if err != nil {
		return err
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirs.Close()
	cmd := exec.Command(c.self)
	cmd.Stdin = theirs
	cmd.Env = append(os.Environ(), envRole+"="+role, envPlaces+"="+string(settings))
	process, err := child.Start(cmd, filepath.Join(c.dir, name+".log"), syscall.SIGKILL)
	if err != nil {
		_ = ours.Close()
		return fmt.Errorf("starting %s: %w", name, err)
	}
	again := c.members[name] != nil
	m := &member{name: name, role: role, process: process, life: ours, ended: make(chan struct{})}
	c.members[name] = m
	go c.watch(m)
	if again {
		c.say("started %s again (pid %d)", name, process.PID())
	}
	return nil
}

func (c *crew) watch(m *member) {
	defer close(m.ended)
	<-m.process.Done()
	_ = m.life.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !m.told {
		select {
		case c.lost <- fmt.Errorf("%s (pid %d) ended by itself:\n%s", m.name, m.process.PID(), m.process.LogTail()):
		default:
		}
	}
}

// kill is kill -9, and returns when the process is gone.
func (c *crew) kill(name string) {
	c.mu.Lock()
	m := c.members[name]
	if m == nil || m.told {
		c.mu.Unlock()
		return
	}
	m.told = true
	c.mu.Unlock()
	_ = m.process.Signal(os.Kill)
	<-m.ended
	c.say("killed %s (kill -9, pid %d)", name, m.process.PID())
}

// stop ends all in order, and kills whoever takes too long. It returns when all are gone.
func (c *crew) stop() {
	c.mu.Lock()
	c.closed = true
	var all []*member
	for _, m := range c.members {
		m.told = true
		all = append(all, m)
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, m := range all {
		wg.Go(func() {
			m.process.Stop(syscall.SIGTERM, childPatience)
			<-m.ended
		})
	}
	wg.Wait()
}
