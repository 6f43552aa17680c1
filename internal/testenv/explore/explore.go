// Package explore is an explicit-state model checker. It visits every reachable state of a model, breadth first, and
// returns a shortest trace to a state that violates a property.
//
// A model has start states and a function that returns the successors of a state. Bad is the safety property: it is
// evaluated for every state. Good is the liveness property: from every reachable state a good one must be reachable by
// steps that are not faults. States are values, and equal if their Keys are. Where states differ only by a permutation
// of names (symmetry), Key may return one canonical state for them, if Next commutes with the permutation.
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

// Model is a model with states S and keys K.
type Model[S any, K comparable] struct {
	// Start are the start states, at least one.
	Start []S
	// Next calls emit for each possible step in s, in an order that depends only on s: traces are made by taking the
	// same steps again. It must not change *s, nor share memory between successors.
	Next func(s *S, emit func(Step[S]))
	// Key identifies a state. It includes everything that later steps depend on.
	Key func(s *S) K
	// Bad describes the violation of a state, or returns "". It is called once for every state. Optional.
	Bad func(s *S) string
	// Good reports whether nothing is left to do. Nil: no check of liveness.
	Good func(s *S) bool
	// MaxStates and MaxDepth bound the search. Zero: no bound. A search that reaches a bound is not Complete and does
	// not check liveness.
	MaxStates, MaxDepth int
}

// Step is a transition.
type Step[S any] struct {
	// Name is called only for traces.
	Name func() string
	// To is the next state.
	To S
	// Fault marks a step that liveness may not rely on.
	Fault bool
}

// Named returns a constant Name for a Step.
func Named(name string) func() string { return func() string { return name } }

// Result is the result of a search.
type Result struct {
	// States and Steps count the distinct states and the transitions. Depth is the largest distance of a state from the
	// start.
	States, Steps, Depth int
	// Complete says that all reachable states were visited. False after a violation or at a bound.
	Complete bool
	// Violation is the first violation, or nil.
	Violation *Violation
}

// Violation is a state that violates a property, with a shortest trace.
type Violation struct {
	// What is the text of Bad, or [Stuck].
	What string
	// Trace are the names of the steps to the state.
	Trace []string
}

// Stuck is the violation of a state from which no good state is reachable without faults.
const Stuck = "stuck: no good state is reachable from here without faults"

