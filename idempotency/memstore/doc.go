// Package memstore stores idempotency keys in memory, for tests. It is the reference that idempotencytest compares the
// other stores with. Its state machine is one table, in transitions.go.
package memstore
