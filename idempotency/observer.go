package idempotency

import "time"

// Observer is told what a guard or pgstore's InTx does. A nil func is skipped. They are called from the goroutines of
// the callers and of the heartbeats, so they must be quick and safe for concurrent use. None is told a key.
type Observer struct {
	// Replayed: a caller was given a former attempt's result.
	Replayed func(ReplayedInfo)
	// Mismatched: a key was used for another command, and refused.
	Mismatched func(MismatchedInfo)
	// InProgress: a caller was told to come again.
	InProgress func(InProgressInfo)
	// ExpiredRetry: a caller came for a result that is no longer kept.
	ExpiredRetry func(ExpiredInfo)
	// Unknown: the outcome of an operation became unknown, or a caller was told that it is.
	Unknown func(UnknownInfo)
	// Finished: an attempt ended with a result, which is recorded.
	Finished func(FinishedInfo)
	// Released: an attempt ended, certainly without an effect but its recorded local phases, and the next one may begin
	// at once.
	Released func(ReleasedInfo)
	// LeaseLost: an owner lost its lease while it worked, or could not reach the store until its end.
	LeaseLost func(LeaseLostInfo)
}

// ReplayedInfo says whose result was given again.
type ReplayedInfo struct {
	Operation string
	Failure   string // as in Result
	// Shared: it was taken from an attempt of this process that ran at the same time, without asking the store.
	Shared bool
}

// MismatchedInfo says what became of the first command.
type MismatchedInfo struct {
	Operation string
	State     State
}

// InProgressInfo says for how long the other attempt has been at it.
type InProgressInfo struct {
	Operation string
	Age       time.Duration
}

// ExpiredInfo names the operation.
type ExpiredInfo struct{ Operation string }

// UnknownInfo says how far the operation came. New: it became so now; otherwise a caller met it.
type UnknownInfo struct {
	Operation string
	Stage     Stage
	New       bool
	Err       error // why; nil when it was met
}

// FinishedInfo is about one attempt that ended with a result.
type FinishedInfo struct {
	Operation string
	Failure   string // as in Result
	Resumed   bool   // it went on from a former attempt's recovery points
	Took      time.Duration
}

// ReleasedInfo says why there was no effect.
type ReleasedInfo struct {
	Operation string
	Err       error
}

// LeaseLostInfo names the operation and the fence of the owner that lost it.
type LeaseLostInfo struct {
	Operation string
	Fence     int64
}
