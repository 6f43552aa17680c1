package proof

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// deed is a fault of a process or its connection at a message.
type deed string

const (
	before deed = "before" // the message is not sent
	after  deed = "after"  // it takes effect, but the reply is not read
	soon   deed = "soon"   // the sender loses the connection; the message takes effect at about the same time
	late   deed = "late"   // the sender loses the connection; the message is delivered lateBy later
)

var actions = map[deed]pgtest.Action{
	before: pgtest.CutBefore, after: pgtest.DropReply, soon: pgtest.CutAfter,
	late: pgtest.Late,
}

// mark is a fault at a message. A statement has the name in its first line, as "relay: take"; a COMMIT one name for
// each statement of its transaction, "COMMIT of relay: take"; a request to Kafka its kind, "Kafka Produce".
type mark struct {
	deed deed
	name string
}

func (m mark) String() string { return string(m.deed) + " " + m.name }

func commitOf(statement string) string { return "COMMIT of " + statement }

// register records which faults occurred at which messages. Cells that share the work share one.
type register struct {
	deeds func(name string) []deed // the faults that a message needs

	mu    sync.Mutex
	done  map[mark]int
	held  map[mark]bool  // in progress
	seen  map[string]int // occurrences by name
	total int            // of the faults
	last  time.Time      // the last fault or new message
	over  bool
}

func newRegister(deeds func(name string) []deed) *register {
	return &register{
		deeds: deeds, done: map[mark]int{}, held: map[mark]bool{}, seen: map[string]int{},
		last: time.Now(),
	}
}

// idleLong without a fault or new message makes all lives ready.
const idleLong = 10 * time.Second

// at returns the fault at a message, if there is one; done records it. A COMMIT has several names.
func (g *register) at(names []string, ready bool) (do deed, done func(really bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range names {
		if g.seen[name]++; g.seen[name] == 1 {
			g.last = time.Now()
		}
	}
	if g.over || !ready && time.Since(g.last) < idleLong {
		return "", nil
	}
	for _, name := range names {
		for _, d := range g.deeds(name) {
			m := mark{d, name}
			if g.done[m] > 0 || g.held[m] {
				continue
			}
			g.held[m] = true
			return d, func(really bool) { g.did(m, names, really) }
		}
	}
	return "", nil
}

func (g *register) did(m mark, names []string, really bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.held, m)
	if !really {
		return
	}
	g.total++
	g.last = time.Now()
	for _, name := range names {
		g.done[mark{m.deed, name}]++
	}
}

// rare exempts messages that occurred fewer times: perhaps no life was ready at any of them.
const rare = 20

// left lists the missing faults at messages that occurred.
func (g *register) left() (all []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, times := range g.seen {
		for _, d := range g.deeds(name) {
			if m := (mark{d, name}); times >= rare && g.done[m] == 0 {
				all = append(all, m.String())
			}
		}
	}
	slices.Sort(all)
	return all
}

func (g *register) times(m mark) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.done[m]
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

// quiet reports whether no fault is in progress.
func (g *register) quiet() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held) == 0
}

// sum is the summary for the report.
func (g *register) sum() string {
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
