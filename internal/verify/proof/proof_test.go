//go:build failpoints

package proof

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/failpoint"
)

// cells is how many cells share the points of a role. They wait for leases and sessions most of the time.
const cells = 2

// slow is worth a line in the report.
const slow = 5 * time.Second

// TestKills lets a process die at every failpoint there is: at its first hit, and at a later one. Nothing is lost,
// nothing is published that was not committed, no effect happens twice, the order of each key holds, and everything
// drains.
func TestKills(t *testing.T) {
	var report tally
	t.Run("cells", func(t *testing.T) {
		for r, n := range map[role]int{producer: 1, relaying: cells, worker: cells, person: 1} {
			for i := range n {
				t.Run(fmt.Sprintf("%s-%d", r, i), func(t *testing.T) {
					t.Parallel()
					c := newCell(t)
					for j, p := range pointsOf(r) {
						if j%n == i {
							c.dieAt(t, r, p, &report)
						}
					}
					c.start(t, r)
					c.finish(t)
				})
			}
		}
	})
	report.all(t, func(r role) bool { return r != following })
}

// all checks that somebody was killed at each point of some roles.
func (k *tally) all(t *testing.T, of func(role) bool) {
	t.Helper()
	for _, p := range failpoint.All() {
		if !of(roleOf(p.Name)) {
			continue
		}
		n := k.of(p.Name)
		t.Logf("killed %d times at %s", n, p.Name)
		if n == 0 {
			t.Errorf("nobody was killed at %s: the test proves nothing about it; say in ways how it is reached", p.Name)
		}
	}
}

// dieAt kills a role at a point, early and later.
func (c *cell) dieAt(t *testing.T, r role, p failpoint.Point, report *tally) {
	t.Helper()
	w := wayOf(p.Name)
	for _, at := range []int{1, w.later} {
		began := time.Now()
		if c.kill(t, r, &w, p.Name, at) {
			report.add(p.Name)
		} else {
			t.Errorf("hit %d of %s is not reached within %v; give it a later of its own in ways, or a way", at, p.Name, reachWithin)
		}
		if took := time.Since(began); took > slow {
			t.Logf("%s@%d took %v", p.Name, at, took.Round(100*time.Millisecond))
		}
	}
}

func pointsOf(r role) (points []failpoint.Point) {
	for _, p := range failpoint.All() {
		if roleOf(p.Name) == r {
			points = append(points, p)
		}
	}
	return points
}

// tally counts kills over the cells.
type tally struct {
	mu sync.Mutex
	n  map[failpoint.Name]int
}

func (k *tally) add(name failpoint.Name) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.n == nil {
		k.n = map[failpoint.Name]int{}
	}
	k.n[name]++
}

func (k *tally) of(name failpoint.Name) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.n[name]
}

// finish ends the cell's load, lets everything drain, ends the processes in order and checks.
func (c *cell) finish(t *testing.T) {
	t.Helper()
	c.running[producer].Stop(syscall.SIGTERM, time.Minute)
	c.drained(t)
	for _, r := range []role{person, relaying, worker} {
		p := c.running[r]
		if p == nil {
			continue
		}
		p.Stop(syscall.SIGTERM, time.Minute)
		if err := p.Wait(); err != nil {
			t.Errorf("the last %s: %v: %s", r, err, p.LogTail())
		}
		if r == person {
			c.drained(t) // of its last replay
		}
	}
	c.check(t)
}
