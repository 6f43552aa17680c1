package memstore

import (
	"github.com/effectonce/effectonce/idempotency"
)

// situation is a State as the store's clock sees it: what a call may do depends on leases and delays as well.
type situation uint8

const (
	free       situation = iota // nothing, or a tombstone that is overdue
	leased                      // IN_PROGRESS, the owner's lease runs
	lapsed                      // IN_PROGRESS, the owner's lease has ended and nobody took note
	waiting                     // UNKNOWN, due later
	due                         // UNKNOWN, recovery may take it
	recovering                  // UNKNOWN, a recoverer's lease runs
	stuck                       // UNKNOWN, given to a person
	done                        // COMPLETED
	refused                     // FAILED_REPLAYABLE
	stale                       // COMPLETED or FAILED_REPLAYABLE, its body overdue and not swept yet
	expired                     // EXPIRED
	situations = iota
)

// event is a call, and what the key's record makes of the caller. A write is "by the holder" when its lease's fence and
// token are the record's: nobody took the key from it since.
type event uint8

const (
	claim      event = iota // the same command, another attempt
	claimAgain              // the same command, and the token of the attempt that owns the key
	// the same command, another attempt, which may run the work again: by its options, or from LOCAL_CREATED
	claimRerun
	claimOther // another command
	extend     // by the holder, as all until postponeStuck
	save
	succeed
	fail
	release
	markUnknown
	postpone
	postponeStuck // Postpone, to a person
	recover       // the recoverer came upon it
	sweep         // the sweeper came upon it
	foreign       // any write but Release of a key that is gone, under a lease that is not the record's
	events        = iota
)

// effect is what becomes of a call.
type effect uint8

const (
	tell       effect = iota // not won: what is there is told, and stays
	grant                    // won: a new record, a new fence
	regrant                  // won, still: a whole lease from now
	takeOver                 // won: a new fence; progress and input stay
	note                     // not won: the end of the lease is noted, so the outcome is unknown and due
	renew                    // a whole lease from now
	keep                     // the progress is replaced
	complete                 // the result is kept
	refuse                   // the refusal is kept
	repeat                   // nothing is left to do: the call was sent again
	forget                   // the record is removed
	reschedule               // the lease is given up, the key due after a delay
	markStuck                // the lease is given up, the key left to a person
	assign                   // won by a recoverer: a new fence, one attempt more
	skip                     // left alone
	erase                    // the body is removed
	lost                     // ErrLeaseLost: nothing changes
	effects    = iota
)

// becomes is the state after an effect; an effect that is not listed leaves the state as it is.
var becomes = [effects]idempotency.State{
	grant: idempotency.InProgress, regrant: idempotency.InProgress, takeOver: idempotency.InProgress,
	note: idempotency.Unknown, reschedule: idempotency.Unknown, markStuck: idempotency.Unknown,
	assign:   idempotency.Unknown,
	complete: idempotency.Completed, refuse: idempotency.FailedReplayable, erase: idempotency.Expired,
}

// rules say what becomes of a call in a situation.
type rules [events][situations]effect

// table is the state machine, every cell of it. The memory store goes by it; the suite holds every other store against
// the memory store.
//
// No row but release frees a key that was granted, and that is the holder's word that nothing happened: an ended
// lease leads to note, takeOver or assign.
var table = rules{
	//          free    leased   lapsed    waiting   due       recovering stuck     done    refused stale   expired
	claim:         {grant, tell, note, tell, tell, tell, tell, tell, tell, tell, tell},
	claimAgain:    {grant, regrant, regrant, tell, tell, tell, tell, tell, tell, tell, tell},
	claimRerun:    {grant, tell, takeOver, takeOver, takeOver, tell, takeOver, tell, tell, tell, tell},
	claimOther:    {grant, tell, tell, tell, tell, tell, tell, tell, tell, tell, tell},
	extend:        {lost, renew, renew, lost, lost, renew, lost, lost, lost, lost, lost},
	save:          {lost, keep, lost, lost, lost, keep, lost, lost, lost, lost, lost},
	succeed:       {lost, complete, complete, complete, complete, complete, complete, repeat, repeat, repeat, repeat},
	fail:          {lost, refuse, refuse, refuse, refuse, refuse, refuse, repeat, repeat, repeat, repeat},
	release:       {repeat, forget, forget, forget, forget, forget, forget, lost, lost, lost, lost},
	markUnknown:   {lost, reschedule, reschedule, reschedule, reschedule, reschedule, repeat, lost, lost, lost, lost},
	postpone:      {lost, lost, lost, reschedule, reschedule, reschedule, repeat, lost, lost, lost, lost},
	postponeStuck: {lost, lost, lost, markStuck, markStuck, markStuck, repeat, lost, lost, lost, lost},
	recover:       {skip, skip, assign, skip, assign, skip, skip, skip, skip, skip, skip},
	sweep:         {forget, skip, skip, skip, skip, skip, skip, skip, skip, erase, skip},
	foreign:       {lost, lost, lost, lost, lost, lost, lost, lost, lost, lost, lost},
}
