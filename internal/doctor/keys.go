package doctor

import (
	"fmt"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// Keys returns the finding about operations of idempotency keys that recovery gave up. The caller counts them, or has
// the err of that, because this module does not import theirs.
func Keys(s Subject, stuck int64, err error) Finding {
	const check = "idempotency keys"
	f := findings{where: s.Flags, inSchema: s.Schema}
	switch denied := pgerr.Denied(err); {
	case denied != "":
		f.skip(check, denied)
	case err != nil:
		f.failed(check, err)
	case stuck == 0:
		f.ok(check, "no operation waits for a person")
	default:
		operations := "operations"
		if stuck == 1 {
			operations = "operation"
		}
		f.add(Warn, check, fmt.Sprintf("%d %s may or may not have happened, and recovery gave up", stuck, operations),
			"Whoever repeats such a request is told that its outcome is unknown. Only a person can go on.",
			"Ask the provider what became of each, by the key that the list shows.")
		f.run("keys", "stuck")
	}
	return f.list[0]
}
