// Package explore walks through every state that a model can reach, breadth first, and tells the shortest story to one
// that is wrong.
//
// A model is a start and a function that gives the successors of a state. What must always hold is Bad, asked of every
// state; what must remain possible is Good: from every state reached, a good one must be reachable over steps that are
// no faults (liveness: after the faults end, the system drains). A state is a value; two are the same when their Key
// is. Where states differ only by a renaming, let Key rename them to one (symmetry), which must then be a renaming of
// Next, too.
//
//	m := explore.Model[state, state]{Start: start, Key: func(s *state) state { return *s }, Next: next, Bad: bad, Good: done}
//	found := explore.Run(m)
//	if found.Violation != nil { t.Fatal(found) }
package explore

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// Model is what [Run] explores. S is a state, K its identity: what must be the same for two states to be one.
type Model[S any, K comparable] struct {
	// Start are the states to begin with; at least one.
	Start []S
	// Next calls emit for each step that is possible in s, in an order that depends on nothing but s: a story is told
	// by taking the same steps again. It must not change *s, nor share memory between the successors that it emits.
	Next func(s *S, emit func(Step[S]))
	// Key returns the identity of a state. It should leave nothing out that a later step depends on.
	Key func(s *S) K
	// Bad returns what is wrong with a state; "" when nothing is. It is asked of every state once. Nil: nothing ever
	// is.
	Bad func(s *S) string
	// Good says that nothing is left to do. Nil: liveness is not asked for, and the steps are not kept.
	Good func(s *S) bool
	// MaxStates ends the search when so many states were met, MaxDepth when they are so many steps away. Zero: no
	// limit. A search that ends so is not Complete, and says nothing about liveness.
	MaxStates, MaxDepth int
}

// Step is one transition.
type Step[S any] struct {
	// Name says what happens. It is only called to tell a story.
	Name func() string
	// To is the state after it.
	To S
	// Fault: it is none that liveness may count on.
	Fault bool
}

// Named is a Step's Name that is constant.
func Named(name string) func() string { return func() string { return name } }

// Found is what a search found.
type Found struct {
	// States and Steps count the different states met and the transitions between them, Depth the steps of the longest
	// shortest way to one.
	States, Steps, Depth int
	// Complete: every state that can be reached was met. False after a violation, and when a limit was hit.
	Complete bool
	// Violation is the first thing that was wrong, nil when nothing was.
	Violation *Violation
}

// Violation is a state that is wrong, and a shortest way there.
type Violation struct {
	// What is wrong: what Bad said, or [Stuck].
	What string
	// Story are the names of the steps that lead there.
	Story []string
}

// Stuck is what is wrong with a state from which no good one can be reached without faults.
const Stuck = "stuck: from here it never drains, though no fault happens any more"

