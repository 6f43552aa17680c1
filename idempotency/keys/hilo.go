package keys

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// Blocks reserves blocks of numbers: one write for each block instead of one for each number.
type Blocks interface {
	// NextBlock reserves size numbers of a named sequence, which begins with 1, and returns the first. If the reply is
	// lost, the block is never used. The size must be 1 or more.
	NextBlock(ctx context.Context, name string, size int64) (first int64, err error)
}

// HiLo generates numbers that are unique among processes, from reserved blocks. It is safe for concurrent use.
//
// When to choose it: keys or ids that must be short numbers, made by many processes, without a round trip for each.
// Cost: a row in the store and one write per block. Trap: the numbers have gaps where a process ended within its block,
// and the blocks of processes interleave, so a higher number is not a later one. Never use a Watermark for them.
type HiLo struct {
	blocks Blocks
	name   string
	size   int64
	state  chan hilo // of capacity 1: a mutex whose Lock ends with a context
}

// hilo is the rest of a block.
type hilo struct{ next, left int64 }

// NewHiLo returns a HiLo over blocks of size numbers of a sequence, 1 or more. The end of the process wastes up to a
// block.
func NewHiLo(blocks Blocks, name string, size int64) (*HiLo, error) {
	if blocks == nil || name == "" || size < 1 {
		return nil, errors.New("idempotency: a HiLo needs blocks, the name of a sequence, and a size of 1 or more")
	}
	h := &HiLo{blocks: blocks, name: name, size: size, state: make(chan hilo, 1)}
	h.state <- hilo{}
	return h, nil
}

// Next returns the next number. An error is the context's or the store's, and uses no number.
func (h *HiLo) Next(ctx context.Context) (int64, error) {
	var s hilo
	select {
	case s = <-h.state:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { h.state <- s }()
	if s.left == 0 {
		first, err := h.blocks.NextBlock(ctx, h.name, h.size)
		if err != nil {
			return 0, fmt.Errorf("reserve a block of %q: %w", h.name, err)
		}
		if first < 1 || first > math.MaxInt64-h.size {
			return 0, fmt.Errorf("the block of %q begins with %d", h.name, first)
		}
		s = hilo{next: first, left: h.size}
	}
	n := s.next
	s.next++
	s.left--
	return n, nil
}
