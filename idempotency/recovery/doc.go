// Package recovery resolves operations whose outcome is unknown: their owner died, or a provider did not answer. It
// never guesses, and never repeats an effect that may have happened.
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
// No software can resolve a call to a provider that takes no key and cannot be asked: its operation goes to a person at
// once. Let a person approve such calls, reconcile them daily, or choose a provider that takes keys.
package recovery
