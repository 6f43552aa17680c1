package guard

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

// Config of a [Guard]. The zero value is safe: every field has the default that its comment names.
type Config struct {
	// Lease is how long an owner may work without a sign of life, by the store's clock; default 30 s, at least 100 ms.
	// When it ends, others take the outcome for unknown. Shorter than a pause of the process or the store, and
	// operations become unknown for nothing; longer, and a crash is noticed later.
	Lease time.Duration
	// Heartbeat is the time between two extensions of the lease; default Lease/3, at most Lease/2. Negative: the lease
	// is not extended, and the context of the work ends with it.
	Heartbeat time.Duration
	// Wait is how long a caller waits for another attempt at the same key before it is told
	// [idempotency.ErrInProgress]; default 0, not at all. It costs a goroutine and a few reads of the store for each
	// caller that waits.
	Wait time.Duration
	// Finish is how long work that has begun may go on after all of its callers have left: a caller that hangs up
	// leaves a result, and no unknown outcome. Default 10 s; negative: the work's context ends with its last caller.
	Finish time.Duration
	// PerTenant is how many keys of one tenant this process works at, at most. Beyond it nothing is claimed, and the
	// error is [idempotency.Retryable]: a client that begins and hangs up costs the others nothing. Default 1000;
	// negative: any.
	PerTenant int
	// Keep is how long results and keys are remembered.
	Keep idempotency.Retention
	// Rerun names the operations whose work may be run again after its owner vanished: it is harmless when repeated, or
	// all of its effects stand behind the keys of its steps. A caller that comes after the lease goes on with them at
	// once; all others become unknown and wait for recovery. A caller that goes on and fails leaves them unknown. Wrong
	// here, and an effect happens twice.
	Rerun []string
	// Classify says what an error means that has no mark, for example whether a COMMIT was answered. Nil, or
	// Unclassified: as [Guard.Do] and [Guard.Run] say.
	Classify func(error) idempotency.Class
	// RecordFor is how long a store that does not answer is asked again to record what became of the work; default 10
	// s. The end of the caller's context does not cut it.
	RecordFor time.Duration
	// RecoverAfter is how long recovery leaves an operation alone that became unknown in this process: a request may
	// still be on its way; default 5 s. Negative: not at all.
	RecoverAfter time.Duration

	// Logger is told of lost leases, unknown outcomes and a store that does not answer. Nil: nothing is logged. Keys,
	// inputs and results never are.
	Logger *slog.Logger
	// Observer is called at the same points, for metrics.
	Observer idempotency.Observer
}

func (c Config) withDefaults() (Config, error) {
	if c.Lease == 0 {
		c.Lease = 30 * time.Second
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = c.Lease / 3
	}
	c.Finish = max(cmp.Or(c.Finish, 10*time.Second), 0)
	c.PerTenant = cmp.Or(c.PerTenant, 1000)
	if c.RecordFor == 0 {
		c.RecordFor = 10 * time.Second
	}
	if c.RecoverAfter == 0 {
		c.RecoverAfter = 5 * time.Second
	}
	c.RecoverAfter = max(c.RecoverAfter, 0)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Lease < 100*time.Millisecond:
		return c, fmt.Errorf("idempotency: Lease is %v: at least 100 ms, or zero for 30 s", c.Lease)
	case c.Heartbeat > c.Lease/2:
		return c, fmt.Errorf("idempotency: Heartbeat is %v: at most half of Lease (%v), so that one that fails can "+
			"be repeated", c.Heartbeat, c.Lease)
	case c.Wait < 0 || c.RecordFor < 0:
		return c, errors.New("idempotency: Wait and RecordFor must not be negative")
	}
	return c, nil
}
