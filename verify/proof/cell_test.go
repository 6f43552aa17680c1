package proof

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// cell is a database, a topic and the processes that work on them.
type cell struct {
	db     *pgtest.DB
	topic  string
	broker string
	url    string // of the database
	dir    string
	dedup  string // of the worker, see envDedup
	feed   string // of the relay, see envFeed
	calm   bool   // see envCalm
	kills  bool   // a fault kills the process; otherwise it ends the connection
	byKind bool   // messages go by the name of their kind

	mu         sync.Mutex
	started    int
	lived      map[role]int // how many lives of a role began
	armed      map[role]*register
	lives      map[role]*life
	plain      bool          // new processes get the default configuration
	over       chan struct{} // closed: no more restarts
	restarters sync.WaitGroup
}

// life is one process of a role.
type life struct {
	role    role
	process *child.Process
	running chan struct{} // closed when process is set
	proxy   *pgtest.Proxy
	early   bool // killed at the first occurrence of a message, not at a later one
	born    time.Time
	mayExit bool // it may exit by itself; guarded by cell.mu

	mu   sync.Mutex
	hits map[string]int
}

// After the first earlyLives lives of a cell only every second one is early; the others become so after readyAfter. By
// watermark there are more, because a partition has its first mark only once.
const (
	readyAfter            = 3 * time.Second
	earlyLives            = 20
	earlyLivesByWatermark = 150
)

func newCell(t *testing.T) *cell {
	t.Helper()
	return cellIn(t, pgtest.NewDatabase(t, migrations.Outbox, migrations.Inbox))
}

func cellIn(t *testing.T, db *pgtest.DB) *cell {
	t.Helper()
	kafkatest.RequireReal(t)
	brokers := kafkatest.Brokers(t)
	if len(brokers) != 1 {
		t.Fatalf("%d brokers: a proxy stands before one", len(brokers))
	}
	c := &cell{
		db: db, topic: kafkatest.Topic(t, 4, map[string]string{"max.message.bytes": topicTakes}), broker: brokers[0],
		url: db.URL, dir: t.TempDir(), kills: true, armed: map[role]*register{}, lives: map[role]*life{},
		lived: map[role]int{},
		over:  make(chan struct{}),
	}
	c.db.Exec(t, ddl)
	return c
}

// startAll starts all roles, and restarts them until rest or the end of the test.
func (c *cell) startAll(t *testing.T) {
	t.Helper()
	for _, r := range []role{producer, relaying, worker, operatorRole} {
		l := c.start(t, r)
		c.mu.Lock()
		c.lives[r] = l
		c.mu.Unlock()
		c.restarters.Go(func() { c.keepRunning(t, r) })
	}
	t.Cleanup(func() {
		c.stopRestarts()
		for _, l := range c.lives {
			l.process.Stop(syscall.SIGKILL, time.Minute)
		}
	})
}

// stopRestarts ends the restarts.
func (c *cell) stopRestarts() {
	select {
	case <-c.over:
	default:
		close(c.over)
	}
	c.restarters.Wait()
}

// keepRunning restarts a role.
func (c *cell) keepRunning(t *testing.T, r role) {
	for {
		l := c.life(r)
		select {
		case <-l.process.Done():
		case <-c.over:
			return
		}
		c.ended(t, l)
		next := c.start(t, r)
		c.mu.Lock()
		c.lives[r] = next
		c.mu.Unlock()
	}
}

func (c *cell) life(r role) *life {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lives[r]
}

// ended reports a process that exited without SIGKILL.
func (c *cell) ended(t *testing.T, l *life) {
	var exit *exec.ExitError
	err := l.process.Wait()
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !l.mayExit {
		t.Errorf("a %s ended by itself (%v): %s", l.role, err, l.process.LogTail())
	}
}

