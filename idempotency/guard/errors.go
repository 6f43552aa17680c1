package guard

import "errors"

var (
	// ErrUnrecorded: the work is done and the result beside this error is true, but nobody knows whether it is
	// recorded: a retry may be told that it is in progress or unknown, until recovery has seen to it. It is only ever
	// beside a success: a refusal that may not be recorded is ErrUnknown, since the next attempt may be told yes.
	ErrUnrecorded = errors.New("the work is done, and recording its result has no known outcome")
	// ErrStuck: only a person can go on: a compensation was refused, or a provider can neither be asked nor called
	// again.
	ErrStuck = errors.New("a person has to look at this operation")
)
