package recovery

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Config of a [Worker]. The zero value is safe: every field has the default that its comment names.
type Config struct {
	// Every is the time between two queries for operations; default 1 s. If more may be due than could begin, the next
	// query follows when an operation has ended.
	Every time.Duration
	// Parallel is how many operations are processed at a time; default 4. A query claims only what can begin.
	Parallel int
	// Lease is the lease of an operation, which a heartbeat extends; default 30 s.
	Lease time.Duration
	// Grace is the time in which the last request of an owner or a worker may still arrive: after a lease that ended by
	// itself, and after an attempt of a worker that leaves the outcome unknown. Default 5 s, negative: none.
	Grace time.Duration
	// Timeout bounds the processing of an operation, by the context of probes and steps; default 2 min.
	Timeout time.Duration
	// Backoff is the wait after the first attempt at an operation that stays unknown; default 1 s. It doubles up to
	// MaxBackoff, with jitter.
	Backoff time.Duration
	// MaxBackoff is the longest wait; default 5 min.
	MaxBackoff time.Duration
	// MaxAttempts is the number of attempts at an operation before it is stuck: a person must resolve it. Default 20,
	// with the other defaults about an hour. Negative: no limit.
	MaxAttempts int
	// SkipUnhandled leaves operations without a Handler to other workers of the store. Otherwise they are reported and
	// postponed, and stuck in the end.
	SkipUnhandled bool
	// SweepEvery is the time between two sweeps of expired results and keys; default 1 min. Negative: never.
	SweepEvery time.Duration
	// Drain is how long operations in progress may continue after the end of Run's context; default 20 s.
	Drain time.Duration

	// Logger logs each processed operation, stuck ones at level Error; never keys, inputs or
	// results. Default slog.Default().
	Logger *slog.Logger
	// Observer is called for each processed operation, too.
	Observer Observer
}

// Observer has callbacks of a worker; nil ones are skipped. They run in the worker's goroutines, so they must be quick
// and safe for concurrent use.
type Observer struct {
	// Recovered: an operation was processed.
	Recovered func(RecoveredInfo)
	// Swept: a sweep ended.
	Swept func(store.SweepResult)
	// Failed: a query or a sweep of the store failed.
	Failed func(error)
}

// RecoveredInfo is about a processed operation.
type RecoveredInfo struct {
	Operation string
	Outcome   Outcome
	Stage     idempotency.Stage // before this attempt
	Attempts  int               // including this one
	Age       time.Duration     // since the first claim
	Err       error             // the cause, if postponed, stuck or lost
}

func (c Config) withDefaults() (Config, error) {
	c.Every = cmp.Or(c.Every, time.Second)
	c.Parallel = cmp.Or(c.Parallel, 4)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.Grace = max(0, cmp.Or(c.Grace, 5*time.Second))
	c.Timeout = cmp.Or(c.Timeout, 2*time.Minute)
	c.Backoff = cmp.Or(c.Backoff, time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, max(5*time.Minute, c.Backoff))
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 20)
	c.SweepEvery = cmp.Or(c.SweepEvery, time.Minute)
	c.Drain = cmp.Or(c.Drain, 20*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Every < 0 || c.Parallel < 1 || c.Timeout < 0 || c.Backoff < 0 || c.MaxBackoff < c.Backoff ||
		c.Drain < 0 {
		return c, errors.New("recovery: Every, Parallel, Timeout, Backoff and Drain must be positive, or zero " +
			"for their defaults, and MaxBackoff at least Backoff")
	}
	return c, nil
}
