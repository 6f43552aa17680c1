package errtree

import (
	"maps"
	"slices"
	"strings"
)

// mostKinds bounds Kinds: a text may change with each error.
const mostKinds = 20

// Kinds are the kinds of errors that an outage has had. The zero value has none.
type Kinds struct{ seen map[string]bool }

// New adds the kind of an error, and reports whether it is a new one.
func (k *Kinds) New(err error) bool {
	kind := kindOf(err)
	if k.seen[kind] || len(k.seen) == mostKinds {
		return false
	}
	if k.seen == nil {
		k.seen = map[string]bool{}
	}
	k.seen[kind] = true
	return true
}

// kindOf is what is said of an error: the SQLSTATEs of its leaves, or their texts without words that have a digit, for
// addresses and times differ from one error of a kind to the next.
func kindOf(err error) string {
	kinds := map[string]bool{}
	Any(err, func(one error) bool {
		if code, ok := one.(interface{ SQLState() string }); ok {
			kinds[code.SQLState()] = true
		} else if len(unwrap(one)) == 0 {
			kinds[strings.Join(slices.DeleteFunc(strings.Fields(one.Error()), func(word string) bool {
				return strings.ContainsAny(word, "0123456789")
			}), " ")] = true
		}
		return false
	})
	return strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
}