// start starts a role behind new proxies.
func (c *cell) start(t *testing.T, r role) *life {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started++
	c.lived[r]++
	first := earlyLives
	if c.dedup == byWatermark {
		first = earlyLivesByWatermark
	}
	l := &life{
		role: r, running: make(chan struct{}), early: c.started < first || c.started%2 == 0, born: time.Now(),
		hits: map[string]int{},
	}
	l.proxy = pgtest.NewProxy(t, c.url)
	l.proxy.Watch(func(s pgtest.Passing) *pgtest.Trap { return c.passes(l, s) })
	kafka := newKafkaProxy(t, c.broker, func(kind string) (fault, func(bool)) { return c.at(l, "Kafka "+kind) })
	exe, err := os.Executable()
	if err != nil {
		t.Error(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envRole+"="+string(r), envURL+"="+l.proxy.URL(), envKafka+"="+kafka.addr(),
		envTopic+"="+c.topic, envDedup+"="+c.dedup, envFeed+"="+c.feed)
	if c.calm {
		cmd.Env = append(cmd.Env, envCalm+"=1")
	}
	if !c.plain && c.lived[r]%3 == 0 {
		cmd.Env = append(cmd.Env, envUnusual+"=1")
	}
	if l.process, err = child.Start(cmd, filepath.Join(c.dir, fmt.Sprintf("%s-%d.log", r, c.started)),
		syscall.SIGKILL); err != nil {
		t.Errorf("%s: %v", r, err)
	}
	close(l.running)
	return l
}

// arm lets a register choose the faults of the roles, and of no others.
func (c *cell) arm(g *register, roles ...role) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.armed)
	for _, r := range roles {
		c.armed[r] = g
	}
}

// passes returns the trap for a statement, if there is one.
func (c *cell) passes(l *life, s pgtest.Passing) *pgtest.Trap {
	var names []string
	if name := nameOf(s.SQL, c.byKind); name != "" {
		names = []string{name}
	}
	if pgtest.IsCommit(s.SQL) {
		for _, one := range s.Transaction {
			name := nameOf(one, c.byKind)
			if name != "" && c.byKind {
				name = roomOf(name)
			}
			if name != "" {
				names = append(names, commitOf(name))
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	do, done := c.at(l, names...)
	if done == nil {
		return nil
	}
	action := actions[do]
	if s.SQL == pgtest.StandbyStatus && do == after {
		action = pgtest.CutAfter // it has no reply to drop
	}
	trap := pgtest.NewTrap(action, done)
	if do == late {
		time.AfterFunc(lateBy, trap.Release)
	}
	return trap
}

// lateBy delays a late COMMIT, long enough for its sender to continue or retry.
const lateBy = 200 * time.Millisecond

// laterOccurrence is the occurrence of a message at which a life that is not early is killed.
const laterOccurrence = 3

// at returns the fault at a message, if there is one.
func (c *cell) at(l *life, names ...string) (fault, func(tookEffect bool)) {
	c.mu.Lock()
	g := c.armed[l.role]
	c.mu.Unlock()
	if g == nil {
		return "", nil
	}
	l.mu.Lock()
	ready := l.early || time.Since(l.born) > readyAfter
	for _, name := range names {
		l.hits[name]++
		ready = ready || l.hits[name] >= laterOccurrence
	}
	l.mu.Unlock()
	do, done := g.at(names, ready)
	if done == nil || !c.kills {
		return do, done
	}
	return do, func(tookEffect bool) {
		<-l.running
		l.process.Stop(syscall.SIGKILL, time.Minute)
		done(tookEffect)
	}
}

// terminate sends SIGTERM to a role.
func (c *cell) terminate(r role) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lives[r].mayExit = true
	_ = c.lives[r].process.Signal(syscall.SIGTERM)
}

// endFaults ends the faults and restarts all roles with the default configuration.
func (c *cell) endFaults(t *testing.T) {
	t.Helper()
	c.arm(nil)
	c.mu.Lock()
	c.plain = true
	c.mu.Unlock()
	for _, r := range []role{producer, relaying, worker, operatorRole} {
		l := c.life(r)
		l.process.Stop(syscall.SIGKILL, time.Minute)
		pgtest.Await(t, "another "+string(r), func() (bool, error) { return c.life(r) != l, nil })
	}
}

// finish ends the load, waits until everything has drained, stops the processes and checks.
func (c *cell) finish(t *testing.T) {
	t.Helper()
	c.endFaults(t)
	c.stopRestarts()
	c.lives[producer].process.Stop(syscall.SIGTERM, time.Minute)
	c.drained(t)
	for _, r := range []role{operatorRole, relaying, worker} {
		p := c.lives[r].process
		p.Stop(syscall.SIGTERM, time.Minute)
		if err := p.Wait(); err != nil {
			t.Errorf("the last %s: %v: %s", r, err, p.LogTail())
		}
		if r == operatorRole {
			c.drained(t) // after its last replay
		}
	}
	c.check(t)
}
