package memstore

import (
	"github.com/effectonce/effectonce/idempotency"
)

// situation is a State together with the leases and delays that the clock decides.
type situation uint8

const (
	free        situation = iota // no record, or one whose tombstone is overdue
	leased                       // IN_PROGRESS, the owner's lease runs
	lapsed                       // IN_PROGRESS, the owner's lease has ended, which is not recorded yet
	waiting                      // UNKNOWN, due later
	due                          // UNKNOWN, recovery may claim it
	recovering                   // UNKNOWN, a recoverer's lease runs
	stuck                        // UNKNOWN, given up by recovery
	completed                    // COMPLETED
	refused                      // FAILED_REPLAYABLE
	bodyOverdue                  // COMPLETED or FAILED_REPLAYABLE, its body not swept yet
	expired                      // EXPIRED
	situations  = iota
)

// call is a call together with the caller's relation to the record. The holder is the caller with the record's fence
// and token.
type call uint8

const (
	claim      call = iota // the same command, another attempt
	claimAgain             // the same command and the owner's token
	// the same command, another attempt, which may run the work again: ClaimOptions.Rerun, or the stage LOCAL_CREATED
	claimRerun
	claimMismatch // another command
	extend        // this and the next seven: by the holder
	save
	succeed
	fail
	release
	markUnknown
	postpone
	postponeStuck // Postpone with toPerson
	recover       // a recoverer reads the record
	sweep         // a sweep reads the record
	lateWrite     // a write by another than the holder
	calls         = iota
)

// action is the result of a call.
type action uint8

const (
	deny       action = iota // not won: the record is returned unchanged
	grant                    // won: a new record with a new fence
	regrant                  // won again: the lease begins anew
	takeOver                 // won: a new fence; progress and input are kept
	expire                   // not won: the lease has ended, so the outcome becomes unknown
	renew                    // the lease begins anew
	update                   // the progress is replaced
	complete                 // the key is completed
	refuse                   // the key is refused
	noop                     // success without a change: the call was sent again
	remove                   // the record is removed
	reschedule               // the lease ends, recovery follows after a delay
	markStuck                // the lease ends, a person must resolve the key
	assign                   // won by a recoverer: a new fence, one more attempt
	skip                     // no change
	dropBody                 // the body is removed
	lost                     // ErrLeaseLost, no change
	actions    = iota
)

// stateAfter is the state after an action; actions that are not listed keep the state.
var stateAfter = [actions]idempotency.State{
	grant: idempotency.InProgress, regrant: idempotency.InProgress, takeOver: idempotency.InProgress,
	expire: idempotency.Unknown, reschedule: idempotency.Unknown, markStuck: idempotency.Unknown,
	assign:   idempotency.Unknown,
	complete: idempotency.Completed, refuse: idempotency.FailedReplayable, dropBody: idempotency.Expired,
}

// rules has the action of each call in each situation.
type rules [calls][situations]action

// table is the state machine of the memory store, with which idempotencytest compares every other store.
//
// Only release, by which the holder states that nothing happened, frees a granted key: an ended lease leads to
// expire, takeOver or assign.
var table = rules{
	// free, leased, lapsed, waiting, due, recovering, stuck, completed, refused, bodyOverdue, expired
	claim:         {grant, deny, expire, deny, deny, deny, deny, deny, deny, deny, deny},
	claimAgain:    {grant, regrant, regrant, deny, deny, deny, deny, deny, deny, deny, deny},
	claimRerun:    {grant, deny, takeOver, takeOver, takeOver, deny, takeOver, deny, deny, deny, deny},
	claimMismatch: {grant, deny, deny, deny, deny, deny, deny, deny, deny, deny, deny},
	extend:        {lost, renew, renew, lost, lost, renew, lost, lost, lost, lost, lost},
	save:          {lost, update, lost, lost, lost, update, lost, lost, lost, lost, lost},
	succeed:       {lost, complete, complete, complete, complete, complete, complete, noop, noop, noop, noop},
	fail:          {lost, refuse, refuse, refuse, refuse, refuse, refuse, noop, noop, noop, noop},
	release:       {noop, remove, remove, remove, remove, remove, remove, lost, lost, lost, lost},
	markUnknown:   {lost, reschedule, reschedule, reschedule, reschedule, reschedule, noop, lost, lost, lost, lost},
	postpone:      {lost, lost, lost, reschedule, reschedule, reschedule, noop, lost, lost, lost, lost},
	postponeStuck: {lost, lost, lost, markStuck, markStuck, markStuck, noop, lost, lost, lost, lost},
	recover:       {skip, skip, assign, skip, assign, skip, skip, skip, skip, skip, skip},
	sweep:         {remove, skip, skip, skip, skip, skip, skip, skip, skip, dropBody, skip},
	lateWrite:     {lost, lost, lost, lost, lost, lost, lost, lost, lost, lost, lost},
}
