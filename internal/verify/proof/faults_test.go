//go:build failpoints

package proof

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestFaults lets a fault happen at every failpoint that has an error path, three times, beside the faults at all the
// others: mostly a lost answer, or a connection that ends within a transaction. The same must hold as after a death.
func TestFaults(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	total := map[failpoint.Name]int{}
	// The operator begins a new numbering soon after its start, and the relay must not find that one.
	for _, r := range []role{producer, worker, relaying, person} {
		c.faults(t, r, pointsOf(r), total)
	}
	c.finish(t)
	for _, r := range []role{producer, worker, relaying, person} {
		allFaulted(t, r, total)
	}
}

// allFaulted checks that a fault has happened at each point of a role that can have one.
func allFaulted(t *testing.T, r role, total map[failpoint.Name]int) {
	t.Helper()
	for _, p := range pointsOf(r) {
		if p.Errs {
			t.Logf("%d faults at %s", total[p.Name], p.Name)
			if total[p.Name] == 0 {
				t.Errorf("no fault happened at %s: the test proves nothing about it", p.Name)
			}
		}
	}
}

// often is how often a fault happens at a point that ordinary work passes again and again. The others are met once
// each.
const often = 3

// faults runs a role with faults at points until each has happened: once with all that need nothing special, and once
// for each of the others.
func (c *cell) faults(t *testing.T, r role, points []failpoint.Point, total map[failpoint.Name]int) {
	t.Helper()
	var settings []string
	wants := map[failpoint.Name]int{}
	for _, p := range points {
		if !p.Errs {
			continue
		}
		if w := wayOf(p.Name); w.special() {
			alone := string(p.Name) + "=error"
			if w.beside != "" {
				alone += ";" + w.beside
			}
			c.meet(t, r, &w, alone, map[failpoint.Name]int{p.Name: 1})
			continue
		}
		n := often
		if wayOf(p.Name).later == 1 {
			n = 1
		}
		wants[p.Name] = n
		settings = append(settings, fmt.Sprintf("%s=error*%d", p.Name, n))
	}
	c.meet(t, r, &way{}, strings.Join(settings, ";"), wants)
	for name, n := range c.done(t, "error") {
		total[name] = n
	}
	// What is left of its faults shall not meet the end of the run.
	c.running[r].Stop(syscall.SIGKILL, time.Minute)
	c.start(t, r)
}

// meet runs a role until faults have happened so often.
func (c *cell) meet(t *testing.T, r role, w *way, settings string, wants map[failpoint.Name]int) {
	t.Helper()
	before := c.done(t, "error")
	p := c.ready(t, r, w, settings)
	deadline := time.Now().Add(reachWithin * 5 / 6) // before Await ends
	pgtest.Await(t, "the faults of the "+string(r), func() (bool, error) {
		// Asked before the faults are counted: a process may have its fault and end between the two.
		ended := false
		select {
		case <-p.Done():
			ended = true
		default:
		}
		now, missing := c.done(t, "error"), 0
		for name, n := range wants {
			if now[name]-before[name] < n {
				missing++
			}
		}
		// A relay that was told to stop, and whose last answer was lost, says so and ends.
		if ended && (missing > 0 || w.stop == "") {
			return false, fmt.Errorf("the %s with %s ended by itself: %s", r, settings, p.LogTail())
		}
		return missing == 0 || time.Now().After(deadline), nil
	})
}
