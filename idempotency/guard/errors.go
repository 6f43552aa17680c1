package guard

import "errors"

var (
	// ErrUnrecorded: the work is done with the result returned with this error, which may not be recorded: until
	// recovery has processed the key, a retry may get ErrInProgress or ErrUnknown. A refusal that may not be recorded
	// is ErrUnknown instead, because the next attempt may succeed.
	ErrUnrecorded = errors.New("the work is done, and it is unknown whether its result is recorded")
	// ErrStuck: only a person can resolve the operation: a compensation was refused, or a provider can be neither asked
	// nor called again.
	ErrStuck = errors.New("a person must resolve this operation")
)
