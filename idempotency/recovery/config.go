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
	// Every is the time between two looks; default 1 s. While there is a full batch, the next one follows at once.
	Every time.Duration
	// Batch is how many operations one look takes; default 20. Each has its lease from then on: with so many that the
	// last ones wait for longer than Lease, those are lost to the next look.
	Batch int
	// Parallel is how many of them are worked at together; default 4.
	Parallel int
	// Lease is for how long a worker has an operation without a sign of life; default 30 s.
	Lease time.Duration
	// Grace is how long an owner's lease must have ended; default 5 s, negative: none. A request that was under way
	// may still arrive in that time.
	Grace time.Duration
	// Timeout bounds the work at one operation; default 2 min. After it the context of probes and steps ends.
	Timeout time.Duration
	// Backoff is the wait after the first attempt at an operation that stays unknown; default 1 s. It doubles up to
	// MaxBackoff, with jitter.
	Backoff time.Duration
	// MaxBackoff is the longest wait; default 5 min.
	MaxBackoff time.Duration
	// MaxAttempts is how often an operation is tried before it is given to a person; default 20, which with the other
	// defaults is about an hour. Negative: for ever.
	MaxAttempts int
	// OthersElsewhere: operations without a Handler here belong to other workers of this store, and are left alone.
	// Otherwise they are reported and postponed, and given to a person in the end: nobody would ever look at them.
	OthersElsewhere bool
	// SweepEvery is the time between two sweeps of what is no longer kept; default 1 min. Negative: this worker does
	// not sweep.
	SweepEvery time.Duration
	// Drain is how long the operations under way may go on after Run's context ended; default 20 s.
	Drain time.Duration
	// Keep is how long the results that recovery records are remembered: the same as the guard's.
	Keep idempotency.Retention

	// Logger is told of every operation that was taken, and at level Error of those that need a person. Nil: nothing is
	// logged. Keys, inputs and results never are.
	Logger *slog.Logger
	// Observer is called at the same points, for metrics and alarms.
	Observer Observer
}

// Observer is told what a worker does. A nil func is skipped. They are called from the worker's goroutines, so they
// must be quick and safe for concurrent use.
type Observer struct {
	// Recovered: the work at an operation ended.
	Recovered func(RecoveredInfo)
	// Swept: a sweep ended.
	Swept func(store.SweepResult)
	// Failed: the store did not answer a look or a sweep.
	Failed func(error)
}

// RecoveredInfo says what became of an operation.
type RecoveredInfo struct {
	Operation string
	Outcome   Outcome
	Stage     idempotency.Stage // how far it had come
	Attempts  int               // this one included
	Age       time.Duration     // since the first claim
	Err       error             // why it is postponed or stuck
}

func (c Config) withDefaults() (Config, error) {
	c.Every = cmp.Or(c.Every, time.Second)
	c.Batch = cmp.Or(c.Batch, 20)
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
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Every < 0 || c.Batch < 1 || c.Parallel < 1 || c.Timeout < 0 || c.Backoff < 0 || c.MaxBackoff < c.Backoff ||
		c.Drain < 0 {
		return c, errors.New("recovery: Every, Batch, Parallel, Timeout, Backoff and Drain must be positive, or zero " +
			"for their defaults, and MaxBackoff at least Backoff")
	}
	return c, nil
}