// String returns the trace of the violation, or the size of the search.
func (r Result) String() string {
	size := fmt.Sprintf("%d states, %d steps, depth %d", r.States, r.Steps, r.Depth)
	if r.Violation == nil && r.Complete {
		return size + ", complete"
	}
	if r.Violation == nil {
		return size + ", NOT complete: a bound was reached"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n", r.Violation.What, size)
	for i, name := range r.Violation.Trace {
		fmt.Fprintf(&b, "%4d  %s\n", i+1, name)
	}
	return b.String()
}

// Run explores a model. It panics if a trace shows that Next is not deterministic.
func Run[S any, K comparable](m Model[S, K]) Result {
	x := &search[S, K]{m: m, seen: map[hash]int32{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	x.run()
	return x.found
}

// hash replaces a Key: millions of Keys would not fit into memory.
type hash [2]uint64

// node is a visited state.
type node struct {
	from   int32 // predecessor; -1: a start state
	choice int32 // index of the predecessor's step, or of the start state
	hash   hash
}

type edge struct{ from, to int32 }

type pending[S any] struct {
	s  S
	at int32
}

type search[S any, K comparable] struct {
	m     Model[S, K]
	found Result
	seeds [2]maphash.Seed
	seen  map[hash]int32
	nodes []node
	edges []edge  // without faults; for Good only
	good  []int32 // nodes
	bad   int32   // the node of the violation
	next  []pending[S]
}

func (x *search[S, K]) hash(s *S) hash {
	k := x.m.Key(s)
	return hash{maphash.Comparable(x.seeds[0], k), maphash.Comparable(x.seeds[1], k)}
}

func (x *search[S, K]) run() {
	defer func() { x.found.States = len(x.nodes) }()
	for i := range x.m.Start {
		x.visit(x.m.Start[i], -1, int32(i))
	}
	for x.found.Violation == nil && len(x.next) > 0 {
		level := x.next
		x.next = nil
		if x.m.MaxDepth > 0 && x.found.Depth == x.m.MaxDepth {
			return
		}
		x.found.Depth++
		for i := range level {
			x.expand(&level[i])
			if x.found.Violation != nil {
				x.found.Violation.Trace = x.trace(x.bad)
				return
			}
			if x.m.MaxStates > 0 && len(x.nodes) >= x.m.MaxStates {
				return
			}
			level[i] = pending[S]{} // frees its memory
		}
	}
	if x.found.Violation != nil {
		return
	}
	x.found.Depth = max(x.found.Depth-1, 0) // the last level had no new successors
	x.found.Complete = true
	x.checkLiveness()
}

// expand visits the successors of a state.
func (x *search[S, K]) expand(p *pending[S]) {
	choice := int32(-1)
	x.m.Next(&p.s, func(step Step[S]) {
		choice++
		x.found.Steps++
		if x.found.Violation != nil {
			return
		}
		to := x.visit(step.To, p.at, choice)
		if x.m.Good != nil && !step.Fault {
			x.edges = append(x.edges, edge{p.at, to})
		}
	})
}

// visit adds a state if it is new, and returns its node.
func (x *search[S, K]) visit(s S, from, choice int32) int32 {
	h := x.hash(&s)
	if at, ok := x.seen[h]; ok {
		return at
	}
	at := int32(len(x.nodes))
	x.seen[h] = at
	x.nodes = append(x.nodes, node{from, choice, h})
	if x.m.Bad != nil {
		if what := x.m.Bad(&s); what != "" {
			x.found.Violation, x.bad = &Violation{What: what}, at
			return at
		}
	}
	if x.m.Good != nil && x.m.Good(&s) {
		x.good = append(x.good, at)
	}
	x.next = append(x.next, pending[S]{s, at})
	return at
}

// checkLiveness searches backwards from the good states, over steps without faults, for a state that it does not reach.
func (x *search[S, K]) checkLiveness() {
	if x.m.Good == nil {
		return
	}
	first := make([]int32, len(x.nodes)+1) // incoming edges of node n: into[first[n]:first[n+1]]
	for _, e := range x.edges {
		first[e.to+1]++
	}
	for i := range x.nodes {
		first[i+1] += first[i]
	}
	into, used := make([]int32, len(x.edges)), make([]int32, len(x.nodes))
	for _, e := range x.edges {
		into[first[e.to]+used[e.to]] = e.from
		used[e.to]++
	}
	reached := make([]bool, len(x.nodes))
	queue := x.good
	for _, at := range queue {
		reached[at] = true
	}
	for len(queue) > 0 {
		at := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, from := range into[first[at]:first[at+1]] {
			if !reached[from] {
				reached[from] = true
				queue = append(queue, from)
			}
		}
	}
	for at := range x.nodes { // nodes are in breadth-first order
		if !reached[at] {
			x.found.Violation = &Violation{What: Stuck, Trace: x.trace(int32(at))}
			return
		}
	}
}

// trace takes the steps to a node again, to name them.
func (x *search[S, K]) trace(at int32) []string {
	var path []node
	for ; x.nodes[at].from >= 0; at = x.nodes[at].from {
		path = append(path, x.nodes[at])
	}
	s := x.m.Start[x.nodes[at].choice]
	steps := make([]string, 0, len(path))
	for i := len(path) - 1; i >= 0; i-- {
		choice, found := int32(-1), false
		var to S
		x.m.Next(&s, func(step Step[S]) {
			if choice++; choice == path[i].choice && x.hash(&step.To) == path[i].hash {
				to, found = step.To, true
				steps = append(steps, step.Name())
			}
		})
		if !found {
			panic("explore: Next is not deterministic: a step has another result when taken again, after\n" +
				strings.Join(steps, "\n"))
		}
		s = to
	}
	return steps
}
