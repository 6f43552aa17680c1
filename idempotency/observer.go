package idempotency

import "time"

// Observer has callbacks of a guard and of pgstore's InTx; nil ones are skipped. They run in the goroutines of callers
// and heartbeats, so they must be quick and safe for concurrent use. None gets a key.
type Observer struct {
	// Replayed: a caller got an earlier attempt's result.
	Replayed func(ReplayedInfo)
	// Mismatched: a key was used for another command and refused.
	Mismatched func(MismatchedInfo)
	// InProgress: a caller got ErrInProgress.
	InProgress func(InProgressInfo)
	// ExpiredRetry: a caller asked for a result that is no longer kept.
	ExpiredRetry func(ExpiredInfo)
	// Unknown: the outcome of an operation became unknown, or a later caller got ErrUnknown.
	Unknown func(UnknownInfo)
	// Finished: an attempt ended with a recorded result.
	Finished func(FinishedInfo)
	// Released: an attempt certainly ended without an effect other than its recorded local phases, and the next one may
	// begin at once.
	Released func(ReleasedInfo)
	// LeaseLost: an owner lost its lease during its work, or could not reach the store until the lease ended.
	LeaseLost func(LeaseLostInfo)
}

// ReplayedInfo is about a replayed result.
type ReplayedInfo struct {
	Operation string
	Failure   string // as in Result
	// Shared: the result is from a concurrent attempt of this process; the store was not read.
	Shared bool
}

// MismatchedInfo is about a key that was used for another command.
type MismatchedInfo struct {
	Operation string
	State     State // of the first command
}

// InProgressInfo is about a caller that came during another attempt.
type InProgressInfo struct {
	Operation string
	Age       time.Duration // of the other attempt
}

// ExpiredInfo is about a result that is no longer kept.
type ExpiredInfo struct{ Operation string }

// UnknownInfo is about an operation whose outcome is unknown.
type UnknownInfo struct {
	Operation string
	Stage     Stage
	New       bool  // it became unknown now; otherwise a later caller got ErrUnknown
	Err       error // the cause, if New
}

// FinishedInfo is about one attempt that ended with a result.
type FinishedInfo struct {
	Operation string
	Failure   string // as in Result
	Resumed   bool   // it continued from an earlier attempt's recovery points
	Took      time.Duration
}

// ReleasedInfo is about an attempt that ended without an effect.
type ReleasedInfo struct {
	Operation string
	Err       error // the cause
}

// LeaseLostInfo is about a lost lease.
type LeaseLostInfo struct {
	Operation string
	Fence     int64 // of the owner that lost it
}
