// Package failover promotes a Postgres standby under load and looks what holds: with a synchronous standby everything,
// with an asynchronous one what docs/failover.md says. It has tests only.
package failover
