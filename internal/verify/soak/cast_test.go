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
	"github.com/effectonce/effectonce/internal/verify/players"
)

// At how many of its statements a player dies, or loses its connection: before Postgres has it, or when its answer
// comes.
const (
	deadlyShare = 0.0001
	lostShare   = 0.0003
)

// cast is the players. One that ends is started again, as a supervisor does, unless it was told to stay away.
type cast struct {
	dir   string // of their logs
	mu    sync.Mutex
	roles map[string]*part
	over  chan struct{} // closed when nobody is started again
	done  sync.WaitGroup

	crashes []string // how players ended that nobody killed
	lives   int
	kills   map[string]int // at statements
}

// part is one player over all its lives.
type part struct {
	cfg     players.Config
	process *child.Process // nil between two lives
	wanted  bool
	wake    chan struct{} // holds one: look again whether it is wanted
}

func newCast(t *testing.T, dir string) *cast {
	c := &cast{dir: dir, roles: map[string]*part{}, over: make(chan struct{}), kills: map[string]int{}}
	t.Cleanup(c.end)
	return c
}

// end kills everybody and waits until they are gone.
func (c *cast) end() {
	c.mu.Lock()
	select {
	case <-c.over:
	default:
		close(c.over)
	}
	for _, p := range c.roles {
		if p.process != nil {
			_ = p.process.Signal(syscall.SIGKILL)
		}
	}
	c.mu.Unlock()
	c.done.Wait()
}

// add makes a player, which starts at once if it is wanted.
func (c *cast) add(cfg players.Config, wanted bool) {
	p := &part{cfg: cfg, wanted: wanted, wake: make(chan struct{}, 1)}
	c.mu.Lock()
	c.roles[cfg.Name] = p
	c.mu.Unlock()
	c.done.Go(func() { c.supervise(p) })
}

// supervise starts a player again and again.
func (c *cast) supervise(p *part) {
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

// start begins a life; c.mu is held.
func (c *cast) start(p *part) error {
	select {
	case <-c.over:
		return nil
	default:
	}
	p.cfg.Life++
	c.lives++
	cmd, err := players.Command(p.cfg)
	if err != nil {
		return err
	}
	p.process, err = child.Start(cmd, filepath.Join(c.dir, p.cfg.Name+".log"), syscall.SIGKILL)
	return err
}

// ended looks at how a life ended: by a signal, in order, or by itself, which a person should know.
func (c *cast) ended(p *part, err error) {
	c.mu.Lock()
	tail := p.process.LogTail()
	p.process = nil
	c.mu.Unlock()
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return
	}
	lines := strings.Split(tail, "\n")
	c.crashed(fmt.Sprintf("%s: %v: %s", p.cfg.Name, err, lines[len(lines)-1]))
}

func (c *cast) crashed(how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.crashes = append(c.crashes, how)
}

// signal reaches a player that lives, and says whether one did.
func (c *cast) signal(name string, sig syscall.Signal) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.roles[name]
	return p != nil && p.process != nil && p.process.Signal(sig) == nil
}

// life is a player's process; nil: it is between two.
func (c *cast) life(name string) *child.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.roles[name].process
}

// want says whether a player is to live. One that is no longer wanted is told to end in order.
func (c *cast) want(name string, wanted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.roles[name]
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

// gone waits until a player that is not wanted has ended in order, and kills it after a time that should do.
func (c *cast) gone(name string, patience time.Duration) error {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	c.mu.Lock()
	p := c.roles[name].process
	c.mu.Unlock()
	if p == nil {
		return nil
	}
	select {
	case <-p.Done():
		return nil
	case <-limit.C:
		_ = p.Signal(syscall.SIGQUIT) // its goroutines into its log
		<-p.Done()
		return fmt.Errorf("%s did not end within %v of SIGTERM: see its log", name, patience)
	}
}

// names of the players of a role, or of all.
func (c *cast) names(role string) (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, p := range c.roles {
		if role == "" || p.cfg.Role == role {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// logs are what players wrote, for the search for secrets.
func (c *cast) logs(t *testing.T) map[string][]byte {
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

// deadly are the beginnings of lines that nothing which is done to a player excuses.
var deadly = []string{"panic:", "fatal error:", "WARNING: DATA RACE"}

// panics are the first lines of what players wrote when they panicked: nothing that is done to them excuses that.
func (c *cast) panics(t *testing.T) (all []string) {
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

// killed counts the players that died at statements.
func (c *cast) killed() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.kills)
}

// meets decides by chance about a statement of a player.
func (c *cast) meets(name string, s pgtest.Passing) *pgtest.Trap {
	statement, named := strings.CutPrefix(s.SQL, "-- ")
	if !named {
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
			if p := c.life(name); p != nil && p.Signal(syscall.SIGKILL) == nil {
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
