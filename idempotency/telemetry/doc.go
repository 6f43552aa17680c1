// Package telemetry gives guards, the Postgres store and recovery workers their OpenTelemetry metrics.
//
//	m, err := telemetry.New(otel.GetMeterProvider())
//	...
//	g, err := guard.New(store, guard.Config{Observer: m.Guard()})
//	...
//	worker, err := recovery.New(store, handlers, recovery.Config{Observer: m.Recovery()})
//	...
//	watch, err := m.Watch(store) // reads the store at each collection
//	...
//	defer watch.Unregister()
//
// No attribute holds a key, a tenant or an id, so the number of series depends on the operations only. Counters have
// the attribute operation. Gauges of the store have none, and every process reports the same value: take the maximum,
// not the sum.
//
//	idempotency.replay.count                       a caller got an earlier attempt's result
//	idempotency.conflict.different_request.count   a key was used for another command and refused: a client's mistake, or an attack
//	idempotency.conflict.in_progress.count         a caller got ErrInProgress
//	idempotency.expired_retry.count                a caller asked for a result that is no longer kept: clients retry for longer than its retention
//	idempotency.unknown_outcome.count              the outcome of an operation became unknown
//	idempotency.finished.count                     an attempt ended with a result; failure: the code of a final refusal, or none
//	idempotency.released.count                     an attempt ended without an effect, and its key was released
//	idempotency.lease_lost.count                   an owner lost its lease during its work
//	idempotency.duration                           seconds from the claim to the recorded result
//	idempotency.recovery.count                     recovery processed an operation; outcome: see recovery.Outcome
//	idempotency.recovery.failure.count             a query or a sweep of recovery failed
//	idempotency.swept.count                        bodies and tombstones removed after their retention; kind: body or tombstone
//	idempotency.in_progress.count                  keys in progress
//	idempotency.in_progress.age.max                seconds since the claim of the oldest key in progress
//	idempotency.unknown_state.count                keys whose outcome is unknown, stuck ones included
//	idempotency.stuck.count                        keys that recovery gave up: a person must resolve them
package telemetry
