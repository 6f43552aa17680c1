// Package memstore remembers idempotency keys in memory, for tests: everything is forgotten with the process. It is the
// reference for the other stores, which idempotencytest compares with it. The states of a key and what each call makes
// of them are one table, in transitions.go.
package memstore
