package store

import (
	"context"
	"errors"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

// ErrLeaseLost: another owner has the key, or nobody: what this one wrote was refused. Its effects, if any, stand
// behind the fencing token and the downstream key.
var ErrLeaseLost = errors.New("the lease of this idempotency key is lost")

// Lease is the right to work at a key. Every write of a Store compares it, in the statement that writes.
type Lease struct {
	Key idempotency.Key
	// Fence rises with every owner and recoverer of the key, also over times at which it was free: a former one is
	// always lower. Give it to an effect that can refuse a lower one.
	Fence int64
	// Token is the attempt's own, random: a claim whose reply was lost and that is sent again is recognised by it.
	Token string
}

// Record is what a store knows of a key.
type Record struct {
	Key         idempotency.Key
	State       idempotency.State
	Fingerprint idempotency.Fingerprint
	// Progress is what was saved last, at first the stage Received without steps; erased with the result's body.
	Progress Progress
	Input    []byte             // of Request; nil once completed
	Result   idempotency.Result // of Completed and FailedReplayable; in Expired without header and body
	Fence    int64
	// LeaseLeft is what is left of the owner's or the recoverer's lease, by the store's clock; not positive when it has
	// ended.
	LeaseLeft time.Duration
	// Age is the time since the first claim, by the store's clock.
	Age time.Duration
	// Attempts is how often recovery took it, Reason its last finding, Stuck that it gave up.
	Attempts int
	Reason   string
	Stuck    bool
}

// Answer is what a request is told that did not get the key: the result, Replayed, or an error of package idempotency.
// A mismatch comes first: the other command's result is nobody's business.
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

// ClaimResult is the answer to a claim.
type ClaimResult struct {
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
	// Rerun says that the work may be run again after an owner vanished: it is harmless when repeated, or all of its
	// effects stand behind the downstream keys. Then an ended lease is taken over at once, as it always is when the
	// progress is saved with the stage LOCAL_CREATED; otherwise it makes the outcome unknown.
	Rerun bool
}

// Check returns an error when something required is missing; a store asks it, and Key.Check, before anything is looked
// up.
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

// Store remembers keys. Its methods are atomic and linearizable per key, compare (state, token, lease) in the one
// statement that writes, and go by the store's clock, never the caller's. An error that matches none of this package's,
// and has no mark (Classify), means that nobody knows whether the write happened: send the same call again (it is
// recognised by its token), or leave the key to recovery.
//
// The holder of a key is who got it last, by Claim or Recover, as long as nobody got it since: the lease's fence and
// token are the record's. A write by anybody else is refused, whatever the state. A call with a key that is invalid
// (Key.Check) or without what it requires is refused before anything is looked up. What goes in and comes out is the
// caller's own: no store keeps or hands out memory that it shares. A body is kept as it is, nil apart from empty; all
// other text is UTF-8 without NUL.
type Store interface {
	// Claim takes a key that is free and gives it to the caller, or says what is there:
	//
	//	nothing                        won, IN_PROGRESS, fence + 1
	//	same fingerprint
	//	  IN_PROGRESS, own token       won again (the first reply was lost), under a whole lease from now
	//	  IN_PROGRESS, lease runs      not won
	//	  IN_PROGRESS, lease ended     turned into UNKNOWN, not won; with Rerun or LOCAL_CREATED: won, fence + 1, progress kept
	//	  UNKNOWN                      not won; with Rerun or LOCAL_CREATED, and no recoverer's lease running: won, fence + 1,
	//	                               progress kept, not Stuck any more
	//	  COMPLETED, FAILED_REPLAYABLE not won; the result is in the record, once its body is overdue as if swept
	//	  EXPIRED                      not won; once its tombstone is overdue: as nothing, whatever its fingerprint
	//	another fingerprint            not won, whatever the state, and nothing changes; the caller sees it by Request.Matches
	//
	// "fence + 1" is higher than every fence that the key ever had. A record that is taken over keeps its fingerprint,
	// input, attempts and first claim's time.
	Claim(ctx context.Context, r idempotency.Request, opt ClaimOptions) (ClaimResult, error)

	// Extend gives the holder a whole lease from now: of an IN_PROGRESS key also when its lease has ended and nobody
	// took note; of an UNKNOWN one, which a recoverer holds, only while it runs. Otherwise ErrLeaseLost. A lease that
	// is not positive is an error.
	Extend(ctx context.Context, l Lease, lease time.Duration) error

	// Save replaces the progress. Only the holder can, while its lease runs: otherwise ErrLeaseLost. Older progress
	// does not come back: a save that is executed after a later one of the same process, because it was on its way for
	// long and sent again meanwhile, changes nothing.
	Save(ctx context.Context, l Lease, p Progress) error

	// Finish records the result: COMPLETED, or FAILED_REPLAYABLE when Result.Failure is not empty, and erases the
	// input. Only the holder can, of a key that is IN_PROGRESS or UNKNOWN: neither an ended lease nor a note of that is
	// a hindrance, for nobody else is at it and its word is better than none. Otherwise ErrLeaseLost. Sent again, it
	// succeeds again, and the first result stands.
	Finish(ctx context.Context, l Lease, res idempotency.Result, keep idempotency.Retention) error

	// Release forgets the key: certainly nothing has happened, nor can happen any more, by this attempt or a former
	// one. Who took a key over knows that of the former ones only by asking: a guard's caller that took one over
	// releases nothing. Only the holder can, of a key that is IN_PROGRESS or UNKNOWN: otherwise ErrLeaseLost. Of a key
	// that is gone already, nil.
	Release(ctx context.Context, l Lease) error

	// MarkUnknown turns the holder's key, IN_PROGRESS or UNKNOWN, into UNKNOWN, due for recovery after the delay, with
	// a reason for people, and gives up the lease. Otherwise ErrLeaseLost. Sent again, it succeeds again; a key that is
	// Stuck stays as it is.
	MarkUnknown(ctx context.Context, l Lease, reason string, after time.Duration) error

	// Get returns what is known, false for nothing (or a tombstone that is overdue). A result whose body is overdue is
	// told as EXPIRED, swept or not; an ended lease that nobody noted as IN_PROGRESS with a LeaseLeft that is not
	// positive.
	Get(ctx context.Context, k idempotency.Key) (Record, bool, error)
}

// Recoverer is the part of a Store that recovery uses.
type Recoverer interface {
	// Recover takes up to limit keys, longest overdue first, that are UNKNOWN, due and not Stuck, or IN_PROGRESS under
	// a lease that ended longer than grace ago, for a recoverer: UNKNOWN, fence + 1, attempts + 1, under a lease of its
	// own. Two recoverers never get the same. Keys of operations that are not listed are left alone; nil means all. An
	// UNKNOWN key that a claim found with its lease ended is due at once; one whose recoverer's lease has ended is due
	// then. A reply that is lost costs its keys that lease: sent again, the call gets others. A store that takes them
	// one by one may return an error beside those that it took: they are the caller's.
	Recover(ctx context.Context, opt RecoverOptions) ([]ClaimResult, error)

	// Postpone gives the holder's UNKNOWN key back, UNKNOWN still, due again after the delay; stuck gives it to a
	// person instead. Otherwise ErrLeaseLost. Sent again, it succeeds again; a key that is Stuck stays as it is.
	//
	// A person, or a tool of theirs, takes a Stuck key by ClaimStuck, and ends it by Finish, Release or MarkUnknown.
	Postpone(ctx context.Context, l Lease, reason string, after time.Duration, stuck bool) error

	// Sweep removes at most limit overdue things: first bodies (COMPLETED and FAILED_REPLAYABLE become EXPIRED), then
	// tombstones. Each write repeats the condition it was selected by. What is IN_PROGRESS or UNKNOWN is never removed,
	// however old. A limit that is not positive removes nothing.
	Sweep(ctx context.Context, limit int) (SweepResult, error)

	// Stats counts what people watch.
	Stats(ctx context.Context) (Stats, error)
}

// Recoverable is a Store that recovery works on.
type Recoverable interface {
	Store
	Recoverer
}

// RecoverOptions are the terms of Recoverer.Recover.
type RecoverOptions struct {
	Limit      int           // at most so many; required, positive
	Lease      time.Duration // of the recoverer; required, positive
	Grace      time.Duration // how long a lease must have ended; 0 is none
	Token      string        // of this recoverer's attempt, as in ClaimOptions; required
	Operations []string      // only these; nil: all
}

// Check returns an error when something required is missing; a store asks it before anything is looked up.
func (o RecoverOptions) Check() error {
	if o.Limit <= 0 {
		return errLimit
	}
	return ClaimOptions{Token: o.Token, Lease: o.Lease}.Check()
}

// SweepResult is how much Sweep removed. More says that the limit ended it.
type SweepResult struct {
	Bodies, Tombstones int
	More               bool
}

// Stats is a count of a store's keys.
type Stats struct {
	InProgress       int64         // under a lease that runs or has ended
	Unknown          int64         // the stuck ones among them
	Stuck            int64         // given to a person
	OldestInProgress time.Duration // since its first claim, by the store's clock; 0 for none
}
