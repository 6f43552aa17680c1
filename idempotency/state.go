package idempotency

// State is what is known of a key.
type State string

const (
	// InProgress: somebody works at it, under a lease that has not ended.
	InProgress State = "IN_PROGRESS"
	// Completed: done; its result is replayed.
	Completed State = "COMPLETED"
	// FailedReplayable: refused for good by the business (a declined card); the refusal is replayed.
	FailedReplayable State = "FAILED_REPLAYABLE"
	// Unknown: it may have happened, and nobody knows: a lease ended, or a provider did not answer. Recovery decides.
	Unknown State = "UNKNOWN_REQUIRES_RECOVERY"
	// Expired: it was completed or refused; the result is gone, the key, its fingerprint and the outcome are still
	// there.
	Expired State = "EXPIRED"
)

// Stage is how far an operation came that calls a provider. The guard derives it from the steps; people and alarms read
// it.
type Stage string

const (
	// Received: claimed, nothing done.
	Received Stage = "RECEIVED"
	// LocalCreated: the local part is committed, no provider was asked.
	LocalCreated Stage = "LOCAL_CREATED"
	// ProviderRequestSent: a provider is being asked, or was, and its answer is not recorded.
	ProviderRequestSent Stage = "PROVIDER_REQUEST_SENT"
	// ProviderConfirmed: every provider that was asked has answered, and the answers are recorded.
	ProviderConfirmed Stage = "PROVIDER_CONFIRMED"
	// StageUnknown goes with the state Unknown.
	StageUnknown Stage = "UNKNOWN_REQUIRES_RECOVERY"
)
