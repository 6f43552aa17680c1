// Package recovery finds out what became of operations that nobody works at any more: their owner died, or a provider
// did not answer. It never guesses, and never runs again blindly what may have happened.
//
//	w, err := recovery.New(store, map[string]recovery.Handler{
//		"payment.create": {Probe: askTheBank, Resume: createPayment},
//	}, recovery.Config{})
//	...
//	group.Go(func() error { return w.Run(ctx) })
//
// A [Worker] takes keys whose outcome is unknown, each under a lease and a new fencing token, so that two workers never
// have the same. It asks the provider about each step whose outcome is open, by the key that went downstream ([Probe]),
// records the answer as a recovery point, and then goes on with the same identity (Resume), undoes what was done
// (Compensate), or frees the key. What cannot be found out now is asked again later, with growing waits, and in the end
// given to a person, with an alarm.
//
// A provider that knows no key and cannot be asked is a gap that no software closes: an operation that was calling it
// goes to a person at once. Such calls belong behind a person's approval, a daily reconciliation, or a provider that
// has keys.
package recovery
