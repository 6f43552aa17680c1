package proof

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// deed is what is done to a process or its connection at a message.
type deed string

const (
	before deed = "before" // the other side does not have it
	after  deed = "after"  // it was done, and its answer is not read
	soon   deed = "soon"   // its sender gives it up, and it is done a moment later or at the same time
	late   deed = "late"   // its sender gives it up, and it is sent long after
)

var actions = map[deed]pgtest.Action{
	before: pgtest.CutBefore, after: pgtest.DropReply, soon: pgtest.CutAfter,
	late: pgtest.Late,
}

// mark is a deed at a message. Statements are called as their first line calls them, "relay: take"; a COMMIT by each
// statement of its transaction, "COMMIT of relay: take"; a request to Kafka by its kind, "Kafka Produce".
type mark struct {
	deed deed
	name string
}

func (m mark) String() string { return string(m.deed) + " " + m.name }

func commitOf(statement string) string { return "COMMIT of " + statement }

// register knows what was done at which messages. It belongs to cells that share the work.
type register struct {
	deeds func(name string) []deed // what is to be done at a message

	mu    sync.Mutex
	done  map[mark]int
	held  map[mark]bool  // somebody is about to
	seen  map[string]int // times
	total int            // deeds
	last  time.Time      // when something was done, or met for the first time
	over  bool
}

func newRegister(deeds func(name string) []deed) *register {
	return &register{
		deeds: deeds, done: map[mark]int{}, held: map[mark]bool{}, seen: map[string]int{},
		last: time.Now(),
	}
}

// idleLong: after so long without anything new, nobody waits for a later time any more.
const idleLong = 10 * time.Second

// at says what to do at a message, if anything: done ends it. Of a COMMIT there are several names.
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

// rare: what came fewer times need not have been met by anybody who was to do something.
const rare = 20

// left lists what was not done at messages that came.
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

// idle is how long nothing new has happened.
func (g *register) idle() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.last)
}

// end lets nothing more happen.
func (g *register) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
}

// quiet: nobody is in the midst of a deed.
func (g *register) quiet() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held) == 0
}

// sum says how much was done, for the report.
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
