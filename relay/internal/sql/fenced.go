package sql

import "slices"

// Fenced are lanes under their fences: the parameters that most statements begin with.
type Fenced struct {
	Lanes  []int16
	Fences []int64
	Firsts []int64 // of their journal entries, for statements that have to do with one
}

// Add adds a lane; first is zero for statements without an entry.
func (f *Fenced) Add(lane int16, fence, first int64) {
	f.Lanes, f.Fences, f.Firsts = append(f.Lanes, lane), append(f.Fences, fence), append(f.Firsts, first)
}

// With returns these lanes and others.
func (f *Fenced) With(others *Fenced) Fenced {
	return Fenced{
		slices.Concat(f.Lanes, others.Lanes), slices.Concat(f.Fences, others.Fences),
		slices.Concat(f.Firsts, others.Firsts),
	}
}
