package idempotency

import (
	"context"
	"time"
)

// Lease is the right to work at a key. Every write of a Store compares it, in the statement that writes.
type Lease struct {
	Key Key
	// Fence rises with every owner of the key. Give it to an effect that can refuse a lower one.
	Fence int64
	// Token is the attempt's own, random: a claim whose reply was lost and that is sent again is recognised by it.
	Token string
}

// Record is what a store knows of a key.
type Record struct {
	Key         Key
	State       State
	Fingerprint Fingerprint
	Progress    Progress
	Input       []byte // of Request; nil once completed
	Result      Result // of Completed and FailedReplayable; in Expired without header and body
	Fence       int64
	// LeaseLeft is what is left of the owner's or the recoverer's lease, by the store's clock; not positive when it has ended.
	LeaseLeft time.Duration
	// Age is the time since the first claim, by the store's clock.
	Age time.Duration
	// Attempts is how often recovery took it, Reason its last finding, Stuck that it gave up.
	Attempts int
	Reason   string
	Stuck    bool
}

// Claimed is the answer to a claim.
type Claimed struct {
	// Won says that the caller owns the key now, under Lease.
	Won   bool
	Lease Lease
	// Record is what is known, after the claim: of a won one, the progress of a former attempt to go on from.
	Record Record
}

// ClaimOptions are the terms of a claim.
type ClaimOptions struct {
	// Token identifies the attempt: random, at least 128 bits, the same when the same claim is sent again. Required.
	Token string
	// Lease is how long the owner may work without extending it, by the store's clock. Required, positive.
	Lease time.Duration
	// Rerun says that the work may be run again after an owner vanished: it is harmless when repeated, or all of its effects stand
	// behind the downstream keys. Then an ended lease is taken over at once; otherwise it makes the outcome unknown.
	Rerun bool
}

// Store remembers keys. Its methods are atomic and linearizable per key, compare (state, token, lease) in the one statement that writes,
// and go by the store's clock, never the caller's. An error that matches none of this package's means that nobody knows
// whether the write happened: send the same call again (it is recognised by its token), or leave the key to recovery.
type Store interface {
	// Claim takes a key that is free and gives it to the caller, or says what is there:
	//
	//	nothing                        won, IN_PROGRESS, fence + 1
	//	same fingerprint
	//	  IN_PROGRESS, own token       won again (the first reply was lost)
	//	  IN_PROGRESS, lease runs      not won
	//	  IN_PROGRESS, lease ended     turned into UNKNOWN, not won; with Rerun: won, fence + 1, progress kept
	//	  UNKNOWN                      not won; with Rerun, and no recoverer's lease running: won, fence + 1, progress kept
	//	  COMPLETED, FAILED_REPLAYABLE not won; the result is in the record, once its body is overdue as if swept
	//	  EXPIRED                      not won; once its tombstone is overdue: as nothing
	//	another fingerprint            not won, whatever the state; the caller sees it by Request.Matches
	Claim(ctx context.Context, r Request, opt ClaimOptions) (Claimed, error)

	// Extend gives the owner a whole lease from now. ErrLeaseLost when it is not the owner, or its lease has ended and somebody took note.
	Extend(ctx context.Context, l Lease, lease time.Duration) error

	// Save replaces the progress. Only the owner or recoverer can, while its lease runs: otherwise ErrLeaseLost.
	Save(ctx context.Context, l Lease, p Progress) error

	// Finish records the result: COMPLETED, or FAILED_REPLAYABLE when Result.Failure is not empty. Only the owner (or recoverer) can,
	// while nobody took the key from it; an ended lease that nobody noticed is no hindrance. Sent again, it succeeds again.
	Finish(ctx context.Context, l Lease, res Result, keep Retention) error

	// Release forgets the key: certainly nothing has happened. Only the owner or recoverer can; of a key that is gone already, nil.
	Release(ctx context.Context, l Lease) error

	// Doubt turns the owner's key into UNKNOWN, due for recovery after the delay, with a reason for people.
	Doubt(ctx context.Context, l Lease, reason string, after time.Duration) error

	// Get returns what is known, false for nothing (or a tombstone that is overdue).
	Get(ctx context.Context, k Key) (Record, bool, error)
}

// Recoverer is the part of a Store that recovery uses.
type Recoverer interface {
	// Recover takes up to limit keys, longest overdue first, that are UNKNOWN, due and not Stuck, or IN_PROGRESS under a lease that ended longer
	// than grace ago, for a recoverer: UNKNOWN, fence + 1, attempts + 1, under a lease of its own. Two recoverers never
	// get the same. Keys of operations that are not listed are left alone; nil means all.
	Recover(ctx context.Context, opt RecoverOptions) ([]Claimed, error)

	// Postpone gives a recoverer's key back, UNKNOWN still, due again after the delay; stuck gives it to a person instead.
	Postpone(ctx context.Context, l Lease, reason string, after time.Duration, stuck bool) error

	// Sweep removes at most limit overdue things: first bodies (COMPLETED and FAILED_REPLAYABLE become EXPIRED), then tombstones. Each write
	// repeats the condition it was selected by. What is IN_PROGRESS or UNKNOWN is never removed, however old.
	Sweep(ctx context.Context, limit int) (Swept, error)

	// Stats counts what people watch.
	Stats(ctx context.Context) (Stats, error)
}

// RecoverOptions are the terms of Recoverer.Recover.
type RecoverOptions struct {
	Limit      int           // at most so many; required, positive
	Lease      time.Duration // of the recoverer; required, positive
	Grace      time.Duration // how long a lease must have ended; 0 is none
	Token      string        // of this recoverer's attempt, as in ClaimOptions; required
	Operations []string      // only these; nil: all
}

// Swept is how much Sweep removed. More says that the limit ended it.
type Swept struct {
	Bodies, Tombstones int
	More               bool
}

// Stats is a count of a store's keys.
type Stats struct {
	InProgress, Unknown, Stuck int64
	OldestInProgress           time.Duration // since its claim, by the store's clock; 0 for none
}
