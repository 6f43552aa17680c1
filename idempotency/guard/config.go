package guard

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/outcome"
)

// Config of a [Guard]. The zero value is safe: every field has the default that its comment names.
type Config struct {
	// Lease is the lease's duration, by the store's clock; default 30 s, at least 100 ms. After its end the outcome is
	// unknown. If it is shorter than a pause of the process or the store, operations become unknown without need; if it
	// is longer, a crash is noticed later.
	Lease time.Duration
	// Heartbeat is the time between two extensions of the lease; default Lease/3, at most Lease/2. Negative: the lease
	// is not extended, and the context of the work ends with it.
	Heartbeat time.Duration
	// Wait is how long a caller waits for another attempt at the same key before it gets [idempotency.ErrInProgress];
	// default 0, not at all. It costs a goroutine and a few reads of the store for each waiting caller.
	Wait time.Duration
	// Finish is how long work may continue after its last caller has left, so that a client that hangs up does not make
	// the outcome unknown. Default 10 s; negative: the work's context ends with its last caller.
	Finish time.Duration
	// PerTenant is the maximum number of a tenant's keys in progress in this process. Beyond it the key is not claimed,
	// and the error is [outcome.Retryable]. Default 1000; negative: no limit.
	PerTenant int
	// Keep is the retention of results and keys. It is stored with each key, for recovery and for operators.
	Keep idempotency.Retention
	// Rerun names the operations whose work may be run again after its owner's crash, because repeating it is harmless
	// or every effect has a downstream key. After the lease the next caller continues them at once; if it fails, the
	// outcome is unknown. Other operations become unknown and wait for recovery. A wrong entry makes an effect happen
	// twice.
	Rerun []string
	// Classify classifies an error without a mark; nil: all are Unclassified. Where all work is one transaction and
	// calls nothing after its COMMIT, [ClassifySQL] is right: what the database refused then frees the key.
	Classify func(error) outcome.Class
	// RecordTimeout bounds the retries to record the outcome of the work; default 10 s. The end of the caller's context
	// does not end them.
	RecordTimeout time.Duration
	// RecoverAfter is the delay before recovery of an operation that became unknown in this process, in which its last
	// request may still arrive; default 5 s. Negative: none.
	RecoverAfter time.Duration

	// Logger logs lost leases, unknown outcomes and failures of the store; never keys, inputs or results.
	// Default slog.Default().
	Logger *slog.Logger
	// Observer has callbacks for metrics.
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
	if c.RecordTimeout == 0 {
		c.RecordTimeout = 10 * time.Second
	}
	if c.RecoverAfter == 0 {
		c.RecoverAfter = 5 * time.Second
	}
	c.RecoverAfter = max(c.RecoverAfter, 0)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.Lease < 100*time.Millisecond:
		return c, fmt.Errorf("idempotency: Lease is %v: want at least 100 ms, or zero for 30 s", c.Lease)
	case c.Heartbeat > c.Lease/2:
		return c, fmt.Errorf("idempotency: Heartbeat is %v: want at most half of Lease (%v), so that a failed one "+
			"can be repeated", c.Heartbeat, c.Lease)
	case c.Wait < 0 || c.RecordTimeout < 0:
		return c, errors.New("idempotency: Wait and RecordTimeout must not be negative")
	}
	return c, nil
}
