package store

import (
	"context"
	"errors"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

// ErrLeaseLost: the caller is not the key's holder, and its write was refused. Its effects, if any, are protected by
// the fence and the downstream key.
var ErrLeaseLost = errors.New("the lease of this idempotency key is lost")

// Lease identifies the holder of a key. Every write of a Store compares it, in the statement that writes.
type Lease struct {
	Key idempotency.Key
	// Fence is higher than that of every earlier owner and recoverer of the key, even after a release. Pass it to an
	// effect that can refuse a lower one.
	Fence int64
	// Token is the attempt's random token, by which a claim that is sent again is recognised.
	Token string
}

// Record is a store's record of a key.
type Record struct {
	Key         idempotency.Key
	State       idempotency.State
	Fingerprint idempotency.Fingerprint
	// Progress is the last saved one, at first the stage Received without steps; removed with the result's body.
	Progress Progress
	Input    []byte // of Request; nil once completed
	// Keep is that of the claim which made the record, without zeros: the retention to finish it with, whoever does.
	Keep   idempotency.Retention
	Result idempotency.Result // of Completed and FailedReplayable; in Expired without header and body
	Fence  int64
	// LeaseLeft is the rest of the owner's or the recoverer's lease, by the store's clock; not positive if it has
	// ended.
	LeaseLeft time.Duration
	// Age is the time since the first claim, by the store's clock.
	Age time.Duration
	// Attempts is the number of recovery's attempts, Reason the cause of the last one's failure, removed with the
	// completion: it may have a provider's text. Stuck: it gave up.
	Attempts int
	Reason   string
	Stuck    bool
}

// Answer returns the answer to a request that did not win the key: the result, Replayed, or an error of package
// idempotency. A mismatch comes first, so that another command's result is not revealed.
func (rec Record) Answer(r idempotency.Request) (idempotency.Result, error) {
	res := rec.Result
	if !r.Matches(rec.Fingerprint) {
		return idempotency.Result{}, &idempotency.MismatchError{
			State: rec.State, Resource: res.Resource, Version: rec.Fingerprint.Version,
		}
	}
	switch rec.State {
	case idempotency.Completed, idempotency.FailedReplayable:
		res.Replayed = true
		return res, nil
	case idempotency.Expired:
		return idempotency.Result{}, &idempotency.ExpiredError{
			Code: res.Code, Failure: res.Failure, Resource: res.Resource, At: res.At,
		}
	case idempotency.InProgress:
		return idempotency.Result{}, &idempotency.InProgressError{RetryAfter: max(rec.LeaseLeft, 0), Age: rec.Age}
	}
	return idempotency.Result{}, &idempotency.UnknownError{
		Stage: rec.Progress.Stage, Stuck: rec.Stuck, Reason: rec.Reason,
	}
}

// ClaimResult is the result of a claim.
type ClaimResult struct {
	// Won: the caller owns the key, under Lease.
	Won   bool
	Lease Lease
	// Record is the record after the claim, with the progress of an earlier attempt to continue from.
	Record Record
}

// ClaimOptions are the parameters of a claim.
type ClaimOptions struct {
	// Token identifies the attempt: random, at least 128 bits, the same if the claim is sent again. Required.
	Token string
	// Lease is the lease's duration, by the store's clock. Required, positive.
	Lease time.Duration
	// Keep is the retention of the result, stored with the record.
	Keep idempotency.Retention
	// Rerun: the work may be run again after its owner's crash, because repeating it is harmless, or its effects have
	// downstream keys. Then an ended lease is taken over at once, as always at the stage LOCAL_CREATED; otherwise the
	// outcome becomes unknown.
	Rerun bool
}

// Check returns an error if a required field is missing; a store calls it, and Key.Check, before any lookup.
func (o ClaimOptions) Check() error {
	if o.Token == "" {
		return errToken
	}
	if o.Lease <= 0 {
		return errLease
	}
	return nil
}

var (
	errToken = errors.New("idempotency: an attempt needs a token: random, at least 128 bits")
	errLease = errors.New("idempotency: a lease must be longer than zero")
	errLimit = errors.New("idempotency: the limit must be 1 or more")
)

// Store stores keys. Its methods are atomic and linearizable per key, compare (state, token, lease) in the statement
// that writes, and use the store's clock, never the caller's. After an error that matches none of this package's, and
// has no mark (Classify), the outcome of the write is unknown: send the same call again (it is recognised by its
// token), or leave the key to recovery.
//
// The holder of a key is the last caller that got it by Claim or Recover: its lease has the record's fence and token. A
// write by another caller is refused, whatever the state. A call with an invalid key (Key.Check) or without a required
// argument is refused before any lookup. A store shares no memory with arguments and results. A body is stored as it
// is, nil distinct from empty; all other text is UTF-8 without NUL.
type Store interface {
	// Claim gives a free key to the caller, or returns its record:
	//
	//	none                           won, IN_PROGRESS, fence + 1
	//	same fingerprint
	//	  IN_PROGRESS, own token       won again (the first reply was lost), under a new lease
	//	  IN_PROGRESS, lease runs      not won
	//	  IN_PROGRESS, lease ended     becomes UNKNOWN, not won; with Rerun or LOCAL_CREATED: won, fence + 1, progress kept
	//	  UNKNOWN                      not won; with Rerun or LOCAL_CREATED, and no recoverer's lease running: won, fence + 1,
	//	                               progress kept, no longer Stuck
	//	  COMPLETED, FAILED_REPLAYABLE not won; the record has the result, without a body whose retention has ended
	//	  EXPIRED                      not won; after the tombstone's retention: as none, whatever its fingerprint
	//	another fingerprint            not won, whatever the state, no change; see Request.Matches
	//
	// "fence + 1" is higher than every fence that the key ever had. A take-over keeps the record's fingerprint, input,
	// attempts and the time of the first claim.
	Claim(ctx context.Context, r idempotency.Request, opt ClaimOptions) (ClaimResult, error)

	// Extend begins the holder's lease anew: of an IN_PROGRESS key even if it has ended; of an UNKNOWN one, which a
	// recoverer holds, only before it ends. Otherwise ErrLeaseLost. A lease that is not positive is an error.
	Extend(ctx context.Context, l Lease, lease time.Duration) error

	// Save replaces the progress. Only the holder can, before its lease ends: otherwise ErrLeaseLost. A delayed save
	// that is executed after a later one of the same process changes nothing.
	Save(ctx context.Context, l Lease, p Progress) error

	// Finish records the result: COMPLETED, or FAILED_REPLAYABLE if Result.Failure is not empty, and removes the input.
	// Only the holder can, of a key that is IN_PROGRESS or UNKNOWN, even after the lease has ended: nobody else has got
	// the key since. Otherwise ErrLeaseLost. Sent again, it succeeds, and the first result is kept.
	Finish(ctx context.Context, l Lease, res idempotency.Result, keep idempotency.Retention) error

	// Release removes the key. Call it only if certainly nothing has happened, or can still happen, by this attempt or
	// an earlier one; about earlier ones only the provider knows, so a guard does not release a key that it has taken
	// over. Only the holder can, of a key that is IN_PROGRESS or UNKNOWN: otherwise ErrLeaseLost. For a removed key it
	// returns nil.
	Release(ctx context.Context, l Lease) error

	// MarkUnknown makes the holder's key, IN_PROGRESS or UNKNOWN, UNKNOWN with a reason, due for recovery after the
	// delay, and ends the lease. Otherwise ErrLeaseLost. Sent again, it succeeds; a Stuck key does not change.
	MarkUnknown(ctx context.Context, l Lease, reason string, delay time.Duration) error

	// Get returns the record, false for none (or for one whose tombstone is overdue). A result whose body is overdue is
	// EXPIRED, swept or not; a key whose lease has ended may still be IN_PROGRESS, with a LeaseLeft that is not
	// positive.
	Get(ctx context.Context, k idempotency.Key) (Record, bool, error)
}

// Recoverer is the part of a Store that recovery uses.
type Recoverer interface {
	// Recover claims up to Limit keys for a recoverer, longest overdue first, that are UNKNOWN, due and not Stuck, or
	// IN_PROGRESS: they become UNKNOWN, with fence + 1 and attempts + 1, under a new lease. If the last holder did not
	// end its lease, it must have ended longer than Grace ago, even if a claim has recorded that. Two recoverers never
	// get the same key. Keys of operations that are not listed do not change; nil means all. If the reply is lost, its
	// keys wait for the end of the lease: the call sent again gets others. A store that claims keys one by one may
	// return an error together with claimed keys.
	Recover(ctx context.Context, opt RecoverOptions) ([]ClaimResult, error)

	// Postpone ends the lease of the holder's UNKNOWN key, which is due again after the delay, or Stuck if stuck is
	// set. Otherwise ErrLeaseLost. Sent again, it succeeds; a Stuck key does not change.
	//
	// A person's tool claims a Stuck key by ClaimStuck, and ends it by Finish, Release or MarkUnknown.
	Postpone(ctx context.Context, l Lease, reason string, delay time.Duration, stuck bool) error

	// Sweep removes up to limit overdue bodies (COMPLETED and FAILED_REPLAYABLE become EXPIRED), then tombstones. Each
	// write repeats the condition of its selection. IN_PROGRESS and UNKNOWN keys are never removed, however old. A
	// limit that is not positive removes nothing.
	Sweep(ctx context.Context, limit int) (SweepResult, error)

	// Stats counts the unfinished keys.
	Stats(ctx context.Context) (Stats, error)
}

// Recoverable is a Store with the methods that recovery needs.
type Recoverable interface {
	Store
	Recoverer
}

// RecoverOptions are the parameters of Recoverer.Recover.
type RecoverOptions struct {
	Limit      int           // of keys; required, positive
	Lease      time.Duration // of the recoverer; required, positive
	Grace      time.Duration // after a lease that ended by itself
	Token      string        // of this recoverer's attempt, as in ClaimOptions; required
	Operations []string      // nil: all
}

// Check returns an error if a required field is missing; a store calls it before any lookup.
func (o RecoverOptions) Check() error {
	if o.Limit <= 0 {
		return errLimit
	}
	return ClaimOptions{Token: o.Token, Lease: o.Lease}.Check()
}

// SweepResult is the number of removed bodies and tombstones. More: the limit was reached.
type SweepResult struct {
	Bodies, Tombstones int
	More               bool
}

// Stats has counts of a store's keys.
type Stats struct {
	InProgress       int64         // including those whose lease has ended
	Unknown          int64         // including stuck ones
	Stuck            int64         // given up by recovery
	OldestInProgress time.Duration // since its first claim, by the store's clock; 0: none
}
