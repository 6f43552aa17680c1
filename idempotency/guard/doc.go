// Package guard lets work happen once that is not one transaction of the store: a transaction elsewhere ([Guard.Do]),
// or calls to providers in phases that a crash does not repeat ([Guard.Run], [Op]), sagas among them ([Op.Saga]).
//
// The first caller of a key works under a lease, which the guard extends. The end of a lease never frees a key: it
// makes the outcome unknown, and package recovery asks the provider.
package guard
