//go:build failpoints

package proof

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// reachWithin is far more than any point takes to be reached, on a busy machine too.
const reachWithin = 2 * time.Minute

// cell is a database, a topic and the processes that work on them.
type cell struct {
	db      *pgtest.DB
	topic   string
	brokers string
	url     string // of the database, for the processes
	dir     string
	log     string // of the failpoints
	dedup   string // of the worker, see envDedup
	source  string // of the relay, see envSource
	calm    bool   // see envCalm
	started int
	running map[role]*child.Process
}

func newCell(t *testing.T) *cell {
	t.Helper()
	c := emptyCell(t)
	c.startAll(t)
	return c
}

// emptyCell has no processes yet.
func emptyCell(t *testing.T) *cell {
	t.Helper()
	return cellIn(t, pgtest.NewDatabase(t, migrations.Outbox, migrations.Inbox))
}

// cellIn works in a database of somebody's.
func cellIn(t *testing.T, db *pgtest.DB) *cell {
	t.Helper()
	kafkatest.RequireReal(t)
	c := &cell{
		db: db, topic: kafkatest.Topic(t, 4, map[string]string{"max.message.bytes": topicTakes}),
		brokers: kafkatest.Brokers(t)[0], dir: t.TempDir(), running: map[role]*child.Process{},
	}
	c.log, c.url = filepath.Join(c.dir, "failpoints"), c.db.URL
	c.db.Exec(t, ddl)
	return c
}

func (c *cell) startAll(t *testing.T) {
	t.Helper()
	for _, r := range []role{producer, relaying, worker, person} {
		c.start(t, r)
	}
	c.killAtEnd(t)
}

// killAtEnd leaves nobody behind.
func (c *cell) killAtEnd(t *testing.T) {
	t.Cleanup(func() {
		for _, p := range c.running {
			p.Stop(syscall.SIGKILL, time.Minute)
		}
	})
}

// start starts a role, with failpoint settings or none and more of an environment.
func (c *cell) start(t *testing.T, r role, env ...string) *child.Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envRole+"="+string(r), envURL+"="+c.url, envKafka+"="+c.brokers, envTopic+"="+c.topic, envDedup+"="+c.dedup, envSource+"="+c.source, failpoint.EnvLog+"="+c.log)
	if c.calm {
		cmd.Env = append(cmd.Env, envCalm+"=1")
	}
	cmd.Env = append(cmd.Env, env...)
	c.started++
	p, err := child.Start(cmd, filepath.Join(c.dir, fmt.Sprintf("%s-%d.log", r, c.started)), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	c.running[r] = p
	return p
}

// kill lets a role die at a point's hit number at, and reports whether it did. The role does not run afterwards.
func (c *cell) kill(t *testing.T, r role, w *way, name failpoint.Name, at int) bool {
	t.Helper()
	settings := fmt.Sprintf("%s=kill@%d", name, at)
	if w.beside != "" {
		settings += ";" + w.beside
	}
	return c.die(t, r, c.ready(t, r, w, settings))
}

// ready replaces a role's process by one with failpoint settings that goes a way.
func (c *cell) ready(t *testing.T, r role, w *way, settings string) *child.Process {
	t.Helper()
	c.running[r].Stop(syscall.SIGKILL, time.Minute)
	if w.after != "" {
		c.die(t, r, c.start(t, r, failpoint.EnvSettings+"="+string(w.after)+"=kill"))
	}
	if w.prepare != nil {
		w.prepare(t, c)
	}
	p := c.start(t, r, append(w.env, failpoint.EnvSettings+"="+settings)...)
	if w.stop == "" {
		return p
	}
	pgtest.Await(t, string(w.stop), func() (bool, error) {
		b, err := os.ReadFile(c.log)
		if errors.Is(err, os.ErrNotExist) { // no process has begun yet
			return false, nil
		}
		return strings.Contains(string(b), fmt.Sprintf("%d reached %s\n", p.PID(), w.stop)), err
	})
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return p
}

// die waits for a process to kill itself.
func (c *cell) die(t *testing.T, r role, p *child.Process) bool {
	t.Helper()
	timer := time.NewTimer(reachWithin)
	defer timer.Stop()
	select {
	case <-p.Done():
	case <-timer.C:
		p.Stop(syscall.SIGKILL, time.Minute)
		return false
	}
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("a %s ended by itself (%v): %s", r, err, p.LogTail())
		return false
	}
	return true
}

// done counts what the processes have done at points, by action.
func (c *cell) done(t *testing.T, action string) map[failpoint.Name]int {
	t.Helper()
	b, err := os.ReadFile(c.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	n := map[failpoint.Name]int{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == action {
			n[failpoint.Name(f[2])]++
		}
	}
	return n
}

// roleOf says which process passes a point, by its room.
func roleOf(name failpoint.Name) role {
	room, step, _ := strings.Cut(string(name), "/")
	switch {
	case strings.HasPrefix(step, "operate"), name == failpoint.RelayReplayed:
		return person
	case strings.HasPrefix(string(name), "relay/wal-"):
		return following
	case room == "outbox", room == "producer":
		return producer
	case room == "relay", room == "publisher":
		return relaying
	}
	return worker
}
