// Package errtree answers what is in an error's tree, which [errors.Is] does not: whether something else is, too.
package errtree

import "slices"

// Only reports whether is holds for every leaf of err's tree: nothing else was joined to it. Nil has no leaf.
func Only(err error, is func(leaf error) bool) bool {
	below := unwrap(err)
	if len(below) == 0 {
		return err != nil && is(err)
	}
	return !slices.ContainsFunc(below, func(one error) bool { return !Only(one, is) })
}

// Any reports whether is holds for an error of err's tree: a leaf, or one that wraps others.
func Any(err error, is func(one error) bool) bool {
	return err != nil && (is(err) || slices.ContainsFunc(unwrap(err), func(one error) bool { return Any(one, is) }))
}

// unwrap returns the errors that err wraps; none: it is a leaf.
func unwrap(err error) []error {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if one := e.Unwrap(); one != nil {
			return []error{one}
		}
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	}
	return nil
}