// String tells the violation as a story, or the size of the search.
func (f Found) String() string {
	size := fmt.Sprintf("%d states, %d steps, depth %d", f.States, f.Steps, f.Depth)
	if f.Violation == nil && f.Complete {
		return size + ", complete"
	}
	if f.Violation == nil {
		return size + ", NOT complete: a limit was hit"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n", f.Violation.What, size)
	for i, name := range f.Violation.Story {
		fmt.Fprintf(&b, "%4d  %s\n", i+1, name)
	}
	return b.String()
}

// Run explores a model. It panics when Next is not deterministic, for then no story can be told.
func Run[S any, K comparable](m Model[S, K]) Found {
	w := &walk[S, K]{m: m, seen: map[hash]int32{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	w.run()
	return w.found
}

// hash stands for a Key: two million states whose keys are a kilobyte each would not fit.
type hash [2]uint64

// node is a state met, by the way to it.
type node struct {
	from   int32 // node; -1: a start
	choice int32 // which of its steps
	hash   hash
}

type edge struct{ from, to int32 }

type pending[S any] struct {
	s  S
	at int32
}

type walk[S any, K comparable] struct {
	m     Model[S, K]
	found Found
	seeds [2]maphash.Seed
	seen  map[hash]int32
	nodes []node
	edges []edge  // that are no faults, while Good is asked for
	good  []int32 // nodes
	bad   int32   // the node that is wrong
	next  []pending[S]
}

func (w *walk[S, K]) hash(s *S) hash {
	k := w.m.Key(s)
	return hash{maphash.Comparable(w.seeds[0], k), maphash.Comparable(w.seeds[1], k)}
}

func (w *walk[S, K]) run() {
	defer func() { w.found.States = len(w.nodes) }()
	for i := range w.m.Start {
		w.meet(w.m.Start[i], -1, int32(i))
	}
	for w.found.Violation == nil && len(w.next) > 0 {
		level := w.next
		w.next = nil
		if w.m.MaxDepth > 0 && w.found.Depth == w.m.MaxDepth {
			return
		}
		w.found.Depth++
		for i := range level {
			w.expand(&level[i])
			if w.found.Violation != nil {
				w.found.Violation.Story = w.story(w.bad)
				return
			}
			if w.m.MaxStates > 0 && len(w.nodes) >= w.m.MaxStates {
				return
			}
			level[i] = pending[S]{} // its memory is not needed any more
		}
	}
	if w.found.Violation != nil {
		return
	}
	w.found.Depth = max(w.found.Depth-1, 0) // the last level had no successors that are new
	w.found.Complete = true
	w.live()
}

// expand meets the successors of a state.
func (w *walk[S, K]) expand(p *pending[S]) {
	choice := int32(-1)
	w.m.Next(&p.s, func(step Step[S]) {
		choice++
		w.found.Steps++
		if w.found.Violation != nil {
			return
		}
		to := w.meet(step.To, p.at, choice)
		if w.m.Good != nil && !step.Fault {
			w.edges = append(w.edges, edge{p.at, to})
		}
	})
}

// meet takes a state in, if it is new, and returns its node.
func (w *walk[S, K]) meet(s S, from, choice int32) int32 {
	h := w.hash(&s)
	if at, ok := w.seen[h]; ok {
		return at
	}
	at := int32(len(w.nodes))
	w.seen[h] = at
	w.nodes = append(w.nodes, node{from, choice, h})
	if w.m.Bad != nil {
		if what := w.m.Bad(&s); what != "" {
			w.found.Violation, w.bad = &Violation{What: what}, at
			return at
		}
	}
	if w.m.Good != nil && w.m.Good(&s) {
		w.good = append(w.good, at)
	}
	w.next = append(w.next, pending[S]{s, at})
	return at
}

// live looks for a state from which no good one is reachable: backwards from the good ones, over steps that are no
// faults.
func (w *walk[S, K]) live() {
	if w.m.Good == nil {
		return
	}
	first := make([]int32, len(w.nodes)+1) // edges by their end: those of node n are into[first[n]:first[n+1]]
	for _, e := range w.edges {
		first[e.to+1]++
	}
	for i := range w.nodes {
		first[i+1] += first[i]
	}
	into, used := make([]int32, len(w.edges)), make([]int32, len(w.nodes))
	for _, e := range w.edges {
		into[first[e.to]+used[e.to]] = e.from
		used[e.to]++
	}
	can := make([]bool, len(w.nodes))
	queue := w.good
	for _, at := range queue {
		can[at] = true
	}
	for len(queue) > 0 {
		at := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, from := range into[first[at]:first[at+1]] {
			if !can[from] {
				can[from] = true
				queue = append(queue, from)
			}
		}
	}
	for at := range w.nodes { // breadth first: the first one is a nearest
		if !can[at] {
			w.found.Violation = &Violation{What: Stuck, Story: w.story(int32(at))}
			return
		}
	}
}

// story takes the steps to a node again, to name them.
func (w *walk[S, K]) story(at int32) []string {
	var way []node
	for ; w.nodes[at].from >= 0; at = w.nodes[at].from {
		way = append(way, w.nodes[at])
	}
	s := w.m.Start[w.nodes[at].choice]
	story := make([]string, 0, len(way))
	for i := len(way) - 1; i >= 0; i-- {
		choice, found := int32(-1), false
		var to S
		w.m.Next(&s, func(step Step[S]) {
			if choice++; choice == way[i].choice && w.hash(&step.To) == way[i].hash {
				to, found = step.To, true
				story = append(story, step.Name())
			}
		})
		if !found {
			panic("explore: Next is not deterministic: taken again, a step leads elsewhere, after\n" +
				strings.Join(story, "\n"))
		}
		s = to
	}
	return story
}
