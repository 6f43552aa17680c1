//go:build bugs

package seeded

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// On reports whether a bug is switched on. The first time that it is, it says so on standard error, where the gate reads
// that the bug was reached. A name in the environment that is no bug's ends the program: it would find nothing.
func On(b Bug) bool {
	if b != chosen() {
		return false
	}
	announce()
	return true
}

var chosen = sync.OnceValue(func() Bug {
	b := Bug(os.Getenv(Variable))
	if b != "" && !slices.ContainsFunc(All(), func(i Info) bool { return i.Bug == b }) {
		fmt.Fprintf(os.Stderr, "seeded: %s=%q names no bug\n", Variable, b)
		os.Exit(2)
	}
	return b
})

var announce = sync.OnceFunc(func() { fmt.Fprintln(os.Stderr, Reached(chosen())) })

// Replace puts a bug into a statement, if it is switched on: pairs of a text and what stands in its place. A text that is not
// there ends the program, for a bug that changes nothing would be found by nobody.
func Replace(b Bug, sql *string, oldnew ...string) {
	if !On(b) {
		return
	}
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(*sql, oldnew[i]) {
			fmt.Fprintf(os.Stderr, "seeded: %s: the statement has changed, %q is not in it:\n%s\n", b, oldnew[i], *sql)
			os.Exit(2)
		}
		*sql = strings.ReplaceAll(*sql, oldnew[i], oldnew[i+1])
	}
}
