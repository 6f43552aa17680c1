package proof

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// fault is a fault of a process or its connection at a message.
type fault string

const (
	before fault = "before" // the message is not sent
	after  fault = "after"  // it takes effect, but the reply is not read
	soon   fault = "soon"   // the sender loses the connection; the message takes effect at about the same time
	late   fault = "late"   // the sender loses the connection; the message is delivered lateBy later
)

var actions = map[fault]pgtest.Action{
	before: pgtest.CutBefore, after: pgtest.DropReply, soon: pgtest.CutAfter,
	late: pgtest.Late,
}

// point is a fault at a message. A statement has the name in its first line, as "relay: take"; a COMMIT one name for
// each statement of its transaction, "COMMIT of relay: take"; a request to Kafka its kind, "Kafka Produce".
type point struct {
	fault fault
	name  string
}

func (m point) String() string { return string(m.fault) + " " + m.name }

func commitOf(statement string) string { return "COMMIT of " + statement }

// register records which faults occurred at which messages. Cells that share the work share one.
type register struct {
	faults func(name string) []fault // the faults that a message needs
	skip   func(name string) int     // how many occurrences of a message come before a fault; nil: none

	mu          sync.Mutex
	done        map[point]int
	pending     map[point]bool // in progress
	occurrences map[string]int // occurrences by name
	total       int            // of the faults
	last        time.Time      // the last fault or new message
	over        bool
}

func newRegister(faults func(name string) []fault) *register {
	return &register{
		faults: faults, done: map[point]int{}, pending: map[point]bool{}, occurrences: map[string]int{},
		last: time.Now(),
	}
}

// readyAfterIdle without a fault or new message makes all lives ready.
const readyAfterIdle = 10 * time.Second

// at returns the fault at a message, if there is one; done records it. A COMMIT has several names.
func (g *register) at(names []string, ready bool) (do fault, done func(tookEffect bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range names {
		if g.occurrences[name]++; g.occurrences[name] == 1 {
			g.last = time.Now()
		}
	}
	if g.over || !ready && time.Since(g.last) < readyAfterIdle {
		return "", nil
	}
	for _, name := range names {
		if g.skip != nil && g.occurrences[name] <= g.skip(name) && time.Since(g.last) < readyAfterIdle {
			continue
		}
		for _, d := range g.faults(name) {
			m := point{d, name}
			if g.done[m] > 0 || g.pending[m] {
				continue
			}
			g.pending[m] = true
			return d, func(tookEffect bool) { g.recordFault(m, names, tookEffect) }
		}
	}
	return "", nil
}

func (g *register) recordFault(m point, names []string, tookEffect bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pending, m)
	if !tookEffect {
		return
	}
	g.total++
	g.last = time.Now()
	for _, name := range names {
		g.done[point{m.fault, name}]++
	}
}

// minOccurrences exempts messages that occurred fewer times: perhaps no life was ready at any of them.
const minOccurrences = 20

// missing lists the missing faults at messages that occurred.
func (g *register) missing() (all []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, times := range g.occurrences {
		for _, d := range g.faults(name) {
			if m := (point{d, name}); times >= minOccurrences && g.done[m] == 0 {
				all = append(all, m.String())
			}
		}
	}
	slices.Sort(all)
	return all
}

func (g *register) times(m point) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.done[m]
}

// had reports whether a message has occurred.
func (g *register) had(m point) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.occurrences[m.name] > 0
}

// idle returns the time since the last fault or new message.
func (g *register) idle() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.last)
}

// end lets no more faults start.
func (g *register) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
}

// nonePending reports whether no fault is in progress.
func (g *register) nonePending() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending) == 0
}

// summary is the summary for the report.
func (g *register) summary() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	statements, commits, requests := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for m := range g.done {
		switch {
		case strings.HasPrefix(m.name, "COMMIT"):
			commits[m.name] = true
		case strings.HasPrefix(m.name, "Kafka"):
			requests[m.name] = true
		default:
			statements[m.name] = true
		}
	}
	return fmt.Sprintf("%d times, at %d statements, at the COMMITs of %d statements' transactions, and at %d kinds "+
		"of requests to Kafka",
		g.total, len(statements), len(commits), len(requests))
}
