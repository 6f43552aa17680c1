// Package failover promotes a Postgres standby under load and checks the guarantees: all of them with a synchronous
// standby, those of docs/failover.md with an asynchronous one. It has tests only.
package failover
