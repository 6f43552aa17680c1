package doctor

import (
	"fmt"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// Keys returns the findings about operations of idempotency keys that recovery gave up, or does not take. The caller
// counts them, or has the err of that, because this module does not import theirs.
func Keys(s Subject, stuck, overdue int64, err error) []Finding {
	const check = "idempotency keys"
	f := findings{where: s.Flags, inSchema: s.Schema}
	operations := func(n int64, one, many string) string {
		if n == 1 {
			return "1 operation " + one
		}
		return fmt.Sprintf("%d operations %s", n, many)
	}
	switch denied := pgerr.Denied(err); {
	case denied != "":
		f.skip(check, denied)
	case err != nil:
		f.failed(check, err)
	case stuck+overdue == 0:
		f.ok(check, "no operation waits for a person")
	}
	if stuck > 0 {
		f.add(Warn, check, operations(stuck, "may", "may")+" or may not have happened, and recovery gave up",
			"Whoever repeats such a request is told that its outcome is unknown. Only a person can go on.",
			"Ask the provider what became of each, by the key that the list shows.")
		f.run("keys", "stuck")
	}
	if overdue > 0 {
		f.add(Warn, check, operations(overdue, "has", "have")+" been due for more than two minutes, and no recovery "+
			"worker takes them", "Their outcome is unknown until one does. Whoever repeats such a request is told to "+
			"wait.", "Run a recovery.Worker (or more of them) in the service that has these operations; its log says "+
			"what it cannot do.")
		f.run("keys", "unknown")
	}
	return f.list
}
