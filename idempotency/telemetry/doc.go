// Package telemetry gives guards, the Postgres store and recovery workers their OpenTelemetry metrics.
//
//	m, err := telemetry.New(otel.GetMeterProvider())
//	...
//	g, err := guard.New(store, guard.Config{Observer: m.Guard()})
//	...
//	worker, err := recovery.New(store, handlers, recovery.Config{Observer: m.Recovery()})
//	...
//	watch, err := m.Watch(store) // what is asked of the store at each collection
//	...
//	defer watch.Unregister()
//
// No attribute holds a key, a tenant or an id: the number of series depends on the operations only. The attribute of
// all counters is operation; what is asked of the store has none, and every process reads the same: take the maximum,
// not the sum.
//
//	idempotency.replay.count                       a caller was given a former attempt's result
//	idempotency.conflict.different_request.count   a key was used for another command, and refused: a client's mistake, or an attack
//	idempotency.conflict.in_progress.count         a caller was told to come again
//	idempotency.expired_retry.count                a caller came for a result that is no longer kept: clients retry for longer than it is
//	idempotency.unknown_outcome.count              the outcome of an operation became unknown
//	idempotency.finished.count                     an attempt ended with a result; failure: the code of a final refusal, or none
//	idempotency.released.count                     an attempt ended without an effect, and the key was free again
//	idempotency.lease_lost.count                   an owner lost its lease while it worked
//	idempotency.duration                           seconds from the claim to the recorded result
//	idempotency.recovery.count                     recovery worked at an operation; outcome: as recovery.Outcome
//	idempotency.recovery.failure.count             the store did not answer recovery
//	idempotency.swept.count                        removed after its time; kind: body or tombstone
//	idempotency.in_progress.count                  keys that somebody works at, of the store
//	idempotency.in_progress.age.max                seconds since the claim of the oldest of them
//	idempotency.unknown_state.count                keys whose outcome is unknown, those given to a person included
//	idempotency.stuck.count                        keys given to a person
package telemetry
