// Package guard runs work once that is not a transaction of the store: a transaction elsewhere ([Guard.Do]), or calls
// to providers in phases that a crash does not repeat ([Guard.Run], [Op]), such as sagas ([Op.Saga]).
//
// The first caller of a key works under a lease, which the guard extends. The end of a lease never releases a key: it
// makes the outcome unknown, and package recovery asks the provider.
package guard
