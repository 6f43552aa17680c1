package idempotency

// State is the state of a key's request.
type State string

const (
	// InProgress: an attempt owns it under a lease that has not ended.
	InProgress State = "IN_PROGRESS"
	// Completed: done; its result is replayed.
	Completed State = "COMPLETED"
	// FailedReplayable: refused for good by the business (a declined card); the refusal is replayed.
	FailedReplayable State = "FAILED_REPLAYABLE"
	// Unknown: it may have happened: a lease ended, or a provider did not answer. Recovery finds out.
	Unknown State = "UNKNOWN_REQUIRES_RECOVERY"
	// Expired: it was completed or refused; its result was removed, its fingerprint and outcome are kept.
	Expired State = "EXPIRED"
)

// Stage is the progress of an operation that calls a provider, derived from its steps, for people and alarms.
type Stage string

const (
	// Received: claimed, nothing done.
	Received Stage = "RECEIVED"
	// LocalCreated: the local part is committed, no provider was called.
	LocalCreated Stage = "LOCAL_CREATED"
	// ProviderRequestSent: a provider was called, and its answer is not recorded.
	ProviderRequestSent Stage = "PROVIDER_REQUEST_SENT"
	// ProviderConfirmed: the answers of all called providers are recorded.
	ProviderConfirmed Stage = "PROVIDER_CONFIRMED"
	// StageUnknown goes with the state Unknown.
	StageUnknown Stage = "UNKNOWN_REQUIRES_RECOVERY"
)
