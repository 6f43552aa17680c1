package errtree

import (
	"errors"
	"fmt"
	"net"
	"testing"
)

// many wraps what it holds; an empty one wraps nothing.
type many []error

func (many) Error() string     { return "many" }
func (m many) Unwrap() []error { return m }

// TestOnlyAndAny: Only looks at the leaves, Any at every error.
func TestOnlyAndAny(t *testing.T) {
	t.Parallel()
	this, other := errors.New("this"), errors.New("other")
	for name, c := range map[string]struct {
		err       error
		only, any bool
	}{
		"nothing":                   {nil, false, false},
		"it":                        {this, true, true},
		"another":                   {other, false, false},
		"wrapped":                   {fmt.Errorf("a: %w", fmt.Errorf("b: %w", this)), true, true},
		"joined to itself":          {fmt.Errorf("a: %w", errors.Join(this, fmt.Errorf("b: %w", this))), true, true},
		"joined to another":         {errors.Join(this, other), false, true},
		"another joined to it":      {errors.Join(other, this), false, true},
		"joined far below":          {errors.Join(this, fmt.Errorf("a: %w", errors.Join(this, other))), false, true},
		"wrapped beside another":    {fmt.Errorf("%w, %w", other, this), false, true},
		"a list of none":            {many{}, false, false},
		"beside a list of none":     {errors.Join(this, many{}), false, true},
		"it beside nil in a list":   {many{this, nil}, false, true},
		"what wraps nil is a leaf":  {&net.OpError{Op: "dial"}, false, false},
		"what wraps nil, beside it": {errors.Join(this, &net.OpError{Op: "dial"}), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := func(err error) bool { return err == this } //nolint:errorlint // one error of the tree
			if got := Only(c.err, is); got != c.only {
				t.Errorf("only it: %v", got)
			}
			if got := Any(c.err, is); got != c.any {
				t.Errorf("it is there: %v", got)
			}
		})
	}
	wraps := func(err error) bool { _, ok := err.(*net.OpError); return ok } //nolint:errorlint // one error of the tree
	if dial := fmt.Errorf("a: %w", &net.OpError{Op: "dial", Err: this}); !Any(dial, wraps) || Only(dial, wraps) {
		t.Error("an error that wraps another is in the tree, and is no leaf of it")
	}
	if !Only(&net.OpError{Op: "dial"}, wraps) {
		t.Error("an error that wraps nil is a leaf")
	}
}
